"""The ledger of a dataset: what its runs spend, recorded in advance, the total, and a limit for all.

A run is a name on its lines, so the epsilon of a run and the limit of all runs follow from one place. A line
pays for a block of equal steps, so that not every step waits for the disk. If a block ends early, a further
line returns the steps that were not taken.
"""

from __future__ import annotations

import atexit
import hmac
import json
import math
import os
import secrets
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar, final
from weakref import ref

import numpy as np
import numpy.typing as npt

from equidp._validate import check_number, checked_path, unknown_name
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import checked_delta, epsilon as epsilon_of
from equidp.kernel.event import ROWS, STEP, UNITS, Entries, Event, EventCounts
from equidp.ledger.lines import LineFile, Lines, Record, read_lines, refuse
from equidp.ledger.renyi import best_order, renyi_epsilon

T = TypeVar("T")
FORMAT = 4
_SECONDS = 0.5  # of training that a block should last: what a kill counts too much at most


@final
class Ledger:
    """Records what all runs on one dataset spend, in memory or in a file that one process at a time extends.

    Guarantee: once `charge` has returned, the event is on disk, and it always counts. After a kill, at most
    one block of equal steps counts although it was not taken.

    Formal guarantee of a limit (epsilon, delta): the Renyi divergences of all charged events add up to at
    most r at one order a. The order follows from the first plan (`check`) and is fixed before the first
    charge. The composition of all events then has a divergence of at most r, even if events depend on earlier
    results (Feldman and Zrnic 2021, Theorem 3.1). It is (epsilon, delta)-private with epsilon = r + log(1 -
    1/a) - log(delta a) / (a - 1) (Canonne et al. 2020, Proposition 12).

    | case | outcome |
    | --- | --- |
    | killed inside a block | the whole block counts |
    | an incomplete last line | it paid for nothing, and counts as a block as long as the last |
    | any other line edited, removed or moved | BudgetError when opened |
    | disk full, failed sync, Ctrl-C while a line is written | charges are rejected until it is opened again |
    | the file was moved, replaced or changed by others | BudgetError |
    | open elsewhere, in this process or another | BudgetError |
    | a forked process charges, settles or closes | nothing is written; BudgetError for a charge |
    | several threads | one after the other |
    | copied in memory | the same ledger; pickled: BudgetError |
    | its file is copied | not noticed: each copy counts its own (docs/not-covered.md) |

    Args:
        path: path of the file, created if missing. None: in memory.
        limit: (epsilon, delta) of all runs together. None: the file's limit, or no limit.
        unit: "rows" or "people". None: the file's unit, or "rows".

    Attributes:
        path, limit, unit: as given, or as read from the file.

    Raises:
        SettingError: a value is outside its range.
        BudgetError: the file has another limit or unit, is damaged, in use, of another version, or cannot be
            written.

    >>> ledger = Ledger(limit=(3.0, 1e-5))
    >>> run = ledger.new_run()
    >>> ledger.check(Event(0.02, 1.0), 400)
    >>> ledger.charge(run, Event(0.02, 1.0))
    >>> ledger.count(run, Event(0.02, 1.0)), ledger.spent() < 3.0
    (1, True)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        limit: tuple[float, float] | None = None,
        unit: str | None = None,
    ) -> None:
        self._file: LineFile | None = None
        _check_facts(limit, unit)
        self.path = None if path is None else checked_path(path=path)
        self.limit, self.unit, self._key = limit, unit or ROWS, secrets.token_hex(16)
        self._plan: tuple[EventCounts, float] = ((), 1e-5)  # the first, with its delta
        self._order: float | None = None  # follows from the first plan
        self._counts: dict[str, Counter[Event]] = {}
        self._last: dict[str, str] = {}
        self._checks: dict[str, Callable[[EventCounts], None]] = {}
        self._ahead: _Block | None = None
        self._lock, self._process = threading.RLock(), os.getpid()
        if self.path is None:
            return
        self._file = LineFile(self.path)
        try:
            lines = self._file.read()
            last = self._take_over(lines, limit, unit)
            self._file.keep()
            if not lines.records:
                facts = {"limit": limit, "unit": self.unit, "key": self._key}
                self._file.append({"equidp_ledger": FORMAT, **facts})
            if lines.torn and last is not None:
                self._pay(*last, interrupted=True)
        except BaseException:
            self._file.close()
            raise
        atexit.register(_close_if_open, ref(self))

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        limit: tuple[float, float] | None = None,
        unit: str | None = None,
    ) -> Ledger:
        """Read a ledger's file as it is now, to inspect it or to try out a plan.

        The file is neither locked nor changed, and another process may continue to write it.

        Raises:
            BudgetError: the file is no ledger, is damaged, or has another limit or unit.
        """
        ledger = cls()
        ledger.path = checked_path(path=path)
        lines = read_lines(ledger.path)
        if not lines.records:
            refuse(ledger.path, "holds no ledger; expected a file that equidp wrote")
        last = ledger._take_over(lines, limit, unit)
        if lines.torn and last is not None:
            ledger._pay(*last)
        return ledger

    @staticmethod
    def new_run(*, seeded: bool = False) -> str:
        """Return a random name for a run, which records whether its noise follows from a seed.

        A seeded run is private only to those who do not know the seed."""
        return ("seeded-" if seeded else "") + secrets.token_hex(8)

    def check(self, event: Event, steps: int, *, beside: Entries = (), delta: float | None = None) -> None:
        """Check a plan against the limit before any of it is spent. The first plan decides the order.

        Args:
            event, steps: event of each step, and number of steps.
            beside: plan's releases in addition to its steps.
            delta: delta of the run, from which a ledger without a limit chooses its order.

        Raises:
            BudgetError: the plan exceeds the limit. The message says how many steps fit, or at which epsilon
                all do.
        """
        with self._lock:
            plan = (*beside, (event, steps)) if steps else tuple(beside)
            if not self._counts:
                self._plan = plan, delta or 1e-5
            if self._fits(plan):
                return
            fitting = bisect_left(range(1, steps), True, key=lambda n: not self._fits((*beside, (event, n))))
            assert self.limit is not None
            raise BudgetError(
                f"the plan of {steps:,} steps ({event}) does not fit the ledger's limit: epsilon "
                f"{self.spent():.4g} of {self.limit[0]:g} is spent, and {fitting:,} of the steps fit; all of "
                f"them fit at {self._fitting_epsilon(event, steps, beside, delta)}. Plan for a smaller "
                "epsilon or fewer steps; nothing was spent.",
                field="ledger",
            )

    def _fitting_epsilon(self, event: Event, steps: int, beside: Entries, delta: float | None) -> str:
        """Return the epsilon of the plan with as much more noise as fits, in words."""
        assert self.limit is not None

        def noisier(factor: float) -> EventCounts:
            statistics = None if event.statistics_noise is None else factor * event.statistics_noise
            changed = replace(event, noise=factor * event.noise, statistics_noise=statistics)
            return (*beside, (changed, steps))

        factors = [1.01**power for power in range(1, 500)]
        at = bisect_left(factors, True, key=lambda factor: self._fits(noisier(factor)))
        if at == len(factors):
            return "no epsilon"
        epsilon = epsilon_of(noisier(factors[at]), delta or self.limit[1])
        return f"epsilon {math.floor(1000 * epsilon) / 1000:g}"

    def charge(self, run: str, event: Event, ahead: int = 1) -> None:
        """Record one more event of a run, and return once it is on disk.

        Args:
            run: name of the run.
            event: event to pay for.
            ahead: number of such events that the run has left, including this one. They may be paid in one
                block.

        Raises:
            BudgetError: the event exceeds the limit or cannot be written. Draw no noise then.
        """
        with self._lock:
            self._check_usable()
            block = self._ahead
            if block is None or (block.run, block.event) != (run, event) or not block.left:
                block = self._pay_ahead(run, event, ahead)
            block.left -= 1

    def release(self, run: str, name: str, noise: float, draw: Callable[[float], T]) -> T:
        """Pay for one release of all examples that is not a training step, and draw it.

        Args:
            run: name of the run.
            name: name of the release.
            noise: noise multiplier, in units of the sensitivity to one example.
            draw: function of the noise multiplier, called once, after the payment is on disk.

        >>> ledger = Ledger()
        >>> ledger.release(ledger.new_run(), "class counts", 20.0, lambda noise: noise)
        20.0
        """
        if name == STEP:
            raise SettingError(f"name={name!r}; expected the name of a release; this one is for steps.")
        self.charge(run, Event(1.0, noise, name=name))
        return draw(noise)

    def refuse_by(self, run: str, check: Callable[[EventCounts], None]) -> None:
        """Call `check`, before a run pays, with all that it would then have spent. It raises to reject."""
        self._checks[run] = check

    def settle(self) -> None:
        """Refund the steps of the last block that were not taken."""
        with self._lock:
            block, self._ahead = self._ahead, None  # first: whatever happens to the line, they are not paid
            if block is not None and block.left:
                self._pay(block.run, block.event, -block.left)

    def close(self) -> None:
        """Settle, and release the file for other processes."""
        with self._lock:
            if self._file is None:
                return
            try:
                with suppress(BudgetError):  # forked, interrupted or closed: the block counts in full
                    self.settle()
            finally:
                self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:  # noqa: SIM105 - at the end of the interpreter, `suppress` may be gone, as other names are
            self.close()
        except BaseException:
            pass

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self

    def __reduce__(self) -> NoReturn:
        raise BudgetError(
            "a ledger cannot be sent to another process: both would spend its limit. Train in one process "
            "(n_jobs=1).",
            field="ledger",
        )

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs, in order of their first lines."""
        return tuple(self._counts)

    def entries(self, run: str | None = None) -> EventCounts:
        """(event, count) pairs of a run (None: of all runs), without events that were only paid ahead."""
        with self._lock:
            total: Counter[Event] = Counter()
            for each in self._counts if run is None else [run]:
                total.update(self._counts.get(each, {}))
            if self._ahead is not None and run in (None, self._ahead.run):
                total[self._ahead.event] -= self._ahead.left
        return tuple((event, count) for event, count in total.items() if count)

    def count(self, run: str, event: Event) -> int:
        """Return the number of these events that a run has spent."""
        with self._lock:
            count, block = self._counts.get(run, Counter())[event], self._ahead
            if block is not None and (block.run, block.event) == (run, event):
                count -= block.left
        return count

    @property
    def order(self) -> float:
        """Order of the Renyi divergences that add up over all runs, chosen to fit the first plan best."""
        if self._order is not None:
            return self._order
        entries, delta = self._plan
        order = best_order(entries or ((Event(0.05, 1.0), 1),), self.limit, delta)
        if self._counts:  # the plan is fixed; in memory, few ever ask for the order
            self._order = order
        return order

    def spent(self, entries: Entries = (), *, delta: float | None = None) -> float:
        """Return epsilon of all charged events and of `entries`, at the ledger's order.

        Args:
            entries: further (event, count) pairs to include.
            delta: delta of the result. None: the limit's delta.

        Raises:
            SettingError: there is neither a delta nor a limit.
        """
        if delta is None:
            if self.limit is None:
                raise SettingError("delta=None; expected a delta, as the ledger has no limit.")
            delta = self.limit[1]
        return renyi_epsilon((*self.entries(), *entries), self.order, checked_delta(delta))

    def last_check(self, run: str) -> str:
        """Return the checksum of a run's last line, which is chained to all earlier lines. "": no line."""
        return self._last.get(run, "")

    def column(self, names: Sequence[str], labels: npt.ArrayLike) -> str:
        """Return a digest of a column of labels. In this ledger, equal names and labels have equal digests.

        The digest uses a key of this ledger, so that others cannot guess labels by trying them out.

        Args:
            names: names of the labels.
            labels: index of each example's label, [n].
        """
        content = json.dumps(list(names)).encode() + np.asarray(labels).astype("<i8").tobytes()
        return hmac.digest(bytes.fromhex(self._key), content, "sha256").hex()[:16]

    def _check_usable(self) -> None:
        if self._file is not None:
            self._file.check_usable()
        elif os.getpid() != self._process:
            raise BudgetError("the ledger was made by another process; charge there.", field="ledger")
        elif self.path is not None:
            refuse(self.path, "was opened to be read; open it to charge", "ledger")

    def _fits(self, entries: Entries) -> bool:
        return self.limit is None or self.spent(entries) <= self.limit[0]

    def _pay_ahead(self, run: str, event: Event, ahead: int) -> _Block:
        """Pay for a block: twice as long as the last of its kind if that was short, half if it was long."""
        last, size = self._ahead, 1
        self.settle()
        if last is not None and (last.run, last.event) == (run, event):
            size, lasted = last.size, time.monotonic() - last.began
            if lasted < _SECONDS / 2:
                size *= 2
            elif lasted > 2 * _SECONDS:
                size = max(1, size // 2)
        count = 1 if self._file is None else max(1, min(size, ahead))
        if run in self._checks:
            self._checks[run]((*self.entries(run), (event, count)))
        if self._order is None and not self._counts:
            self._fix_order(event, ahead)
        while not self._fits(((event, count),)):
            if count == 1:
                assert self.limit is not None
                raise BudgetError(
                    f"a {event.name} ({event}) does not fit the ledger's limit: epsilon "
                    f"{self.spent():.4g} of {self.limit[0]:g} is spent. Nothing more "
                    "is; what was released stays private.",
                    field="ledger",
                )
            count //= 2
        self._pay(run, event, count)
        self._ahead = _Block(run, event, count, size, time.monotonic())
        return self._ahead

    def _fix_order(self, event: Event, ahead: int) -> None:
        """Fix what the order follows from before the first charge. A file keeps the order."""
        if not self._plan[0]:
            self._plan = ((event, ahead),), self._plan[1]
        if self._file is not None:
            self._order = self.order
            self._file.append({"order": self._order})

    def _pay(self, run: str, event: Event, count: int, **more: bool) -> None:
        if self._file is not None:
            day = datetime.now(UTC).date().isoformat()
            self._file.append({"run": run, "event": asdict(event), "count": count, "day": day, **more})
            self._last[run] = self._file.check
        self._counts.setdefault(run, Counter())[event] += count

    def _take_over(
        self, lines: Lines, limit: tuple[float, float] | None, unit: str | None
    ) -> tuple[str, Event, int] | None:
        """Take over the lines of a file, and return its last block; reject facts that differ from its own."""
        assert self.path is not None
        if lines.records:
            self._take_over_facts(self.path, lines.records[0][0])
        last = None
        for record, check in lines.records[1:]:
            if "order" in record:
                self._order = record["order"]
                continue
            run, event, count = record["run"], Event.of_record(record["event"]), record["count"]
            self._counts.setdefault(run, Counter())[event] += count
            self._last[run] = check
            last = (run, event, count) if count > 0 else last
        for name, given, there in (("limit", limit, self.limit), ("unit", unit, self.unit)):
            if given not in (None, there):
                refuse(self.path, f"has {name}={there}, not {given}: leave it out, it does not change", name)
        return last

    def _take_over_facts(self, path: Path, record: Record) -> None:
        if (found := record.get("equidp_ledger")) != FORMAT:
            refuse(
                path,
                f"has format {found}, and this version of equidp reads format {FORMAT}; go on with the "
                "version that wrote it, or give a new file what is left",
                "format",
            )
        self.limit = None if record["limit"] is None else tuple(record["limit"])
        self.unit, self._key = record["unit"], record["key"]


@dataclass
class _Block:
    """Equal steps that are paid for, and on disk.

    Attributes:
        run, event: run and event of the steps.
        left: number of steps not taken yet.
        size: size that the block would have had without an end in sight.
        began: when, by the monotonic clock.
    """

    run: str
    event: Event
    left: int
    size: int
    began: float


def _close_if_open(ledger: ref[Ledger]) -> None:
    if (left_open := ledger()) is not None:
        left_open.close()


def _check_facts(limit: tuple[float, float] | None, unit: str | None) -> None:
    if limit is not None:
        if not (isinstance(limit, tuple | list) and len(limit) == 2):
            raise SettingError(f"limit={limit!r}; expected (epsilon, delta), such as (3.0, 1e-5).")
        check_number("(0, inf]", epsilon=limit[0])
        checked_delta(limit[1])
    if unit is not None and unit not in UNITS:
        raise unknown_name("unit", unit, UNITS)
