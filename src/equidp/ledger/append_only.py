"""A file that one process at a time extends, with new bytes on disk before anything relies on them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import final

from filelock import lock_descriptor

from equidp._files import sync_folder
from equidp.errors import BudgetError

_BINARY = getattr(os, "O_BINARY", 0)  # Windows would write "\r\n" for "\n"


def check_ledger_place(path: Path) -> None:
    """Raise BudgetError where something lies at `path` that keeps no record, such as a pipe or a device."""
    try:
        plain = stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return  # nothing is there, or opening it says why it cannot be used
    if not plain:
        raise BudgetError(
            f"the ledger {os.fspath(path)!r} is no plain file, so it would keep no record; name a file.",
            field="path",
        )


@final
class AppendOnlyFile:
    """An open ledger file, made if there is none; a lock of the operating system on it keeps others out.

    Guarantee: when `append` returns, the bytes are on disk. When it raises, rely on none of them.

    | case | outcome |
    | --- | --- |
    | open elsewhere, in this process or another; or not writable | BudgetError when opened |
    | the process that has it open is killed | the system drops the lock; the next opening succeeds |
    | a forked child appends | BudgetError; it may close the file, and the parent keeps its lock |
    | no room: nothing or a part was written | cut off again, BudgetError; a later append can succeed |
    | the part cannot be cut off, or `fsync` fails | BudgetError now and at every later append |
    | the file was moved, replaced or changed by others | BudgetError |
    | a folder, a pipe, a device or a socket, which keep no record | BudgetError when opened |
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken, self._size, self._process, self._file = "", 0, os.getpid(), -1
        check_ledger_place(path)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY, 0o666)
            sync_folder(path.parent)
        except OSError as error:
            self.close()
            raise BudgetError(
                f"the ledger {os.fspath(path)!r} cannot be opened for writing ({error.strerror}); give a "
                "place that can be written.",
                field="path",
            ) from error
        try:
            free = lock_descriptor(self._file, blocking=False)
        except OSError as error:
            self.close()
            raise self._unwritten(error) from error
        if not free:
            self.close()
            raise BudgetError(
                f"the ledger {os.fspath(path)!r} is in use by another process; wait for it, or stop it.",
                field="lock",
            )

    def close(self) -> None:
        """Let other processes have the file. Do nothing the second time."""
        self._release()

    def _release(self, close: Callable[[int], None] = os.close) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            close(file)  # which ends the lock, unless a forked process has it open too

    def __del__(self) -> None:
        self._release()  # at the end of the interpreter too, where names of modules are gone

    @property
    def usable(self) -> bool:
        """True where this process has the file open and no append left it in an unknown state."""
        return self._file >= 0 and os.getpid() == self._process and not self.broken

    def keep(self, size: int, read: int) -> None:
        """Keep the first `size` of the `read` bytes that it holds: what follows is a torn line.

        Raises:
            BudgetError: it holds another number of bytes by now.
        """
        if os.fstat(self._file).st_size != read:
            raise BudgetError(
                f"the ledger {os.fspath(self.path)!r} changed while it was opened; stop what writes to it.",
                field="path",
            )
        if size != read:
            os.ftruncate(self._file, size)
        self._size = size

    def append(self, line: bytes) -> None:
        """Add bytes at the end and sync them to disk."""
        self._check_usable()
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            try:
                os.ftruncate(self._file, self._size)
            except OSError as still:
                self.broken = f"a line was written in part ({still.strerror}); open the ledger again"
            raise self._unwritten(error) from error
        try:
            os.fsync(self._file)
        except OSError as error:
            # After a failed sync nobody can know what is on disk; a second sync may report success wrongly.
            self.broken = f"an earlier line could not be synced ({error.strerror}); open the ledger again"
            raise self._unwritten(error) from error
        self._size += len(line)

    def write_beside(self, path: Path, content: bytes, *, sync: bool = False) -> None:
        """Overwrite the beginning of another file, which is made if there is none."""
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | _BINARY, 0o666)
            try:
                os.write(file, content)
                if sync:
                    os.fsync(file)
                    sync_folder(path.parent)
            finally:
                os.close(file)
        except OSError as error:
            raise self._unwritten(error) from error

    def check_process(self) -> None:
        """Raise in a forked child: it would spend again what its parent spends."""
        if os.getpid() != self._process:
            raise BudgetError(
                f"the ledger {os.fspath(self.path)!r} was opened by another process; spend in the process "
                "that opened it.",
                field="ledger",
            )

    def _check_usable(self) -> None:
        if self._file < 0:
            raise BudgetError(
                f"the ledger {os.fspath(self.path)!r} is closed; open it again.", field="ledger"
            )
        if self.broken:
            raise BudgetError(
                f"the ledger {os.fspath(self.path)!r} cannot go on: {self.broken}.", field="ledger"
            )
        self.check_process()
        try:
            there, ours = os.stat(self.path), os.fstat(self._file)
        except OSError as error:
            raise self._unwritten(error) from error
        if (there.st_dev, there.st_ino, there.st_size) != (ours.st_dev, ours.st_ino, self._size):
            raise BudgetError(
                f"the ledger {os.fspath(self.path)!r} was moved, replaced or edited while in use; put back "
                "the file that was there.",
                field="path",
            )

    def _unwritten(self, error: OSError) -> BudgetError:
        return BudgetError(
            f"the ledger {os.fspath(self.path)!r} cannot be written ({error.strerror}), so training stops "
            "before it spends more. Make room or make it writable, then go on from the last checkpoint.",
            field="path",
        )
