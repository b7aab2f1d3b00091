"""Package versions, and digests of weights, of inputs and of the kernel's code."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a run depends on."""
    packages = ("equidp", "torch", "dp-accounting", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def kernel_digest() -> str:
    """SHA-256 of the names and contents of the files in `equidp/kernel/`, in hexadecimal.

    `sha256sum *.py | sha256sum` in that folder prints it.
    """
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(Path(__file__).with_name("kernel").glob("*.py"))
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _dense_parts(values: Tensor) -> tuple[Tensor, ...]:
    """Return a tensor, or the indices and values of a sparse one."""
    if values.layout is torch.strided:
        return (values,)
    found = values.detach().to_sparse_coo().coalesce()
    return found.indices(), found.values()


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of the names and values in the model's state, in hexadecimal."""
    digest = hashlib.sha256()
    for name, values in _state_bytes(model):
        digest.update(name.encode())
        digest.update(values)
    return digest.hexdigest()


def values_digest(model: nn.Module) -> str:
    """SHA-256 of the values in the model's state without their names, to which wrappers of a model add."""
    digest = hashlib.sha256()
    for _, values in _state_bytes(model):
        digest.update(values)
    return digest.hexdigest()


def _state_bytes(model: nn.Module) -> Iterator[tuple[str, bytes]]:
    """Yield the names and values in the model's state; entries that are not tensors have no values."""
    for name, value in model.state_dict().items():
        parts = _dense_parts(value) if isinstance(value, Tensor) else ()
        yield name, b"".join(map(_bytes_of, parts))


def _bytes_of(values: Tensor) -> bytes:
    """Return the bytes of a dense tensor."""
    return values.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()  # numpy has no bfloat16
