"""Append-only account of the private steps that were spent, separate from the results of the steps.

A release outside the steps of a run, such as counts of classes, has an identity: `Ledger.pay` writes its name
and a random id, and returns a `Payment`, which is drawn once, in the process that paid. A process that
resumes a run, or a copy of it, has no payments of earlier processes; it reads the releases that they stored,
or pays again.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, final

from equidp._validate import check_number, check_whole, unknown_name
from equidp.errors import BudgetError, SettingError


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

    def __str__(self) -> str:
        noise = f"sample rate {self.sample_rate:.6g}, noise multiplier {self.noise_multiplier:.6g}"
        if self.statistics_noise is None:
            return noise
        return f"{noise}, statistics noise {self.statistics_noise:.6g}"


@dataclass(frozen=True)
class ReleaseEvent(StepEvent):
    """A release beside the steps of a run: a Gaussian mechanism on all examples at once, without sampling.

    No step equals it, and no release of another name.

    Attributes:
        name: what is released.
        id: random name of its payment, as `Ledger.by_session` has it; "" where only its cost is meant.

    Raises:
        SettingError: no name, or another sample rate than 1.

    >>> ReleaseEvent(1.0, 20.0, name="recalibration") == StepEvent(1.0, 20.0)
    False
    """

    name: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name or self.sample_rate != 1 or self.statistics_noise is not None:
            raise SettingError(
                f"{self!r}; expected the name of what is released, and one query of all examples at once.",
                field="name",
            )


@dataclass(frozen=True)
class ChoiceEvent:
    """A private choice: the same queries made a random number of times, of which one outcome is released.

    The number of tries is geometric (`equidp.runs.experimental.private_choice`). The outcome that is released
    is the best by a score that is itself among the queries. All others are discarded.

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

    def __str__(self) -> str:
        listed = "; ".join(f"{count:,} at {event}" for event, count in self.tried)
        return f"a private choice: a random number of tries, {self.mean:g} on average, each of {listed}"


Event = StepEvent | ChoiceEvent
"""Event that a ledger counts."""

ROWS, PEOPLE = "rows", "people"
"""Unit of privacy: single rows, or people with all their rows. Runs of the two units add up to no
epsilon: a person with several rows loses more by a run on rows than its epsilon says."""


def kind_of(event: Event) -> Event:
    """Return the event without the identity of a payment: events of equal cost are equal.

    >>> paid = ReleaseEvent(1.0, 20.0, name="recalibration", id="3f")
    >>> kind_of(paid) == ReleaseEvent(1.0, 20.0, name="recalibration")
    True
    """
    return replace(event, id="") if isinstance(event, ReleaseEvent) else event


def checked_unit(kept: str, unit: str, what: str) -> str:
    """Returns the unit of what is to be counted; raises a BudgetError where another is counted already.

    Args:
        kept: what is counted so far; "": not known.
        unit: of what is to be counted.
        what: keeps the account, for the message.
    """
    if unit not in (ROWS, PEOPLE):
        raise unknown_name("unit", unit, (ROWS, PEOPLE))
    if kept and kept != unit:
        counted, given = (f"single {each}" if each == ROWS else each for each in (kept, unit))
        raise BudgetError(
            f"{what} counts {counted}, and this run is on {given}: what they spend cannot be added. Give "
            "the run a ledger or a budget of its own, and see equidp account --rows-per-person for what runs "
            "on rows cost people.",
            field="unit",
        )
    return unit


@final
class Payment:
    """Right to draw one release, once, in the process that paid; `Ledger.pay` returns it.

    | case | outcome |
    | --- | --- |
    | drawn a second time | BudgetError |
    | drawn in a forked process | BudgetError |
    | copied | the same payment |
    | pickled | BudgetError |
    """

    def __init__(self, event: ReleaseEvent) -> None:
        self.event, self._process, self._drawn = event, os.getpid(), False

    def draw(self) -> float:
        """Returns the noise multiplier of the release, which is to be drawn now."""
        if self._drawn or os.getpid() != self._process:
            why = "was drawn already" if self._drawn else "was paid for by another process"
            raise BudgetError(
                f"the release of {self.event.name} {why}, and a payment is drawn once, where it was made; "
                "pay again (Ledger.pay).",
                field="payment",
            )
        self._drawn = True
        return self.event.noise_multiplier

    def __copy__(self) -> Payment:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Payment:
        return self

    def __getstate__(self) -> NoReturn:
        raise BudgetError("a payment cannot be sent to another process; pay there.", field="payment")


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

    _unit = ""

    @abstractmethod
    def spend(self, event: Event) -> None:
        """Records one more step."""

    @abstractmethod
    def expect(self, event: Event, steps: int) -> None:
        """Announces up to `steps` steps of this kind, which a ledger may record or set aside in advance."""

    def promise(self, entries: Iterable[tuple[Event, int]]) -> None:  # noqa: B027
        """Announces all that a run will spend, before any of it; a budget sets it aside.

        Raises:
            BudgetError: it does not fit.
        """

    def take_unit(self, unit: str) -> None:
        """Remembers whose privacy is counted: `ROWS` or `PEOPLE`.

        Raises:
            BudgetError: the other is counted already.
        """
        self._unit = checked_unit(self.unit if self.steps else "", unit, "this ledger")

    def pay(self, name: str, noise_multiplier: float) -> Payment:
        """Pays for one release beside the steps, under a new id.

        Raises:
            BudgetError: it cannot be paid; it must not be drawn then.

        >>> ledger = MemoryLedger()
        >>> payment = ledger.pay("counts of classes", 20.0)
        >>> payment.draw(), ledger.steps
        (20.0, 1)
        """
        event = ReleaseEvent(1.0, noise_multiplier, name=name, id=os.urandom(8).hex())
        self.spend(event)
        return Payment(event)

    @abstractmethod
    def settle(self) -> None:
        """Signals that no step is in progress: what was recorded in advance and not spent is given back."""

    @property
    @abstractmethod
    def entries(self) -> tuple[tuple[Event, int], ...]:
        """(event, number of steps) pairs in the order they were spent, releases without their ids."""

    @property
    def unit(self) -> str:
        """Unit of privacy: `ROWS` or `PEOPLE`; "" if unknown."""
        return self._unit

    @property
    @abstractmethod
    def session(self) -> str:
        """Random name of the session whose steps it records."""

    @property
    @abstractmethod
    def by_session(self) -> Mapping[str, Mapping[Event, int]]:
        """Session -> event -> steps, releases with their ids; together as many as `entries`."""

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
        self._unit = state.get("_unit", "")
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
        event = kind_of(event)
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
