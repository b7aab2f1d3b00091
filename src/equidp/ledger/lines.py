"""A file of lines that are only added. Each is on disk before anything relies on it, and ends with a checksum
that is chained to the line before. Checksums find mistakes, not fraud."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, final

from filelock import lock_descriptor

from equidp._files import sync_folder
from equidp.errors import BudgetError

Record = dict[str, Any]
_BEGIN = b'{"equidp_ledger":'


class Lines(NamedTuple):
    """The content of a file.

    Attributes:
        records: records of the whole lines, each with its checksum.
        size: size of the whole lines, in bytes.
        torn: whether an incomplete line follows.
    """

    records: tuple[tuple[Record, str], ...]
    size: int
    torn: bool


@final
class LineFile:
    """A file that one process at a time extends; created if missing, and locked.

    Guarantee: when `append` returns, the line is on disk. When it raises, or is interrupted, nobody knows the
    end of the file, and this object adds no more.

    Args:
        path: path of the file.

    Attributes:
        check: checksum of the last line.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.check = path, ""
        self._broken, self._size, self._process, self._file = "", 0, os.getpid(), -1
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            self._file = os.open(path, flags, 0o666)
            sync_folder(path.parent)
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                refuse(path, "is no plain file, so it would keep no record; name a file")
            if not lock_descriptor(self._file, blocking=False):
                refuse(path, "is in use by another process, or twice in this one; close it there", "lock")
        except OSError as error:
            self.close()
            refuse(path, f"cannot be opened for writing ({error.strerror}); name another place")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other processes have the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)  # which ends the lock, unless a forked process has it open too

    def read(self) -> Lines:
        """Return the complete lines, to continue after them once `keep` is called."""
        lines = read_lines(self.path)
        self.check = lines.records[-1][1] if lines.records else ""
        self._size = lines.size
        return lines

    def keep(self) -> None:
        """Cut off the rest of an incomplete line."""
        os.ftruncate(self._file, self._size)

    def check_usable(self) -> None:
        """Raise a BudgetError if no line can be added."""
        if os.getpid() != self._process:
            refuse(self.path, "was opened by another process; charge there", "ledger")
        if self._broken or self._file < 0:
            refuse(self.path, f"{self._broken or 'is closed'}; open it again", "ledger")

    def append(self, record: Record) -> None:
        """Add a line, and return once it is on disk."""
        self.check_usable()
        text = json.dumps(record, separators=(",", ":"))
        check = _checksum(self.check, text)
        line = f"{text} {check}\n".encode()
        self._broken = "was interrupted while a line was written"  # until the line is on disk
        try:
            there, ours = os.stat(self.path), os.fstat(self._file)
            if (there.st_dev, there.st_ino, there.st_size) != (ours.st_dev, ours.st_ino, self._size):
                refuse(self.path, "was moved, replaced or changed while in use; put back the file")
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        except OSError as error:
            refuse(
                self.path,
                f"cannot be written ({error.strerror}), so nothing more is spent. Make room or make it "
                "writable, then go on from the last checkpoint",
            )
        self.check, self._size = check, self._size + len(line)
        self._broken = ""


def read_lines(path: Path) -> Lines:
    """Return the lines of a file, which is neither locked nor changed: another process may extend it.

    Raises:
        BudgetError: the file cannot be read, or a line before the last has changed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        refuse(path, f"cannot be read ({error.strerror})")
    lines, check, size = content.splitlines(keepends=True), "", 0
    records: list[tuple[Record, str]] = []
    for number, line in enumerate(lines, start=1):
        text, _, given = line[:-1].decode(errors="replace").rpartition(" ")
        record = _record(text) if line.endswith(b"\n") else None
        begins = number > 1 or _BEGIN.startswith(line[: len(_BEGIN)])
        if record is None and number == len(lines) and begins:
            break
        check = _checksum(check, text)
        if record is None or given != check:
            why = f"is not a ledger, or was edited or damaged in line {number}; bring back the file"
            refuse(path, why, "checksum")
        records.append((record, check))
        size += len(line)
    return Lines(tuple(records), size, size < len(content))


def refuse(path: Path, why: str, field: str = "path") -> NoReturn:
    """Raise a BudgetError that names the file."""
    raise BudgetError(f"the ledger {os.fspath(path)!r} {why}.", field=field)


def _record(text: str) -> Record | None:
    """The record of a line, or None if it is not a record."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _checksum(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()[:32]
