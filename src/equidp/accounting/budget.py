"""One budget for all that is trained on one dataset."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from typing import Any, final
from weakref import WeakKeyDictionary

from equidp._validate import check_number
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import checked_accountant, checked_delta, epsilon as epsilon_of
from equidp.kernel.ledger import Ledger, MemoryLedger, StepEvent
from equidp.kernel.ledger_file import LedgerFile

Entries = tuple[tuple[StepEvent, int], ...]


@final
class PrivacyBudget:
    """A limit on what all runs on one dataset may spend together; their steps are accounted for together.

    Give it to each `Trainer(..., budget=budget)`. A run that does not fit into what is left is refused before
    it spends anything.

    Args:
        path: a ledger file that outlives the process, used by one process at a time; None: kept in memory.
        epsilon, delta: the most that all runs together may spend. A file remembers them: leave them out for a
            file that exists; they cannot be changed.
        accountant: a name from `ACCOUNTANTS`.
        run: a name for what this process does; for readers of the file.

    Raises:
        SettingError: a number outside its range, an unknown accountant, or a new budget without epsilon or
        delta. BudgetError: the file has another budget, is damaged, in use, or cannot be written.

    >>> from equidp.kernel.ledger import StepEvent
    >>> budget = PrivacyBudget(epsilon=3.0, delta=1e-5, accountant="rdp")
    >>> event = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> budget.fits(event, 100), budget.fits(event, 10_000)
    (True, False)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        accountant: str | None = None,
        run: str = "training",
    ) -> None:
        if epsilon is not None:
            check_number("(0, inf]", epsilon=epsilon)
        given = {"epsilon": epsilon, "delta": delta, "accountant": accountant}
        known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        facts = {"accountant": "pld", **known}
        if delta is not None:
            checked_delta(delta)
        checked_accountant(facts["accountant"])
        if (epsilon is None or delta is None) and (path is None or not _has_a_line(path)):
            raise SettingError(
                f"epsilon={epsilon}, delta={delta}; a new budget needs both (of a command, --budget-epsilon "
                "and --budget-delta)."
            )
        self.path = path
        self._ledger: MemoryLedger | LedgerFile = MemoryLedger()
        if path is not None:
            self._ledger = LedgerFile(path, run=run, facts={"budget": facts})
            facts = self._agreed(self._ledger.facts.get("budget"), known)
        self._lock, self._process = threading.RLock(), os.getpid()
        self._planned: WeakKeyDictionary[Ledger, tuple[StepEvent, int]] = WeakKeyDictionary()
        self.epsilon, self.delta, self.accountant = facts["epsilon"], facts["delta"], facts["accountant"]

    def _agreed(self, kept: dict[str, Any] | None, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the facts of the file; raises where an argument contradicts them."""
        if kept is None:
            self.close()
            raise BudgetError(
                f"{self.path!r} is the ledger of a single run, not a budget; name another file."
            )
        for name, value in given.items():
            if kept[name] != value:
                self.close()
                raise BudgetError(
                    f"the budget {os.fspath(self.path or '')!r} was made with {name}={kept[name]}, not "
                    f"{value}. A budget does not change: leave {name} out."
                )
        return kept

    @property
    def entries(self) -> Entries:
        """(event, number of steps) pairs spent so far, by all runs."""
        return self._ledger.entries

    def spent(self, delta: float | None = None) -> float:
        """Returns epsilon of all that was spent so far, at `delta` (default: the budget's)."""
        return epsilon_of(self.entries, self.delta if delta is None else delta, self.accountant)

    def left_in_words(self) -> str:
        """Returns a sentence: steps and epsilon spent, and epsilon left."""
        steps = sum(count for _, count in self.entries)
        return (
            f"{steps:,} private steps have spent epsilon {self.spent():.4g} of {self.epsilon:g} at delta "
            f"{self.delta:g}; about {max(0.0, self.epsilon - self.spent()):.4g} is left."
        )

    def fits(self, event: StepEvent, steps: int) -> bool:
        """Whether so many more steps fit, next to the steps set aside for running trainers."""
        return self._fits(event, steps, self.accountant)

    def steps_that_fit(self, event: StepEvent, steps: int) -> int:
        """Returns the largest number of steps, up to `steps`, that fits."""
        with self._lock:
            if self.fits(event, steps):
                return steps
            # Renyi accounting is cheap and hardly ever below PLD: begin with what fits by it.
            low, high = self._surely_fit(event, steps), steps
            while not self.fits(event, low):
                low, high = low - 1, low
            step = 1 + low // 16
            while low + step < high and self.fits(event, low + step):
                low, step = low + step, 2 * step
            return self._last(event, low, min(high, low + step), self.accountant)

    def check(self, event: StepEvent, steps: int) -> None:
        """Raises a BudgetError that says what is left if so many more steps do not fit."""
        if self.fits(event, steps):
            return
        raise BudgetError(
            f"the plan of {steps:,} steps (sample rate {event.sample_rate:.4g}, noise multiplier "
            f"{event.noise_multiplier:.4g}) does not fit into the budget: {self.left_in_words()} At least "
            f"{self._surely_fit(event, steps):,} of its steps would fit. Plan for a smaller epsilon or fewer "
            "steps; nothing was spent."
        )

    def ledger(self, own: Ledger) -> Ledger:
        """Returns a ledger that charges each step to the budget, then records it in a run's ledger `own`."""
        return ChargedLedger(own, self)

    def rehearsal(self) -> PrivacyBudget:
        """Returns a copy in memory, to try out a plan: charges to it spend nothing."""
        copied = PrivacyBudget(epsilon=self.epsilon, delta=self.delta, accountant=self.accountant)
        copied._ledger = MemoryLedger(self.entries)
        return copied

    def close(self) -> None:
        """Lets other processes have the file."""
        if isinstance(self._ledger, LedgerFile):
            self._ledger.close()

    def __enter__(self) -> PrivacyBudget:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> PrivacyBudget:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyBudget:
        """Returns itself: a copy would spend the same privacy twice."""
        return self

    def __getstate__(self) -> None:
        raise BudgetError(
            "a budget cannot be pickled or sent to another process: each would spend it whole. Train in one "
            "process (n_jobs=1)."
        )

    def _fits(self, event: StepEvent, steps: int, accountant: str) -> bool:
        if not steps:
            return True
        with self._lock:
            planned = [plan for plan in self._planned.values() if plan[1]]
            total = _together(*self.entries, *planned, (event, steps))
        return epsilon_of(total, self.delta, accountant) <= float(self.epsilon)

    def _last(self, event: StepEvent, low: int, high: int, accountant: str) -> int:
        """Returns the largest number of steps in [low, high) that fits; `low` must fit."""
        candidates = range(low + 1, high)
        return low + bisect_left(candidates, True, key=lambda steps: not self._fits(event, steps, accountant))

    def _surely_fit(self, event: StepEvent, steps: int) -> int:
        """Returns, quickly, a number of steps that fit: the most by Renyi accounting."""
        return self._last(event, 0, steps + 1, "rdp" if self.accountant == "pld" else self.accountant)

    def catch_up(self, spent: Entries) -> None:
        """Charges steps that a run's own ledger counts and the budget, an old copy of it restored, does not.

        Raises:
            BudgetError: it does not fit.
        """
        known, counted = (Counter(dict(_together(*entries))) for entries in (self.entries, spent))
        for event, steps in (counted - known).items():
            run = self.ledger(MemoryLedger())
            run.expect(event, steps)
            for _ in range(steps):
                run.spend(event)
            run.settle()

    def _plan(self, run: Ledger, event: StepEvent, steps: int) -> None:
        """Sets steps aside for a run that begins, so that no other run is promised them."""
        self._check_process()
        with self._lock:
            self._planned.pop(run, None)
            self.check(event, steps)
            self._planned[run] = (event, steps)
            self._ledger.expect(event, steps)

    def _charge(self, run: Ledger, event: StepEvent) -> None:
        self._check_process()
        with self._lock:
            planned, steps = self._planned.get(run, (None, 0))
            if planned == event and steps:
                self._planned[run] = (event, steps - 1)
            else:
                self.check(event, 1)
            self._ledger.spend(event)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise BudgetError(
                "this budget belongs to the process that made it: each copy would spend it whole. Train in "
                "one process (n_jobs=1)."
            )

    def _settle(self, run: Ledger) -> None:
        with self._lock:
            self._planned.pop(run, None)
            self._ledger.settle()


@final
class ChargedLedger(Ledger):
    """A run's ledger whose steps are charged to a budget first.

    Guarantee: the budget counts every step that this ledger counts; a step that does not fit counts in
    neither.
    """

    def __init__(self, own: Ledger, budget: PrivacyBudget) -> None:
        self._own, self._budget = own, budget

    def spend(self, event: StepEvent) -> None:
        self._budget._charge(self, event)
        self._own.spend(event)

    def expect(self, event: StepEvent, steps: int) -> None:
        self._budget._plan(self, event, steps)
        self._own.expect(event, steps)

    def settle(self) -> None:
        self._budget._settle(self)
        self._own.settle()

    @property
    def entries(self) -> Entries:
        return self._own.entries


def _has_a_line(path: str | os.PathLike[str]) -> bool:
    """Whether the file holds a ledger with at least one complete line."""
    if not os.path.isfile(path):
        return False
    with Path(path).open("rb") as file:
        return file.readline().endswith(b"\n")


def _together(*entries: tuple[StepEvent, int]) -> Entries:
    """Merges equal events, so that equal totals have one cache entry."""
    counts: dict[StepEvent, int] = {}
    for event, steps in entries:
        counts[event] = counts.get(event, 0) + steps
    return tuple(counts.items())
