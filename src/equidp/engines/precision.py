"""Products in full single precision, whatever the user's program has set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

_COARSE = ("tf32", "bf16")
_backends: Any = torch.backends
_PRECISION: dict[str, tuple[Any, ...]] = (
    {
        "cpu": (_backends.mkldnn.matmul, _backends.mkldnn.conv),
        "cuda": (_backends.cuda.matmul, _backends.cudnn.conv),
    }
    if hasattr(_backends.mkldnn, "conv")
    else {}
)
"""PyTorch's settings (2.9 and newer) of how precise products of float32 are, by device."""


def full_precision(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Returns a context in which autocast and products coarser than float32 (TF32, bfloat16) are off.

    Norms and sums must be of the same vectors.
    """
    coarse = [setting for setting in _PRECISION.get(device.type, ()) if setting.fp32_precision in _COARSE]
    autocast = torch.is_autocast_enabled(device.type)
    return partial(_exactly, device, coarse, autocast) if coarse or autocast else nullcontext


@contextmanager
def _exactly(device: torch.device, coarse: list[Any], autocast: bool) -> Iterator[None]:
    before = [setting.fp32_precision for setting in coarse]
    if autocast:
        torch.clear_autocast_cache()  # copies of parameters from before the next step
    try:
        for setting in coarse:
            setting.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False) if autocast else nullcontext():
            yield
    finally:
        for setting, precision in zip(coarse, before, strict=True):
            setting.fp32_precision = precision
