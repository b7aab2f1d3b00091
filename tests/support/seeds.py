"""Seeds of tests: each test draws by a seed that follows from its name, so that a failure repeats.

Noise and samples are drawn from `os.urandom`, which tests replace in their own process. Processes that a test
starts draw from the operating system, as they do for users."""

from __future__ import annotations

import os
import random
from hashlib import sha256

import numpy as np
import torch

from_system = os.urandom
_generator = random.Random()


def urandom(size: int) -> bytes:
    """`size` bytes that follow from the last seed."""
    return _generator.randbytes(size)


def seed_everything(name: str) -> None:
    """Seed `urandom` and the global generators of Python, numpy and torch by a name."""
    seed = int.from_bytes(sha256(name.encode()).digest()[:4], "little")
    _generator.seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # which would format three stack traces for a GPU to come: milliseconds, for each fixture
        torch.default_generator.manual_seed(seed)


def _restore() -> None:
    os.urandom = from_system


os.register_at_fork(after_in_child=_restore)
