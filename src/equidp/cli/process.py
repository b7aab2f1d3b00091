"""The process of a command: standard streams that last, freed memory that stays, and processes beside it."""

from __future__ import annotations

import ctypes
import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from _typeshed import ReadableBuffer

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


def open_closed_streams() -> None:
    """Open the null device in place of standard streams that the caller closed.

    Otherwise the next file to be opened, such as a ledger, would be standard output to every library.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            if (opened := os.open(os.devnull, os.O_RDWR)) != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            stream = open(number, "r" if number == 0 else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Let the process print to streams that never raise: neither where nobody reads, nor for a character."""
    before = sys.stdout, sys.stderr
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):
                stream.flush()
            again = io.TextIOWrapper(
                io.BufferedWriter(_Lasting(stream.fileno())),
                encoding=stream.encoding,
                errors="backslashreplace",
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, again)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def lost_output() -> OSError | None:
    """Return the reason why standard output took no more; None where it took everything."""
    sys.stdout.flush()
    lasting = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return lasting.error if isinstance(lasting, _Lasting) else None


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


class _Lasting(io.RawIOBase):
    """A file descriptor that takes whatever is written to it, and keeps the first reason why it could not."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, content: ReadableBuffer, /) -> int:
        left = memoryview(content).cast("B")
        size = len(left)
        while len(left) and self.error is None:
            try:
                left = left[os.write(self._descriptor, left) :]
            except OSError as error:
                self.error = error
        return size
