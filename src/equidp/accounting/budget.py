"""One budget for all that is trained on one dataset."""

from __future__ import annotations

import os
import threading
from typing import Any, final
from weakref import WeakKeyDictionary

from equidp._validate import check_number
from equidp.accounting.charged import ChargedLedger
from equidp.accounting.limit import Limit, lacking
from equidp.accounting.units import BY_PERSON, counts_people, of_another_unit, of_other_people
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import checked_accountant, checked_delta, epsilon as epsilon_of
from equidp.kernel.ledger import Event, Ledger, MemoryLedger
from equidp.kernel.ledger_file import LedgerFile
from equidp.kernel.ledger_format import has_a_line

Entries = tuple[tuple[Event, int], ...]


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
        data: a name for the people that it is for. Left out: it takes the name of the first dataset with one
            (`GroupedDataset.source`) that is trained on, and refuses datasets of other names. Given: it is
            remembered, and the names of datasets are not asked; say so where one people has several names.
        run: a name for what this process does; for readers of the file.

    Raises:
        SettingError: a number outside its range, an unknown accountant, or a new budget without epsilon or
        delta. BudgetError: the file has another budget, is damaged, in use, of an older version, or cannot be
        written.

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
        data: str | None = None,
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
        if (epsilon is None or delta is None) and (path is None or not has_a_line(path)):
            raise SettingError(
                f"epsilon={epsilon}, delta={delta}; a new budget needs both (of a command, --budget-epsilon "
                "and --budget-delta)."
            )
        self.path, self.data, self._vouched = path, data or "", bool(data)
        self._ledger: MemoryLedger | LedgerFile = MemoryLedger()
        if path is not None:
            self._ledger = LedgerFile(path, run=run, facts={"budget": facts})
            facts = self._agreed(self._ledger.facts.get("budget"), known)
            self._take_data(self._ledger.facts.get("data"), data)
        self._lock, self._process = threading.RLock(), os.getpid()
        self._planned: WeakKeyDictionary[Ledger, tuple[Event, int]] = WeakKeyDictionary()
        self.epsilon, self.delta, self.accountant = facts["epsilon"], facts["delta"], facts["accountant"]
        self._limit = Limit(self.epsilon, self.delta, self.accountant)

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

    def for_data(self, source: str) -> None:
        """Takes the name of a dataset to be trained on; "": it has none.

        Raises:
            BudgetError: the budget is for other people, and was not opened with their name; or it counts rows
                and the data people, or the other way round.
        """
        with self._lock:
            people = counts_people(source)
            if people != counts_people(self.data):
                if self._ledger.steps or not people:
                    raise of_another_unit(self.path, people)
                if self._vouched:
                    self._remember(f"{self.data} {BY_PERSON}")
            if source and not self._vouched and self.data != source:
                if self.data:
                    raise of_other_people(self.path, self.data, source)
                self._remember(source)

    def _take_data(self, kept: str | None, given: str | None) -> None:
        """The name of the people in the file, or the given one where it has none yet."""
        self.data = kept or ""
        if given and not kept:
            self._remember(given)
        elif given and given != kept:
            self.close()
            raise of_other_people(self.path, self.data, given)

    def _remember(self, data: str) -> None:
        self.data = data
        if isinstance(self._ledger, LedgerFile):
            self._ledger.add_facts({"data": data})

    @property
    def id(self) -> str:
        """Random name of the budget; copies of its file have the same."""
        return self._ledger.run_id

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

    def fits(self, event: Event, steps: int) -> bool:
        """Whether so many more steps fit, next to the steps set aside for running trainers."""
        return self._fits(((event, steps),) if steps else ())

    def steps_that_fit(self, event: Event, steps: int) -> int:
        """Returns the largest number of steps, up to `steps`, that fits."""
        with self._lock:
            return self._limit.most(self._promised(), event, steps)

    def check(self, event: Event, steps: int) -> None:
        """Raises a BudgetError that says what is left if so many more steps do not fit."""
        if self.fits(event, steps):
            return
        fitting = self._limit.surely(self._promised(), event, steps)
        raise BudgetError(
            f"the plan of {steps:,} steps ({event.in_words}) does not fit into the budget: "
            f"{self.left_in_words()} At least {fitting:,} of its steps would fit. Plan for a smaller epsilon "
            "or fewer steps; nothing was spent."
        )

    def ledger(self, own: Ledger) -> Ledger:
        """Returns a ledger that charges each step to the budget, then records it in a run's ledger `own`.

        What `own` holds and the budget does not is charged at once.

        Raises:
            BudgetError: that does not fit; nothing is charged.
        """
        self.catch_up(own, refuse=True)
        return ChargedLedger(own, self)

    def rehearsal(self) -> PrivacyBudget:
        """Returns a copy in memory, to try out a plan: charges to it spend nothing."""
        copied = PrivacyBudget(epsilon=self.epsilon, delta=self.delta, accountant=self.accountant)
        copied.path, copied.data, copied._vouched = self.path, self.data, self._vouched
        copied._ledger = MemoryLedger()
        for session, spent in self._ledger.by_session.items():
            for event, steps in spent.items():
                copied._ledger.count(event, steps, session)
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

    def _promised(self) -> Entries:
        """What is spent, and set aside for running trainers."""
        with self._lock:
            return (*self.entries, *self._planned.values())

    def _fits(self, more: Entries) -> bool:
        return not more or self._limit.holds((*self._promised(), *more))

    def catch_up(self, own: Ledger, *, refuse: bool = False) -> None:
        """Charges steps that a run's own ledger counts and the budget does not, session by session.

        It lacks steps where it was brought back from a copy, or where they were taken without it.

        Raises:
            BudgetError: they do not fit. They are charged all the same, and promises end; not with `refuse`.
        """
        with self._lock:
            if not (missing := lacking(self._ledger.by_session, own.by_session)):
                return
            self._check_process()
            more = tuple((event, steps) for event, steps, _ in missing)
            error = None
            if not self._fits(more):
                error = BudgetError(
                    f"the run's ledger holds {sum(steps for _, steps in more):,} steps, epsilon "
                    f"{self._limit.spent(more):.4g}, that the budget was not charged, and that do not fit: "
                    f"{self.left_in_words()} They are spent all the same"
                    f"{'; give a budget that holds them' if refuse else ', and charged now'}."
                )
                if refuse:
                    raise error
            for event, steps, session in missing:
                self._ledger.expect(event, steps, session)
                for _ in range(steps):
                    self._ledger.spend(event, session)
                self._ledger.settle()
            if error:
                self._planned.clear()  # each step of each run is checked from now on
                raise error

    def set_aside(self, run: Ledger, event: Event, steps: int) -> None:
        """Sets steps aside for a run that begins, so that no other run is promised them."""
        self._check_process()
        with self._lock:
            self._planned.pop(run, None)
            self.catch_up(run)
            self.check(event, steps)
            self._planned[run] = (event, steps)
            self._ledger.expect(event, steps, run.session)

    def charge(self, run: Ledger, event: Event) -> None:
        """Pays for one more step of a run."""
        self._check_process()
        with self._lock:
            self.catch_up(run)
            planned, steps = self._planned.get(run, (None, 0))
            if planned == event and steps:
                self._planned[run] = (event, steps - 1)
            else:
                self.check(event, 1)
            self._ledger.spend(event, run.session)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise BudgetError(
                "this budget belongs to the process that made it: each copy would spend it whole. Train in "
                "one process (n_jobs=1)."
            )

    def give_back(self, run: Ledger) -> None:
        """Ends a run: what was set aside and not spent is free; what it took beside the budget is charged."""
        with self._lock:
            self._planned.pop(run, None)
            try:
                self.catch_up(run)
            finally:
                self._ledger.settle()
