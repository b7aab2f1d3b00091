"""The process of a command: freed memory that stays, and processes beside it."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from equidp.kernel.processes import Processes

PATIENCE = 30.0
"""Seconds that a process which failed waits for the first one to fail too, and to report its error."""
_MOST = 2**31 - 1  # mallopt takes an int
# Environment variables, numbers that glibc has for them (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD), and bytes;
# older versions refuse more than 32 MiB of the first.
_SETTINGS = (("MALLOC_MMAP_THRESHOLD_", -3, (_MOST, 2**25)), ("MALLOC_TRIM_THRESHOLD_", -1, (_MOST,)))


def keep_freed_memory() -> None:
    """Keep memory that a step freed for the next one, in this process and those it starts.

    By default the C library returns it to the operating system, and asks for it again in the next step, page
    by page: a quarter of the time of a step for a model of some size. Only a program may decide otherwise, so
    the command line does it and the library does not. Environment variables that are set stay as they are.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:
        return
    for name, number, sizes in _SETTINGS:
        if name not in os.environ:
            taken = next((size for size in sizes if tell(number, size)), None)
            if taken is not None:
                os.environ[name] = str(taken)


def rank() -> int:
    """Return the number of this process among those that torchrun started; 0 where there is one."""
    return int(os.environ.get("RANK", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def wait_for_the_first() -> None:
    """Give the first process time to say what is wrong: torchrun ends all as soon as one has ended."""
    if rank():
        time.sleep(PATIENCE)


@contextmanager
def several_processes(device: torch.device) -> Iterator[Processes]:
    """Join the processes that torchrun started; alone where it started none.

    Args:
        device: where this process trains; sums on CUDA devices travel by NCCL, others by Gloo.
    """
    import torch.distributed as dist

    from equidp.distributed.group import processes_here
    from equidp.kernel.processes import ALONE

    if not dist.is_torchelastic_launched():
        yield ALONE
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield processes_here()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
