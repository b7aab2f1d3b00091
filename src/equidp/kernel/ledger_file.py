"""A ledger on disk: what was spent survives whatever stops the process.

Each line is a JSON record and a checksum that chains it to the line before. Lines are only ever added, and synced to disk before a
step they pay for draws its noise. One sync for each step would be slow, so a line pays for a block of equal steps ahead, about half
a second's worth; a block that ends early gets a line that says how many of its steps were not spent. A process that is killed
leaves that line out, so the whole block counts: never less than was spent, and at most one block more.

Checksums find mistakes, not fraud: whoever rewrites every line and the seal can make a ledger say anything.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from equidp._files import sync_folder
from equidp.errors import BudgetError
from equidp.kernel.ledger import Ledger, StepEvent
from equidp.kernel.ledger_format import FORMAT, HEADER, chained_line, check_seal, parsed, seal_path

_BLOCK_SECONDS = 0.5
"""A block holds about so much training: what a kill may count too much."""


class LedgerFile(Ledger):
    """A ledger that is written to a file, one process at a time.

    Beside the file lies its seal (`.seal`), which remembers how many lines there were and the checksum of the last, so that lines
    missing at the end are noticed. A last line that was torn never paid for noise; its block is counted nevertheless.

    Args:
        path: the file; made if there is none.
        run: what this process calls what it does; for readers.
        facts: plain values to begin a new file with.

    Raises:
        BudgetError: the file is damaged, was edited, is in use by another process, or cannot be written; always before any step
            that could not be recorded is spent.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, run: str = "run", facts: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.path, self.run = Path(path), run
        self._expected: dict[StepEvent, int] = {}
        self._event: StepEvent | None = None
        self._left = self._block = 0
        self._began = 0.0
        self._announced = False
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._broken = ""
        self._check, self._size, self._lines = "", 0, 0
        self._file, self._seal = self._opened(self.path), -1
        try:
            self._lock_file()
            self._recover(facts or {})
        except BaseException:
            self._close_files()
            raise

    def spend(self, event: StepEvent) -> None:
        """Records one more step; returns once that is on disk."""
        with self._lock:
            self._check_process()
            if event != self._event or not self._left:
                self._pay_ahead(event)
            self._left -= 1
            self._expected[event] = max(0, self._expected.get(event, 0) - 1)
            super().spend(event)

    def expect(self, event: StepEvent, steps: int) -> None:
        """Allows blocks of this kind as far as `steps` steps ahead."""
        with self._lock:
            self._expected[event] = steps

    def settle(self) -> None:
        """Writes how many steps of the last block were not spent; no more of its kind are expected."""
        with self._lock:
            if self._event is not None:
                self._expected.pop(self._event, None)
                self._give_back()

    def close(self) -> None:
        """Settles and lets other processes have the file."""
        with self._lock:
            if self._file >= 0 and os.getpid() == self._process and not self._broken:
                with contextlib.suppress(BudgetError):  # the block counts in full then
                    self.settle()
            self._close_files()

    def __enter__(self) -> LedgerFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._close_files()

    @property
    def check(self) -> str:
        """Checksum of the last line: a name for all that the ledger says."""
        return self._check

    def _pay_ahead(self, event: StepEvent) -> None:
        same = event == self._event
        if self._left:
            self._give_back()
        if not self._announced:
            self._append({"run": self.run, "time": _now()})
            self._announced = True
        elapsed = time.monotonic() - self._began
        if not same:
            self._block = 1
        elif elapsed < _BLOCK_SECONDS / 2:
            self._block *= 2
        elif elapsed > 2 * _BLOCK_SECONDS:
            self._block = max(1, self._block // 2)
        steps = max(1, min(self._block, self._expected.get(event, 0)))
        self._append({"spend": asdict(event), "steps": steps, "time": _now()})
        self._event, self._left, self._began = event, steps, time.monotonic()

    def _give_back(self) -> None:
        left = self._left
        # First, so that nothing is spent from a block whose rest may have been given back, whether or not that gets written.
        self._event, self._left = None, 0
        self._append({"unspent": left})

    def _append(self, record: Mapping[str, Any]) -> None:
        """Adds a line and syncs it; if that fails, nothing was spent, and the error says so."""
        self._check_usable()
        line, check = chained_line(self._check, record)
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._take_back()
            raise self._unwritten(error) from error
        try:
            os.fsync(self._file)
        except OSError as error:
            # What of the line is on disk cannot be known any more, nor whether a second try would tell.
            self._broken = f"an earlier line could not be synced ({error.strerror}); open the ledger anew"
            raise self._unwritten(error) from error
        self._check, self._size, self._lines = check, self._size + len(line), self._lines + 1
        self._write_seal()

    def _write_seal(self) -> None:
        try:
            os.pwrite(self._seal, f"{self._lines:>12} {self._check}\n".encode(), 0)
        except OSError as error:
            raise self._unwritten(error) from error

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._file, self._size)
        except OSError as error:
            self._broken = f"a line was written in part ({error.strerror}); open the ledger anew"

    def _unwritten(self, error: OSError) -> BudgetError:
        return BudgetError(
            f"the ledger {os.fspath(self.path)!r} cannot be written ({error.strerror}), so training stops before it spends more. "
            "Make room or make it writable, then go on from the last checkpoint."
        )

    def _check_usable(self) -> None:
        if self._file < 0:
            raise BudgetError(f"the ledger {os.fspath(self.path)!r} is closed; open it anew.")
        if self._broken:
            raise BudgetError(f"the ledger {os.fspath(self.path)!r} cannot go on: {self._broken}.")
        self._check_process()
        try:
            there, ours = os.stat(self.path), os.fstat(self._file)
        except OSError as error:
            raise self._unwritten(error) from error
        if (there.st_dev, there.st_ino, there.st_size) != (ours.st_dev, ours.st_ino, self._size):
            raise BudgetError(
                f"the ledger {os.fspath(self.path)!r} was moved, replaced or edited while in use; put back the file that was there."
            )

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise BudgetError(
                f"the ledger {os.fspath(self.path)!r} was opened by another process; spend in the process that opened it."
            )

    def _opened(self, path: Path) -> int:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_APPEND if path == self.path else 0), 0o666)
            sync_folder(path.parent)
        except OSError as error:
            raise BudgetError(
                f"the ledger {os.fspath(path)!r} cannot be opened for writing ({error.strerror}); give a place that can be written."
            ) from error
        return file

    def _lock_file(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise self._unwritten(error) from error
            raise BudgetError(
                f"the ledger {os.fspath(self.path)!r} is in use by another process; wait until it is done, or stop it."
            ) from None

    def _close_files(self) -> None:
        for name in ("_file", "_seal"):
            file = getattr(self, name, -1)
            if file >= 0:
                setattr(self, name, -1)
                os.close(file)

    def _recover(self, facts: Mapping[str, Any]) -> None:
        """Takes over what earlier processes wrote."""
        content = self.path.read_bytes()
        read = parsed(self.path, content)
        if not read.checks and not HEADER.startswith(read.torn[: len(HEADER)]):
            raise BudgetError(
                f"{os.fspath(self.path)!r} holds no ledger; name a file that equidp wrote, or one that is not there yet."
            )
        self._seal = self._opened(seal_path(self.path))
        check_seal(self.path, read, seal_path(self.path).read_text(errors="replace"))
        self._lines, self._check = len(read.checks), read.checks[-1] if read.checks else ""
        self._size = len(content) - len(read.torn)
        if read.torn:
            os.ftruncate(self._file, self._size)
        if not read.checks:
            self._append({"equidp_ledger": FORMAT, "time": _now(), **facts})
        self._write_seal()
        os.fsync(self._seal)
        self.facts = read.facts if read.checks else dict(facts)
        for block in read.blocks:
            self._count(block.event, block.steps)
        if read.torn and read.blocks:
            last = max(read.blocks[-1].steps, 1)
            event = read.blocks[-1].event
            self._append({"spend": asdict(event), "steps": last, "time": _now(), "torn": True})
            self._count(event, last)

    def _count(self, event: StepEvent, steps: int) -> None:
        if self._entries and self._entries[-1][0] == event:
            steps += self._entries.pop()[1]
        if steps:
            self._entries.append((event, steps))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
