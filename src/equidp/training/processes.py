"""The processes that train together here: those that a launcher started and that joined a group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch.distributed as dist

from equidp.errors import SettingError
from equidp.kernel.processes import ALONE, Processes

_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that launchers of several processes set for each process."""
_alone: ContextVar[bool] = ContextVar("_alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Inside, this thread trains by itself, even in a process group, to try a run out."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def processes_here() -> Processes:
    """The torch.distributed group of this process; without a group, only this process.

    Raises:
        SettingError: a launcher started several processes, and this one is in no group. Each would train its
            own model, and spend for it.

    >>> processes_here().count
    1
    """
    if _alone.get() or not dist.is_available():
        return ALONE
    if dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    launched = all(name in os.environ for name in _LAUNCHED) and os.environ["WORLD_SIZE"] != "1"
    if launched or dist.is_torchelastic_launched():
        raise SettingError(
            "a launcher such as torchrun started several processes, and this one has joined no group, so "
            "that each would train a model of its own and spend for it. Call "
            "torch.distributed.init_process_group() first.",
            field="process_group",
        )
    return ALONE
