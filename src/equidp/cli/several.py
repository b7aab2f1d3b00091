"""The processes that torchrun starts: they join for one command, the first speaks, and all end together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from equidp.kernel.processes import Processes

PATIENCE = 30.0
"""Seconds that a process which failed gives the first to fail too, and to say why."""


def rank() -> int:
    """Which of the processes that torchrun started this is; 0 also where there is one."""
    return int(os.environ.get("RANK", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def wait_for_the_first() -> None:
    """Gives the first process time to say what is wrong: torchrun ends all as soon as one has ended."""
    if rank():
        time.sleep(PATIENCE)


@contextmanager
def several_processes(device: torch.device) -> Iterator[Processes]:
    """Joins the processes that torchrun started; alone where it started none.

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
