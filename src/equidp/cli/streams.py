"""Standard streams that never stop a command's work: closed ones, a full disk, a reader that has seen enough.

What can no longer be printed is dropped; `lost_output` says what stood in the way.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


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


def open_closed_streams() -> None:
    """Opens the null device in place of standard streams that the caller closed.

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
    """Lets the process print to streams that never raise: neither where nobody reads, nor for a character."""
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
    """Why standard output took no more of what was printed; None where it took everything."""
    sys.stdout.flush()
    lasting = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return lasting.error if isinstance(lasting, _Lasting) else None
