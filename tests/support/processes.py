"""Runs a function in several processes that torch.distributed joins, and returns what each gave or raised."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_SECONDS = 300  # a process that hangs is a failure; nothing here takes a tenth of it

_context = multiprocessing.get_context("forkserver")  # imports once, in a process without threads
_context.set_forkserver_preload(["torch", "torch.distributed", "equidp.training.build", "equidp.individual"])


def together(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(*arguments)` in each of `count` processes: what each returned, or the error it raised.

    Args:
        count: 1: here, without a group.
        function: of a module that can be imported, such as those in `support`.
    """
    if count == 1:
        return [function(*arguments)]
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            _context.Process(target=_run, args=(rank, count, folder, function, arguments))
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_SECONDS)
        hung = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
        assert not hung, f"processes {hung} of {count} still ran after {_SECONDS} seconds"
        outcomes = (Path(folder, f"{rank}.pt") for rank in range(count))
        return [
            torch.load(outcome, weights_only=False) if outcome.exists() else process.exitcode
            for outcome, process in zip(outcomes, processes, strict=True)
        ]


def _run(
    rank: int, count: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ.pop("TORCHELASTIC_RUN_ID", None)
    store = dist.FileStore(os.path.join(folder, "store"), count)
    dist.init_process_group(
        "gloo", rank=rank, world_size=count, store=store, timeout=timedelta(seconds=_SECONDS)
    )
    try:
        outcome = function(*arguments)
    except Exception as error:
        traceback.print_exc()
        outcome = type(error)(str(error))
    torch.save(outcome, os.path.join(folder, f"{rank}.pt"))
