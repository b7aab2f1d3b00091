"""A ledger on disk: what was spent survives whatever stops the process.

Lines are only added, and are on disk before a step that they pay for draws noise (`append_only`). To sync
less often than once a step, a line pays for a block of equal steps (`PayAhead`); a block that ends early
gets a line with the number of its unspent steps. Checksums (`ledger_format`) find mistakes, not fraud:
rewriting every line and the seal can make a ledger say anything.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final
from weakref import WeakSet

from equidp._validate import checked_path
from equidp.errors import BudgetError
from equidp.kernel.ledger import Event, Ledger, MemoryLedger, checked_unit, new_session
from equidp.ledger.append_only import AppendOnlyFile, check_ledger_place
from equidp.ledger.format import (
    FORMAT,
    HEADER,
    LedgerContent,
    chained_line,
    check_seal,
    parse_ledger,
    plain,
    seal_path,
)

Kind = tuple[Event, str]
"""An event, and the session that it is paid for."""

_open_ledgers: WeakSet[LedgerFile] = WeakSet()
"""Ledgers of this process, some of them closed already."""


@atexit.register
def close_ledgers() -> None:
    """Close ledgers that are open when the interpreter ends: unspent steps of a block do not count."""
    for ledger in list(_open_ledgers):
        ledger.close()


_SECONDS = 0.5
"""Training that a block should last: what a kill may count too much."""


@final
class LedgerFile(Ledger):
    """A ledger that is written to a file, by one process at a time, with a seal (`.seal`) beside it.

    Guarantee: the file counts every step whose `spend` returned, and after a kill at most one block of steps
    more.

    | case | outcome |
    | --- | --- |
    | killed inside a block | the whole block counts |
    | left open until the interpreter ends | closed then: the spent steps of the block count |
    | killed while a line was written | it never paid for noise; counted as a block as long as the last |
    | killed before the first line was complete | a new ledger |
    | a line edited, removed, or moved; seal missing; a format of an older equidp | BudgetError when opened |
    | steps of two sessions in turn, as in a budget | each line pays for one session |
    | steps of a kind that was not announced by `expect`, and releases | paid for one by one |

    Args:
        path: the file; made if there is none.
        run: a name for what this process does; for readers.
        facts: plain values that a new file begins with.

    Raises:
        SettingError: the path is no text and no Path.
        BudgetError: the file is damaged, was edited, is in use by another process, or cannot be written;
            always before a step that cannot be recorded draws noise.

    >>> import tempfile
    >>> from equidp.kernel.ledger import StepEvent
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with LedgerFile(folder + "/ledger") as ledger:
    ...         ledger.spend(StepEvent(sample_rate=0.01, noise_multiplier=1.0))
    ...     with LedgerFile(folder + "/ledger") as ledger:
    ...         ledger.steps
    1
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        run: str = "run",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.run = checked_path(path=path), run
        self._spent, self._ahead = MemoryLedger(), PayAhead()
        self._announced = False
        self._threads = threading.RLock()
        self._check, self._lines = "", 0
        check_ledger_place(self.path)
        if self.path.is_file() and os.access(self.path, os.R_OK):
            _read(self.path)  # refused before anything is written
        self._file = AppendOnlyFile(self.path)
        _open_ledgers.add(self)
        try:
            self._recover(facts or {})
        except BaseException:
            self._file.close()
            raise

    def spend(self, event: Event, session: str = "") -> None:
        """Record one more step, of this process or of the session named; return once that is on disk."""
        with self._threads:
            self._file.check_process()
            kind = (event, session or self._session)
            if not self._ahead.covers(kind):
                self._pay_ahead(kind)
            self._ahead.take(kind)
            self._spent.spend(*kind)

    def expect(self, event: Event, steps: int, session: str = "") -> None:
        """Allow blocks of this kind to reach `steps` steps ahead."""
        with self._threads:
            self._ahead.expect((event, session or self._session), steps)

    @property
    def unit(self) -> str:
        return str(self.facts.get("unit", ""))

    def take_unit(self, unit: str) -> None:
        kept = self.unit if self.steps else ""
        if checked_unit(kept, unit, f"the ledger {os.fspath(self.path)!r}") != self.unit:
            self.add_facts({"unit": unit})

    def settle(self) -> None:
        """Write how many steps of the last block were not spent; no more of its kind are expected."""
        with self._threads:
            if self._ahead.kind is not None:
                self._append({"unspent": self._ahead.end(forget=True)})

    @property
    def entries(self) -> tuple[tuple[Event, int], ...]:
        return self._spent.entries

    @property
    def session(self) -> str:
        return self._session

    @property
    def by_session(self) -> Mapping[str, Mapping[Event, int]]:
        return self._spent.by_session

    @property
    def check(self) -> str:
        """Checksum of the last line: a name for all that the ledger says."""
        return self._check

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Add plain values to those that the file began with; later ones replace earlier ones."""
        with self._threads:
            self._append({"facts": dict(facts)})
            self.facts |= facts

    def close(self) -> None:
        """Settle and let other processes have the file."""
        with self._threads:
            if self._file.usable:
                with contextlib.suppress(BudgetError):  # the block counts in full then
                    self.settle()
            self.abandon()

    def abandon(self) -> None:
        """Close the file as a kill would: the block in use counts in full."""
        self._file.close()

    def __enter__(self) -> LedgerFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pay_ahead(self, kind: Kind) -> None:
        previous = self._ahead.kind
        if self._ahead.left:
            # Ended first: nothing is spent from a block whose rest may have been given back, written or not.
            self._append({"unspent": self._ahead.end()})
        if not self._announced:
            self._append({"run": self.run, "time": _today()})
            self._announced = True
        steps = self._ahead.size(kind, time.monotonic(), previous)
        self._append(self._block_record(kind, steps))
        self._ahead.begin(kind, steps, time.monotonic())

    def _append(self, record: Mapping[str, Any]) -> None:
        line, check = chained_line(self._check, record)
        self._file.append(line)
        self._check, self._lines = check, self._lines + 1
        self._write_seal()

    def _write_seal(self, *, sync: bool = False) -> None:
        content = f"{self._lines:>12} {self._check}\n".encode()
        self._file.write_beside(seal_path(self.path), content, sync=sync)

    def _recover(self, facts: Mapping[str, Any]) -> None:
        """Take over what earlier processes wrote."""
        content, read = _read(self.path)
        seal = seal_path(self.path)
        check_seal(self.path, read, seal.read_text(errors="replace") if seal.exists() else "")
        self._lines, self._check = len(read.checks), read.checks[-1] if read.checks else ""
        self._file.keep(len(content) - len(read.torn), len(content))
        self._session = new_session(read.facts.get("id", ""))
        self.facts = {**facts, "id": self.run_id} if not read.checks else read.facts
        if not read.checks:
            self._append({"equidp_ledger": FORMAT, "id": self.run_id, "time": _today(), **facts})
        self._write_seal(sync=True)
        for block in read.blocks:
            self._spent.count(block.event, block.steps, block.session)
        if read.torn and read.blocks:
            last, steps = read.blocks[-1], max(read.blocks[-1].steps, 1)
            self._append({**self._block_record((last.event, last.session), steps), "torn": True})
            self._spent.count(last.event, steps, last.session)

    def _block_record(self, kind: Kind, steps: int) -> dict[str, Any]:
        return {**plain(kind[0]), "steps": steps, "for": kind[1], "time": _today()}


def _read(path: Path) -> tuple[bytes, LedgerContent]:
    """The bytes of a file and what they say; refuses a file that is no ledger."""
    content = path.read_bytes()
    read = parse_ledger(path, content)
    if not read.checks and not HEADER.startswith(read.torn[: len(HEADER)]):
        raise BudgetError(
            f"{os.fspath(path)!r} holds no ledger; name one that equidp wrote, or one that is not there yet.",
            field="path",
        )
    return content, read


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


@final
class PayAhead:
    """Sizes of blocks of equal steps, and what is left of the block in use. Reads no clock and writes
    nothing.

    Guarantee: after `begin(kind, steps)`, `covers(kind)` holds for at most `steps` calls of `take`, and never
    for another event or session. Blocks of steps that were not announced by `expect` have size 1.
    """

    def __init__(self) -> None:
        self._expected: dict[Kind, int] = {}
        self.kind: Kind | None = None
        self.left = self._size = 0
        self._began = 0.0

    def expect(self, kind: Kind, steps: int) -> None:
        """Allow blocks of this kind to reach `steps` steps ahead."""
        self._expected[kind] = steps

    def covers(self, kind: Kind) -> bool:
        """Return whether the block in use pays for one more step of this kind."""
        return kind == self.kind and self.left > 0

    def size(self, kind: Kind, seconds: float, previous: Kind | None) -> int:
        """Steps of the next block: doubled after a short block of the same kind, halved after a long one."""
        lasted = seconds - self._began
        if kind != previous:
            self._size = 1
        elif lasted < _SECONDS / 2:
            self._size *= 2
        elif lasted > 2 * _SECONDS:
            self._size = max(1, self._size // 2)
        return max(1, min(self._size, self._expected.get(kind, 0)))

    def begin(self, kind: Kind, steps: int, seconds: float) -> None:
        """Put a block in use that is on disk."""
        self.kind, self.left, self._began = kind, steps, seconds

    def take(self, kind: Kind) -> None:
        """Spend one step of the block in use."""
        self.left -= 1
        self._expected[kind] = max(0, self._expected.get(kind, 0) - 1)

    def end(self, *, forget: bool = False) -> int:
        """End the block in use and return its unspent steps; `forget`: no more of its kind are expected."""
        left = self.left
        if forget and self.kind is not None:
            self._expected.pop(self.kind, None)
        self.kind, self.left = None, 0
        return left
