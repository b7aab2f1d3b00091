"""The process of a command: messages on standard error, how it is stopped, its memory, and torchrun's."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.markup import escape

from equidp.errors import ApproximationWarning, CacheWarning, DataWarning, PrivacyWarning, TrainingStopped

if TYPE_CHECKING:
    import torch

PATIENCE = 30.0
"""Seconds that a failed process waits for the first to report the error, because torchrun ends all processes
as soon as one has ended."""
_MEMORY = (
    ("MALLOC_MMAP_THRESHOLD_", -3, (2**31 - 1, 2**25)),  # older versions refuse more than 32 MiB
    ("MALLOC_TRIM_THRESHOLD_", -1, (2**31 - 1,)),
)
"""Environment variables of glibc, its numbers for them, and bytes."""
_console = Console(stderr=True)


def say(text: str, heading: str = "") -> None:
    """Print a message as it is, after a heading in rich's markup, in the first process only."""
    if not rank():
        _print(text, heading)


def _print(text: str, heading: str) -> None:
    _console.print(f"{heading}{escape(text)}", highlight=False, soft_wrap=True)


def fail(text: str) -> NoReturn:
    """End the command with one message, printed by the first process only, and exit code 2."""
    if rank():
        time.sleep(PATIENCE)
    _print(text, f"[bold red]{f'process {rank()}: ' if rank() else ''}error:[/] ")
    sys.exit(2)


def warning_printer() -> Callable[..., None]:
    """Return a `warnings.showwarning` that prints each of equidp's own warnings once, and no others."""
    said: set[str] = set()

    def show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
        own = issubclass(category, PrivacyWarning | DataWarning | ApproximationWarning | CacheWarning)
        if own and str(message) not in said:
            said.add(str(message))
            say(str(message), "[bold yellow]warning:[/] ")

    return show_warning


def exit_code(stopped: KeyboardInterrupt) -> int:
    """Exit code of a command that a signal stopped: 128 and the signal's number."""
    return 128 + (stopped.signal if isinstance(stopped, TrainingStopped) else signal.SIGINT)


@contextmanager
def stoppable(otherwise: str | Callable[[], str]) -> Iterator[None]:
    """End a stopped command with a sentence on how to continue: the interruption's own, or `otherwise`."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        own = str(stopped) if isinstance(stopped, TrainingStopped) else ""
        say(own or (otherwise if isinstance(otherwise, str) else otherwise()))
        sys.exit(exit_code(stopped))


def keep_freed_memory() -> None:
    """Keep memory that a step freed for the next one, in this process and those it starts.

    By default, the C library returns it to the operating system and requests it again page by page. This
    takes a quarter of the time of a step for larger models. Only a program may change this, so the command
    line does, and the library does not. Environment variables that are already set stay as they are.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:
        return
    for name, number, sizes in _MEMORY:
        if name not in os.environ and (taken := next((size for size in sizes if tell(number, size)), None)):
            os.environ[name] = str(taken)


def rank() -> int:
    """Return the number of this process among the processes of torchrun; 0 if there is only one."""
    return int(os.environ.get("RANK", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0


@contextmanager
def several_processes(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started; sums on CUDA devices travel by NCCL, others by Gloo."""
    import torch.distributed as dist

    if not dist.is_torchelastic_launched():
        yield
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
