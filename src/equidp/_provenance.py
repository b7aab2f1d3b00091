"""Versions and digests."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version

from torch import Tensor, nn


def versions() -> dict[str, str]:
    """Of what a run depends on."""
    packages = ("equidp", "torch", "dp-accounting", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over names and values of the model's state."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
