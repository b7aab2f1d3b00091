"""A run's ledger beside a budget that pays for each step first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, final

from equidp.kernel.ledger import Event, Ledger


class Account(Protocol):
    """Account that pays for the steps of runs, such as a `PrivacyBudget`."""

    def charge(self, run: Ledger, event: Event) -> None:
        """Pays for one more step of a run, or raises a BudgetError."""

    def set_aside(self, run: Ledger, event: Event, steps: int) -> None:
        """Promises steps to a run that begins, or raises a BudgetError."""

    def promise(self, run: Ledger, entries: Iterable[tuple[Event, int]]) -> None:
        """Promises all that a run will spend, or raises a BudgetError."""

    def take_unit(self, unit: str) -> None:
        """Remembers whose privacy it counts, or raises a BudgetError."""

    def give_back(self, run: Ledger) -> None:
        """Ends a run: what was set aside and not spent is free again. Raises a BudgetError where it took
        steps beside the account that do not fit."""


@final
class ChargedLedger(Ledger):
    """A run's ledger whose steps are charged to a budget first.

    Guarantee: the budget counts every step that this ledger counts, session by session; a step that does not
    fit counts in neither. A kill in between leaves the budget with more steps, never with fewer. Steps that
    the run's ledger took without the budget are charged to it at the next step, or at the end of the run.
    """

    def __init__(self, own: Ledger, budget: Account) -> None:
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
