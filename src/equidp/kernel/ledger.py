"""What has been spent: an append-only account of private steps, kept apart from what they computed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from equidp._validate import check_number, check_whole


@dataclass(frozen=True)
class StepEvent:
    """One private step: a Poisson sample, read by a gradient query and perhaps a statistics query.

    Attributes:
        sample_rate: probability q of each example to be in the sample, in (0, 1].
        noise_multiplier: sigma, noise of the gradient query over its sensitivity, in [0, inf); 0: no privacy.
        statistics_noise: sigma_s, noise of the statistics query over its sensitivity (1); None: no such
            query.

    Raises:
        SettingError: a value outside its range, or NaN.
    """

    sample_rate: float
    noise_multiplier: float
    statistics_noise: float | None = None

    def __post_init__(self) -> None:
        check_number("(0, 1]", ", a probability", sample_rate=self.sample_rate)
        check_number("[0, inf)", noise_multiplier=self.noise_multiplier)
        if self.statistics_noise is not None:
            check_number("[0, inf)", ", or None", statistics_noise=self.statistics_noise)

    @property
    def in_words(self) -> str:
        """Its numbers, for a reader."""
        noise = f"sample rate {self.sample_rate:.6g}, noise multiplier {self.noise_multiplier:.6g}"
        if self.statistics_noise is None:
            return noise
        return f"{noise}, statistics noise {self.statistics_noise:.6g}"


@dataclass(frozen=True)
class ChoiceEvent:
    """A private choice: the same queries made a random number of times, of which one outcome is released.

    The number of tries is geometric (`equidp.kernel.choice`). The outcome that is released is the best by a
    score that is itself among the queries. All others are discarded.

    Attributes:
        tried: (step event, number of steps) pairs of one try.
        mean: of the number of tries, in [1, inf).

    Raises:
        SettingError: a mean outside its range, or nothing tried.

    >>> ChoiceEvent(((StepEvent(0.1, 1.0), 5), (StepEvent(1.0, 20.0), 1)), 8.0).mean
    8.0
    """

    tried: tuple[tuple[StepEvent, int], ...]
    mean: float

    def __post_init__(self) -> None:
        check_number("[1, inf)", ", the mean number of tries", mean=self.mean)
        check_whole(1, " in each try", steps=sum(count for _, count in self.tried))

    @property
    def in_words(self) -> str:
        """Its numbers, for a reader."""
        listed = "; ".join(f"{count:,} at {event.in_words}" for event, count in self.tried)
        return f"a private choice: a random number of tries, {self.mean:g} on average, each of {listed}"


Event = StepEvent | ChoiceEvent
"""What a ledger counts."""


def new_session(run: str = "") -> str:
    """A random name for a stretch of a run, which begins with the run's own: "run.stretch".

    >>> session = new_session()
    >>> run_of(session) == run_of(new_session(run_of(session)))
    True
    """
    return f"{run or os.urandom(8).hex()}.{os.urandom(4).hex()}"


def run_of(session: str) -> str:
    """The random name of the run that a session belongs to."""
    return session.partition(".")[0]


class Ledger(ABC):
    """Counts private steps. The step calls `spend` before it looks at its sample.

    Guarantee: once `spend` has returned, `entries` and `by_session` count the step, whatever happens later.
    If `spend` raises, draw no noise; the step may still be counted.

    A session is what one process spends on one run. Copies of a run that go on apart share the sessions from
    before, and no later ones, so two ledgers are compared session by session: the truth of each is at most
    what either says.
    """

    @abstractmethod
    def spend(self, event: Event) -> None:
        """Records one more step."""

    @abstractmethod
    def expect(self, event: Event, steps: int) -> None:
        """Announces up to `steps` steps of this kind, which a ledger may record or set aside in advance."""

    @abstractmethod
    def settle(self) -> None:
        """Signals that no step is in progress: what was recorded in advance and not spent is given back."""

    @property
    @abstractmethod
    def entries(self) -> tuple[tuple[Event, int], ...]:
        """(event, number of steps) pairs in the order they were spent."""

    @property
    @abstractmethod
    def session(self) -> str:
        """Random name of the session whose steps it records."""

    @property
    @abstractmethod
    def by_session(self) -> Mapping[str, Mapping[Event, int]]:
        """Session -> event -> steps; together as many as `entries`."""

    def count_of(self, event: Event) -> int:
        """Number of steps of this kind."""
        return sum(count for each, count in self.entries if each == event)

    @property
    def run_id(self) -> str:
        """Random name of the run, made with the ledger; the same in all its sessions."""
        return run_of(self.session)

    @property
    def steps(self) -> int:
        """Number of steps of all kinds."""
        return sum(count for _, count in self.entries)


@final
class MemoryLedger(Ledger):
    """A ledger that lives as long as its process. Equal neighbours are counted together.

    Guarantee: no two ledgers have the same session for what they spend, so that a budget that is brought both
    counts the steps of each.

    | case | outcome |
    | --- | --- |
    | copied, deep-copied or unpickled | the copy has the steps so far, and later ones in a new session |
    | its process is forked | the same for the child's |

    >>> ledger = MemoryLedger()
    >>> for _ in range(3):
    ...     ledger.spend(StepEvent(sample_rate=0.01, noise_multiplier=1.0))
    >>> ledger.entries
    ((StepEvent(sample_rate=0.01, noise_multiplier=1.0, statistics_noise=None), 3),)
    """

    def __init__(self, entries: tuple[tuple[Event, int], ...] = (), run: str = "") -> None:
        self._session, self._process = new_session(run), os.getpid()
        self._entries: list[tuple[Event, int]] = []
        self._by_session: dict[str, dict[Event, int]] = {}
        for event, steps in entries:
            self.count(event, steps)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Takes over the steps of the ledger that this one is a copy of, and of its run, not its session."""
        self._session, self._process = new_session(run_of(state["_session"])), os.getpid()
        self._entries = list(state["_entries"])
        self._by_session = {session: dict(spent) for session, spent in state["_by_session"].items()}

    def spend(self, event: Event, session: str = "") -> None:
        """Records one more step; of another session, as in a budget, where one is named."""
        self.count(event, 1, session)

    def count(self, event: Event, steps: int, session: str = "") -> None:
        """Records `steps` >= 0 steps of one kind at once."""
        if not steps:
            return
        counts = self._by_session.setdefault(session or self.session, {})
        counts[event] = counts.get(event, 0) + steps
        if self._entries and self._entries[-1][0] == event:
            steps += self._entries.pop()[1]
        self._entries.append((event, steps))

    def expect(self, event: Event, steps: int, session: str = "") -> None:
        """Does nothing."""

    def settle(self) -> None:
        """Does nothing: no step was recorded in advance."""

    @property
    def entries(self) -> tuple[tuple[Event, int], ...]:
        return tuple(self._entries)

    @property
    def session(self) -> str:
        if os.getpid() != self._process:  # forked since
            self._session, self._process = new_session(run_of(self._session)), os.getpid()
        return self._session

    @property
    def by_session(self) -> Mapping[str, Mapping[Event, int]]:
        return self._by_session
