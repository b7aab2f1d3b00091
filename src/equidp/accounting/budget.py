"""One budget for all that is trained on one dataset.

What is known before the first result, such as the whole plan of the first run, is counted as any plan is, and
counted whole, used or not. All that is planned later may follow from results, and is counted by Renyi
divergences, which allow that; see `accounting.limit`, where the proof is.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Iterable, Mapping
from typing import Any, final
from weakref import WeakKeyDictionary

from equidp._validate import check_number, checked_path
from equidp.accounting.limit import (
    EventCounts,
    Limit,
    Route,
    merge_entries,
    uncharged_entries,
    unstated_entries,
)
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import (
    checked_accountant,
    checked_delta,
    checked_entries,
    epsilon as epsilon_of,
)
from equidp.kernel.ledger import (
    ROWS,
    Event,
    GroupedStepEvent,
    Ledger,
    MemoryLedger,
    ReleaseEvent,
    checked_unit,
    kind_of,
)
from equidp.ledger.file import LedgerFile
from equidp.ledger.format import event_of, has_a_line, plain


@final
class PrivacyBudget:
    """A limit on what all runs on one dataset may spend together, also where later ones follow from results.

    Give it to each `Trainer(..., budget=budget)`. A run that does not fit into what is left is refused before
    it spends anything.

    Formal guarantee: all that is released for what it was charged is (epsilon, delta)-private, whatever led
    from earlier results to later runs; `accounting.limit` proves it.

    | case | how it is counted |
    | --- | --- |
    | all that is planned before the first step, such as one run | by `accountant`, together, used or not |
    | what `state` was given before the first step | the same |
    | anything later | by the Renyi divergence of one order, fixed with the first step |
    | a later run with the same sample rate and noise as a stated one that was cut short | its rest |
    | steps that a run's own ledger holds from before, and all after them | the same |
    | steps whose rates or bounds differ by group | the largest over all groups that a person may be in |

    Args:
        path: a ledger file that outlives the process, used by one process at a time; None: kept in memory.
        epsilon, delta: the most that all runs together may spend. A file remembers them: leave them out for a
            file that exists; they cannot be changed.
        accountant: a name from `ACCOUNTANTS`. "pld" is tight for what is stated first. "rdp" counts all by
            one order, and a run that is given up by the steps that it took: for trying things out.
        data: a name for the population that it is for. Left out: it takes the name of the first dataset with
            one (`GroupedDataset.source`) that is trained on, and refuses datasets of other names. Given: it
            is remembered, and the names of datasets are not asked; say so where one population has several
            names.
        unit: whose privacy it counts, "rows" or "people"; left out: that of the first dataset.
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
        unit: str | None = None,
        run: str = "training",
    ) -> None:
        if path is not None:
            path = checked_path(path=path)
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
        if unit is not None:
            checked_unit("", unit, "")
        self.path, self.data, self._data_given = path, data or "", bool(data)
        self._ledger: MemoryLedger | LedgerFile = MemoryLedger()
        if path is not None:
            self._ledger = LedgerFile(path, run=run, facts={"budget": facts})
            facts = self._check_facts(self._ledger.facts.get("budget"), known)
            self._take_data(self._ledger.facts.get("data"), data)
        self._lock, self._process = threading.RLock(), os.getpid()
        self._planned: WeakKeyDictionary[Ledger, dict[Event, int]] = WeakKeyDictionary()
        self.epsilon, self.delta, self.accountant = facts["epsilon"], facts["delta"], facts["accountant"]
        kept = self._ledger.facts if isinstance(self._ledger, LedgerFile) else {}
        self._limit = limit_of({**kept, "budget": facts}, self._ledger.steps)
        if unit is not None:
            try:
                self.take_unit(unit)
            except BudgetError:
                self.close()
                raise

    def _check_facts(self, kept: dict[str, Any] | None, given: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of the file; raise where an argument contradicts them."""
        if kept is None:
            self.close()
            raise BudgetError(
                f"{os.fspath(self.path or '')!r} is the ledger of a single run, not a budget; name another "
                "file.",
                field="path",
            )
        for name, value in given.items():
            if kept[name] != value:
                self.close()
                raise BudgetError(
                    f"the budget {os.fspath(self.path or '')!r} was made with {name}={kept[name]}, not "
                    f"{value}. A budget does not change: leave {name} out (of a command, --budget-{name}).",
                    field=name,
                )
        return kept

    def for_data(self, source: str, unit: str) -> None:
        """Check a dataset to be trained on against the budget, and record its name and unit of privacy.

        Args:
            source: name of the dataset; "" for a dataset without a name.
            unit: "rows" or "people".

        Raises:
            BudgetError: the budget is for another population, and was not opened with its name; or it counts
                rows and the data people, or the other way round.
        """
        with self._lock:
            self.take_unit(unit)
            if source and not self._data_given and self.data != source:
                if self.data:
                    raise self._other_population_error(source)
                self._remember(data=source)

    @property
    def unit(self) -> str:
        """Unit of privacy: "rows" or "people"; "" if unknown."""
        return self._ledger.unit

    def take_unit(self, unit: str) -> None:
        """Record the unit of privacy that the budget counts.

        Args:
            unit: "rows" or "people".

        Raises:
            BudgetError: steps of the other unit are counted already; or steps of unknown unit, which count as
                rows, and `unit` is "people".
        """
        with self._lock:
            if self._ledger.steps:
                checked_unit(self.unit or ROWS, unit, self._name)
            if unit != self.unit:
                self._check_process()
                self._ledger.take_unit(unit)

    @property
    def _name(self) -> str:
        return "this budget" if self.path is None else f"the budget {os.fspath(self.path)!r}"

    def _other_population_error(self, given: str) -> BudgetError:
        return BudgetError(
            f"{self._name} is for the population {self.data!r}, not {given!r}. Another population has a "
            "budget of its own: name another file. If it is the same population under another name, say so: "
            f"PrivacyBudget(data={self.data!r}), or --budget-data {shlex.quote(self.data)}.",
            field="data",
        )

    def _take_data(self, kept: str | None, given: str | None) -> None:
        """Name of the population in the file, or the given one where it has none yet."""
        self.data = kept or ""
        if given and not kept:
            self._remember(data=given)
        elif given and given != kept:
            self.close()
            raise self._other_population_error(given)

    def _remember(self, **facts: Any) -> None:
        """Write facts to the file; what is remembered here changes afterwards, and not where that fails."""
        if isinstance(self._ledger, LedgerFile):
            self._ledger.add_facts(facts)
        self.data = facts.get("data", self.data)

    def state(self, entries: Iterable[tuple[Event, int]]) -> None:
        """States in advance what several runs will spend, so that all of it is counted together.

        It is counted whole from then on, used or not, by steps of these kinds in any order. All else is
        counted as later runs are.

        Args:
            entries: (event, number of steps) pairs, such as (trainer.event, 3 * trainer.steps).

        Raises:
            SettingError: something was stated or spent before.
            BudgetError: it does not fit.

        >>> from equidp.kernel.ledger import StepEvent
        >>> budget = PrivacyBudget(epsilon=3.0, delta=1e-5)
        >>> budget.state([(StepEvent(sample_rate=1.0, noise_multiplier=40.0), 300)])
        """
        with self._lock:
            self._check_process()
            stated = merge_entries(*checked_entries(entries))
            if self._limit.stated is not None:
                raise SettingError(
                    "plans are stated before anything is spent, all at once; give a new budget, or train.",
                    field="plans",
                )
            if not self._limit.holds(stated):
                raise BudgetError(
                    f"the plans that were stated cost epsilon {self._limit.compute_epsilon(stated):.4g} "
                    f"together, more than the budget's {self.epsilon:g}; state less. Nothing was spent.",
                    field="plans",
                )
            if not self._limit_after(stated).holds(self._spent_and_reserved()):
                raise BudgetError(
                    "runs that began already, or were promised what they will spend, do not fit beside the "
                    "plans that were stated; state their plans as well, all at once. Nothing was spent.",
                    field="plans",
                )
            self._fix_stated(stated)

    def _fix_stated(self, stated: EventCounts) -> None:
        """Record what was stated; from now on there may be results."""
        self._remember(stated=[{**plain(event), "steps": steps} for event, steps in stated])
        self._limit = self._limit_after(stated)

    def _limit_after(self, stated: EventCounts) -> Limit:
        """Return the limit after these entries were stated, where there may be results."""
        return Limit(self.epsilon, self.delta, self.accountant, stated)

    def _fix_routes(self, more: EventCounts) -> None:
        """Record the routes of the limit before the first step that was not stated is spent."""
        stated = self._limit.stated or ()
        if any(isinstance(event, GroupedStepEvent) for event, _ in stated):
            return
        if self._limit.fixed is None and unstated_entries(merge_entries(*self.entries, *more), stated):
            routes = self._limit.routes
            self._remember(routes=[list(each) for each in routes])
            self._limit = Limit(self.epsilon, self.delta, self.accountant, stated, routes)

    @property
    def id(self) -> str:
        """Random name of the budget; copies of its file have the same."""
        return self._ledger.run_id

    @property
    def entries(self) -> EventCounts:
        """(event, number of steps) pairs spent so far, by all runs."""
        return self._ledger.entries

    def spent(self, delta: float | None = None) -> float:
        """Return epsilon of all steps spent so far, at `delta` (default: the budget's).

        It is a reading: the guarantee to anyone is the budget's epsilon. A reading jumps where the first run
        is counted that was not stated in advance.
        """
        return self._limit.compute_epsilon(self.entries, delta)

    def __str__(self) -> str:
        """A sentence: steps and epsilon spent, and epsilon left."""
        steps = sum(count for _, count in self.entries)
        return (
            f"{steps:,} private steps have spent epsilon {self.spent():.4g} of {self.epsilon:g} at delta "
            f"{self.delta:g}; about {max(0.0, self.epsilon - self.spent()):.4g} is left."
        )

    def fits(self, event: Event, steps: int) -> bool:
        """True where `steps` more steps fit, beside the steps reserved for running trainers."""
        return self._fits(checked_entries([(event, steps)]) if steps else ())

    def steps_that_fit(self, event: Event, steps: int) -> int:
        """Return the largest number of steps, up to `steps`, that fits."""
        checked_entries([(event, steps)])
        with self._lock:
            return self._limit.most_steps(self._spent_and_reserved(), event, steps)

    def check(self, event: Event, steps: int) -> None:
        """Raise a BudgetError that says what is left unless `steps` more steps of this event fit."""
        if self.fits(event, steps):
            return
        fitting = self._limit.steps_by_renyi(self._spent_and_reserved(), event, steps)
        later = (
            "Runs that were planned after the first result are counted by Renyi divergences, which hold "
            "whatever led to them, and take more than their own epsilon says. "
        )
        raise BudgetError(
            f"the plan of {steps:,} steps ({event}) does not fit into the budget: "
            f"{self} At least {fitting:,} of its steps would fit. "
            f"{later if self._limit.stated else ''}Plan for a smaller epsilon or fewer steps; nothing was "
            "spent.",
            field="budget",
        )

    def ledger(self, own: Ledger) -> Ledger:
        """Return a ledger that charges each step to the budget, then records it in a run's ledger `own`.

        Steps that `own` holds and the budget does not are charged at once. A ledger that charges this budget
        already is returned as it is.

        Raises:
            BudgetError: these steps do not fit, or are of another unit of privacy; nothing is charged.
        """
        if isinstance(own, ChargedLedger) and own.budget is self:
            return own
        if own.unit:
            self.take_unit(own.unit)
        self.catch_up(own, refuse=True)
        return ChargedLedger(own, self)

    def rehearsal(self) -> PrivacyBudget:
        """Return a copy in memory, to try out a plan: charges to it spend nothing."""
        copied = PrivacyBudget(epsilon=self.epsilon, delta=self.delta, accountant=self.accountant)
        copied.path, copied.data, copied._data_given = self.path, self.data, self._data_given
        copied._limit, copied._ledger = self._limit, MemoryLedger()
        if self.unit:
            copied._ledger.take_unit(self.unit)
        for session, spent in self._ledger.by_session.items():
            for event, steps in spent.items():
                copied._ledger.count(event, steps, session)
        return copied

    def close(self) -> None:
        """Close the file, so that other processes can open the budget."""
        if isinstance(self._ledger, LedgerFile):
            self._ledger.close()

    def __enter__(self) -> PrivacyBudget:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> PrivacyBudget:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyBudget:
        """Return itself: a copy would spend the same privacy twice."""
        return self

    def __getstate__(self) -> None:
        raise BudgetError(
            "a budget cannot be pickled or sent to another process: each would spend it whole. Train in one "
            "process (n_jobs=1).",
            field="budget",
        )

    def _spent_and_reserved(self) -> EventCounts:
        """Entries that are spent, or reserved for running trainers."""
        with self._lock:
            planned = (entry for each in self._planned.values() for entry in each.items())
            return (*self.entries, *planned)

    def _fits(self, more: EventCounts) -> bool:
        return not more or self._limit.holds((*self._spent_and_reserved(), *more))

    def catch_up(self, own: Ledger, *, refuse: bool = False) -> None:
        """Charge steps that a run's own ledger counts and the budget does not, session by session.

        The budget lacks steps where its file was restored from a copy, or where a run took steps without it.

        Args:
            own: ledger of the run.
            refuse: charge nothing where the steps do not fit.

        Raises:
            BudgetError: the steps do not fit. Unless `refuse`, they are charged all the same, and the budget
                no longer reserves steps for any run.
        """
        with self._lock:
            if not (missing := uncharged_entries(self._ledger.by_session, own.by_session)):
                return
            self._check_process()
            more = tuple((event, steps) for event, steps, _ in missing)
            error = None
            # What it took elsewhere may have led to all else, also to what was promised since.
            limit = self._limit_after(()) if self._limit.stated is None else self._limit
            if not limit.holds((*self._spent_and_reserved(), *more)):
                error = BudgetError(
                    f"the run's ledger holds {sum(steps for _, steps in more):,} steps, epsilon "
                    f"{limit.compute_epsilon(more):.4g}, that the budget was not charged, and that do not "
                    f"fit: {self} They are spent all the same"
                    f"{'; give a budget that holds them' if refuse else ', and charged now'}.",
                    field="ledger",
                )
                if refuse:
                    raise error
            if self._limit.stated is None:
                self._fix_stated(())
            self._fix_routes(more)
            for event, steps, session in missing:
                self._ledger.expect(event, steps, session)
                for _ in range(steps):
                    self._ledger.spend(event, session)
                self._ledger.settle()
            if error:
                self._planned.clear()  # each step of each run is checked from now on
                raise error

    def set_aside(self, run: Ledger, event: Event, steps: int) -> None:
        """Reserve steps for a run that begins, so that no other run can use them."""
        self._check_process()
        with self._lock:
            planned = self._planned.setdefault(run, {})
            planned.pop(event, None)
            self.catch_up(run)
            self.check(event, steps)
            planned[event] = steps
            self._ledger.expect(event, steps, run.session)

    def promise(self, run: Ledger, entries: Iterable[tuple[Event, int]]) -> None:
        """Set aside all that a run will spend, its releases too, in place of what it was promised before."""
        self._check_process()
        with self._lock:
            self._planned.pop(run, None)
            more = merge_entries(*entries)
            if not self._fits(more):
                costs = epsilon_of(more, self.delta, self.accountant)
                raise BudgetError(
                    f"the plan, epsilon {costs:.4g} in all with what it releases beside its steps, does not "
                    f"fit into the budget: {self} Plan for a smaller epsilon; nothing was "
                    "spent.",
                    field="budget",
                )
            self._planned[run] = dict(more)

    def charge(self, run: Ledger, event: Event) -> None:
        """Pay for one more step of a run, or one release."""
        self._check_process()
        with self._lock:
            self.catch_up(run)
            planned, kind = self._planned.get(run, {}), kind_of(event)
            promised = planned.get(kind, 0)
            if not promised:
                self.check(kind, 1)
            if self._limit.stated is None:
                self._fix_stated(
                    merge_entries(*self._spent_and_reserved(), *(() if promised else ((kind, 1),)))
                )
            self._fix_routes(((kind, 1),))
            self._ledger.spend(event, run.session)
            if promised:
                planned[kind] = promised - 1

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise BudgetError(
                "this budget belongs to the process that made it: each copy would spend it whole. Train in "
                "one process (n_jobs=1).",
                field="budget",
            )

    def give_back(self, run: Ledger) -> None:
        """End the steps of a run: steps that were reserved and not spent can be used by other runs.

        Steps that the run took without the budget are charged. Releases after its steps stay reserved.
        """
        with self._lock:
            planned = self._planned.pop(run, {})
            for event in [event for event in planned if not isinstance(event, ReleaseEvent)]:
                del planned[event]
            if planned:
                self._planned[run] = planned
            try:
                self.catch_up(run)
            finally:
                self._ledger.settle()


@final
class ChargedLedger(Ledger):
    """A run's ledger whose steps are charged to a budget first.

    Guarantee: the budget counts every step that this ledger counts, session by session; a step that does not
    fit counts in neither. A kill in between leaves the budget with more steps, never with fewer. Steps that
    the run's ledger took without the budget are charged to it at the next step, or at the end of the run.
    """

    def __init__(self, own: Ledger, budget: PrivacyBudget) -> None:
        self._own, self.budget = own, budget

    def spend(self, event: Event) -> None:
        self.budget.charge(self, event)
        self._own.spend(event)

    def expect(self, event: Event, steps: int) -> None:
        self.budget.set_aside(self, event, steps)
        self._own.expect(event, steps)

    def promise(self, entries: Iterable[tuple[Event, int]]) -> None:
        self.budget.promise(self, entries)

    @property
    def unit(self) -> str:
        return self._own.unit

    def take_unit(self, unit: str) -> None:
        self.budget.take_unit(unit)
        self._own.take_unit(unit)

    def settle(self) -> None:
        try:
            self.budget.give_back(self)
        finally:
            self._own.settle()

    @property
    def entries(self) -> tuple[tuple[Event, int], ...]:
        return self._own.entries

    @property
    def session(self) -> str:
        return self._own.session

    @property
    def by_session(self) -> Mapping[str, Mapping[Event, int]]:
        return self._own.by_session


def limit_of(facts: Mapping[str, Any], steps: int) -> Limit:
    """The limit of a budget's ledger, with what was stated before its first result.

    Args:
        facts: of the ledger.
        steps: that it counts.
    """
    budget, kept, routes = facts["budget"], facts.get("stated"), facts.get("routes")
    stated: EventCounts | None = None
    if kept is not None:
        stated = tuple((event_of(each), int(each["steps"])) for each in kept)
    elif steps:
        stated = ()
    fixed = None if routes is None else tuple(Route(*each) for each in routes)
    return Limit(budget["epsilon"], budget["delta"], budget["accountant"], stated, fixed)
