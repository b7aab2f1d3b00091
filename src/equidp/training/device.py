"""Devices by name, and a check that this machine has them."""

from __future__ import annotations

import os

import torch

from equidp.errors import SettingError

CPU = torch.device("cpu")
_FIRST = ("cuda", "mps", "cpu")
"""Kinds of devices in the order in which "auto" tries them."""


def chosen_device(name: str) -> torch.device:
    """Return the device of a name.

    Under torchrun, "cuda" is the device of the process's own number (LOCAL_RANK).

    Args:
        name: "cpu", "cuda", "cuda:1", "mps"; "auto": CUDA if it is there, then MPS, then the CPU. Any other
            accelerator that PyTorch has goes by PyTorch's name.

    Raises:
        SettingError: unknown device, or not available on this machine.

    >>> chosen_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = next(each for each in _FIRST if _count(each))
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise SettingError(
            f"device {name!r}; expected auto, cpu, cuda, cuda:1 or mps.", field="device"
        ) from error
    count = _count(device.type)
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if (device.index or 0) >= count:
        what = f"{device.type.upper()} device"
        there = f"one {what}, {device.type}:0" if count == 1 else f"{count} {what}s, from {device.type}:0 on"
        found = there if count else f"no {what} that PyTorch {torch.__version__} can use"
        raise SettingError(
            f"device {str(device)!r}: this machine has {found}. Choose another, or auto, which takes what is "
            "there."
        )
    return CPU if device.type == "cpu" else device


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished its queued work, as timings require; returns at once for the CPU.

    >>> wait_for(torch.device("cpu"))
    """
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _count(kind: str) -> int:
    """Number of devices of a kind, or 0 for "meta" and for kinds that this PyTorch lacks."""
    try:
        return int(torch.get_device_module(kind).device_count())
    except (RuntimeError, AttributeError):
        return 0
