"""The processes that torchrun starts: they join for one command, the first speaks, and all end together."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from equidp.kernel.processes import Processes


def rank() -> int:
    """Which of the processes that torchrun started this is; 0 also where there is one."""
    return int(os.environ.get("RANK", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def speaks() -> bool:
    """Whether this process says what is wrong: the first; and others once they joined, of their own."""
    if not rank():
        return True
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.distributed.is_initialized())


@contextmanager
def several_processes(device: torch.device) -> Iterator[Processes]:
    """Joins the processes that torchrun started; alone where it started none.

    Args:
        device: where this process trains; sums on CUDA devices travel by NCCL, others by Gloo.
    """
    import torch.distributed as dist

    from equidp.kernel.group import processes_here
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
