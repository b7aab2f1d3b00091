"""What fits under a limit on epsilon: all runs together, their steps accounted for as one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.kernel.events import Entries
from equidp.kernel.ledger import Event


@dataclass(frozen=True)
class Limit:
    """The most that all runs together may spend, by one accountant.

    >>> from equidp.kernel.ledger import StepEvent
    >>> event = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> Limit(3.0, 1e-5, "rdp").most((), event, 10_000)
    447
    """

    epsilon: float
    delta: float
    accountant: str

    def spent(self, entries: Entries) -> float:
        """Epsilon of all these steps at the limit's delta."""
        return epsilon_of(together(*entries), self.delta, self.accountant)

    def holds(self, entries: Entries) -> bool:
        """Whether all these steps stay within the limit."""
        return self.spent(entries) <= float(self.epsilon)

    def most(self, spent: Entries, event: Event, steps: int) -> int:
        """The largest number of steps, up to `steps`, that fits beside what was spent; 0: not even one."""

        def fits(number: int) -> bool:
            return not number or self.holds((*spent, (event, number)))

        if fits(steps):
            return steps
        # Renyi accounting is cheap and hardly ever below PLD: begin with what fits by it.
        low, high = self.surely(spent, event, steps), steps
        while not fits(low):
            low, high = low - 1, low
        step = 1 + low // 16
        while low + step < high and fits(low + step):
            low, step = low + step, 2 * step
        candidates = range(low + 1, min(high, low + step))
        return low + bisect_left(candidates, True, key=lambda number: not fits(number))

    def surely(self, spent: Entries, event: Event, steps: int) -> int:
        """Quickly, a number of steps up to `steps` that fits: the most by Renyi accounting."""
        quick = Limit(self.epsilon, self.delta, "rdp" if self.accountant == "pld" else self.accountant)
        return bisect_left(
            range(1, steps + 1), True, key=lambda number: not quick.holds((*spent, (event, number)))
        )


def together(*entries: tuple[Event, int]) -> Entries:
    """Merges equal events, so that equal totals have one cache entry.

    >>> from equidp.kernel.ledger import StepEvent
    >>> event = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> together((event, 1), (event, 2)) == ((event, 3),)
    True
    """
    counts: dict[Event, int] = {}
    for event, steps in entries:
        counts[event] = counts.get(event, 0) + steps
    return tuple((event, steps) for event, steps in counts.items() if steps)


BySession = Mapping[str, Mapping[Event, int]]


def lacking(known: BySession, counted: BySession) -> tuple[tuple[Event, int, str], ...]:
    """(event, steps, session) of all that is counted and not known, session by session.

    Totals would not do: another run with the same settings would hide what is missing of this one.

    >>> from equidp.kernel.ledger import StepEvent
    >>> event = StepEvent(sample_rate=0.02, noise_multiplier=1.0)
    >>> lacking({"other": {event: 9}, "this": {event: 1}}, {"this": {event: 3}}) == ((event, 2, "this"),)
    True
    """
    return tuple(
        (event, steps - known.get(session, {}).get(event, 0), session)
        for session, spent in counted.items()
        for event, steps in spent.items()
        if steps > known.get(session, {}).get(event, 0)
    )
