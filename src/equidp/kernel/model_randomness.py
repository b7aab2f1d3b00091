"""Random numbers that a model draws itself (dropout), from the operating system."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from equidp.errors import PrivacyWarning

_WORDS = 624  # of the Mersenne Twister, which torch's generator of the processor is


@contextmanager
def from_the_system(device: torch.device) -> Iterator[None]:
    """Torch's global generators hold fresh entropy of the operating system inside, and are restored after.

    Formal guarantee: what is drawn inside (the masks of dropout, say) follows from os.urandom alone, and so
    is independent of the data and of everything drawn outside. A generator of known seed deals its numbers
    out in order of place: one example more in a batch would give all examples after it other masks, which no
    clipping bound covers.

    | generator | entropy |
    | --- | --- |
    | of the processor | its whole state, 19,937 bits; in a PyTorch that keeps it in another form 32, with a
      PrivacyWarning |
    | of a CUDA, MPS or other device | a seed of 64 bits |
    | Python's and NumPy's, or a torch.Generator of the model's own | not covered |

    The caller's states come back also if an error ends what runs inside.

    Args:
        device: where the model is.
    """
    before = torch.get_rng_state()
    before_there = None if device.type == "cpu" else state_on(device)
    try:
        torch.set_rng_state(_fresh_state())
        if before_there is not None:
            seeded = torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8), "little"))
            set_state_on(device, seeded.get_state())
        yield
    finally:
        torch.set_rng_state(before)
        if before_there is not None:
            set_state_on(device, before_there)


def state_on(device: torch.device) -> Tensor:
    """The state of torch's generator of an accelerator."""
    module = torch.get_device_module(device)
    state: Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state


def set_state_on(device: torch.device, state: Tensor) -> None:
    """Sets the state of torch's generator of an accelerator."""
    module = torch.get_device_module(device)
    module.set_rng_state(state) if device.type == "mps" else module.set_rng_state(state, device)


def _fresh_state() -> Tensor:
    """A state of the processor's generator whose words are the operating system's."""
    template, start = _layout()
    if start < 0:
        warnings.warn(
            f"PyTorch {torch.__version__} keeps the state of its generator in a form that equidp does not "
            "know, so that the random numbers of a model (dropout) have 32 bits of entropy. Use a model "
            "without, or a PyTorch that equidp names.",
            PrivacyWarning,
            stacklevel=2,
        )
        return torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "little")).get_state()
    words = np.frombuffer(os.urandom(4 * _WORDS), dtype=np.uint32)
    state = template.clone()
    state.numpy().view(np.uint64)[start : start + _WORDS] = words
    return state


@lru_cache(maxsize=1)
def _layout() -> tuple[Tensor, int]:
    """The state of a seeded generator, and where its 64-bit words hold the twister's; -1 if they do not.

    NumPy seeds the same twister in the same way, which tells where to look.
    """
    template = torch.Generator().manual_seed(5489).get_state()
    expected = np.random.RandomState(5489).get_state(legacy=False)["state"]["key"]
    words = template.numpy()[: template.numel() // 8 * 8].view(np.uint64)
    starts = np.flatnonzero(words[: len(words) - _WORDS + 1] == expected[0])
    found = [int(at) for at in starts if (words[at : at + _WORDS] == expected).all()]
    return template, found[0] if len(found) == 1 else -1
