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

from equidp._validate import check_number, unknown_name
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


SMALLEST_SHARE = 1 / 16
"""Least share of a bound that a group may have, unless it has none: below it, what rounding adds to a sum
(`bounding.ROUNDING`, a share of the whole bound) would be no small part of the group's own."""


@dataclass(frozen=True)
class GroupShare:
    """Public numbers by which a step treats the examples of one group.

    Attributes:
        name: of the group.
        sample_rate: probability q_k of each of its examples to be in the sample, in [0, 1].
        bound_share: c_k, the share of the sensitivity that its gradients may use; 0, or in [1/16, 1].
        row_share: r_k, the largest norm of its rows of statistics; 0, or in [1/16, 1].

    Raises:
        SettingError: no name, or a value outside its range.
    """

    name: str
    sample_rate: float
    bound_share: float = 1.0
    row_share: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name):
            raise SettingError(f"name={self.name!r}; expected the name of a group.")
        check_number("[0, 1]", ", a probability", sample_rate=self.sample_rate)
        hint = ", a share; 0: none"
        for name, share in (("bound_share", self.bound_share), ("row_share", self.row_share)):
            if share != 0:
                check_number(f"[{SMALLEST_SHARE}, 1]", hint, **{name: share})


@dataclass(frozen=True)
class GroupedStepEvent(StepEvent):
    """One private step that draws and bounds the examples of each group differently.

    An example of group k is drawn with probability q_k and moves the sum of gradients by at most c_k times
    its sensitivity, and the sum of statistics by at most r_k; noise is the same for all. Draws are
    independent, so what the step costs the example does not depend on other groups: it is the plain event
    that `of_group` returns.

    Read as a plain `StepEvent`, the event says what an example would pay that is drawn at the largest rate
    and may use all of both bounds. That is no less than what any group pays, so that code which does not know
    of groups says too much, never too little.

    Attributes:
        by_group: shares of the groups, in the order of their numbers; `sample_rate` is their largest rate.

    Raises:
        SettingError: no group, equal names, or another largest rate.

    >>> event = GroupedStepEvent(0.02, 1.0, by_group=(GroupShare("rare", 0.02, 0.5), GroupShare("*", 0.01)))
    >>> str(event.of_group("rare"))
    'sample rate 0.02, noise multiplier 2'
    """

    by_group: tuple[GroupShare, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [each.name for each in self.by_group]
        if not names or len({*names}) < len(names):
            raise SettingError(
                f"groups {', '.join(names) or 'none'}; expected at least one group, with names that differ.",
                field="by_group",
            )
        if (largest := max(each.sample_rate for each in self.by_group)) != self.sample_rate:
            raise SettingError(
                f"sample_rate={self.sample_rate}; expected the largest of the groups' rates, {largest}."
            )

    @property
    def drawn_rates(self) -> tuple[float, ...]:
        """Probabilities that a sampler draws by, in the order of the groups; 0 for a group that may add
        nothing: an absent example does not even change in which order the others are added."""
        return tuple(each.sample_rate if self._noises(each) else 0.0 for each in self.by_group)

    def of_group(self, name: str) -> StepEvent | None:
        """Return what the step costs an example of a group; None: nothing.

        Formal guarantee: for datasets that differ in one example of the group, added or removed, whatever the
        other groups do, a step is the Poisson-subsampled Gaussian mechanism of the event that is returned:
        its queries have sensitivities c_k S and r_k under noise sigma S and sigma_s.

        | case | event |
        | --- | --- |
        | rate 0 | None: the example is in no sample |
        | both shares 0, or that of the bound without statistics | None: `drawn_rates` is 0 |
        | no share of the bound | the statistics query alone |
        | no share of the row | the gradient query alone |
        | a step without noise | a step without noise |
        | the group has no example in the data | the same: the guarantee is to the one that is added |

        Raises:
            SettingError: an unknown group.
        """
        share = next((each for each in self.by_group if each.name == name), None)
        if share is None:
            raise unknown_name("group", name, [each.name for each in self.by_group])
        noises = self._noises(share)
        return StepEvent(share.sample_rate, *noises) if share.sample_rate and noises else None

    def _noises(self, share: GroupShare) -> list[float]:
        """Noise multipliers of the queries that an example of the group may add to."""
        noises = [self.noise_multiplier / share.bound_share] if share.bound_share else []
        if self.statistics_noise is not None and share.row_share:
            noises.append(self.statistics_noise / share.row_share)
        return noises

    def __str__(self) -> str:
        groups = []
        for each in self.by_group:
            limits = {"of the bound": each.bound_share}
            if self.statistics_noise is not None:
                limits["of the row"] = each.row_share
            shares = "".join(f", {share:.6g} {of}" for of, share in limits.items() if share != 1)
            groups.append(f"{each.name}: {each.sample_rate:.6g}{shares}")
        return f"{super().__str__()} (by group: {'; '.join(groups)})"


def make_step_event(
    sample_rate: float,
    noise_multiplier: float,
    statistics_noise: float | None = None,
    by_group: tuple[GroupShare, ...] = (),
) -> StepEvent:
    """Return the event of a step: a plain one where groups do not differ and have all of both bounds.

    Args:
        sample_rate: of all, where there are no groups; else the groups' own rates count.
        noise_multiplier, statistics_noise: as those of `StepEvent`.
        by_group: shares of the groups; empty: all are equal.

    >>> equal = GroupShare("a", 0.2), GroupShare("b", 0.2)
    >>> make_step_event(0.1, 2.0, by_group=equal) == StepEvent(0.2, 2.0)
    True
    """
    if not by_group:
        return StepEvent(sample_rate, noise_multiplier, statistics_noise)
    largest = max(each.sample_rate for each in by_group)
    if all((each.sample_rate, each.bound_share, each.row_share) == (largest, 1, 1) for each in by_group):
        return StepEvent(largest, noise_multiplier, statistics_noise)
    return GroupedStepEvent(largest, noise_multiplier, statistics_noise, by_group)


@dataclass(frozen=True)
class ReleaseEvent(StepEvent):
    """A release beside the steps of a run: a Gaussian mechanism on all examples at once, without sampling.

    No step equals it, and no release of another name.

    Attributes:
        name: what is released.
        id: random name of its payment, as `Ledger.by_session` has it; "" where only its cost is meant.

    Raises:
        SettingError: no name, or another sample rate than 1.

    >>> ReleaseEvent(1.0, 20.0, name="class counts") == StepEvent(1.0, 20.0)
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


Event = StepEvent
"""Event that a ledger counts."""


def is_step(event: Event) -> bool:
    """True for a step of a run, of all groups alike or by group; False for releases.

    >>> is_step(StepEvent(0.1, 1.0)), is_step(ReleaseEvent(1.0, 20.0, name="counts"))
    (True, False)
    """
    return not isinstance(event, ReleaseEvent)


ROWS, PEOPLE = "rows", "people"
"""Unit of privacy: single rows, or people with all their rows. Runs of the two units add up to no
epsilon: a person with several rows loses more by a run on rows than its epsilon says."""


def kind_of(event: Event) -> Event:
    """Return the event without the identity of a payment: events of equal cost are equal.

    >>> paid = ReleaseEvent(1.0, 20.0, name="class counts", id="3f")
    >>> kind_of(paid) == ReleaseEvent(1.0, 20.0, name="class counts")
    True
    """
    return replace(event, id="") if isinstance(event, ReleaseEvent) else event


def checked_unit(kept: str, unit: str, what: str) -> str:
    """Return the unit of what is to be counted; raise a BudgetError where another is counted already.

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
        """Return the noise multiplier of the release, which is to be drawn now."""
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
        """Record one more step."""

    @abstractmethod
    def expect(self, event: Event, steps: int) -> None:
        """Announce up to `steps` steps of this kind, which a ledger may record or set aside in advance."""

    def promise(self, entries: Iterable[tuple[Event, int]]) -> None:  # noqa: B027
        """Announce all that a run will spend, before any of it; a budget sets it aside.

        Raises:
            BudgetError: it does not fit.
        """

    def take_unit(self, unit: str) -> None:
        """Remember whose privacy is counted: `ROWS` or `PEOPLE`.

        Raises:
            BudgetError: the other is counted already.
        """
        self._unit = checked_unit(self.unit if self.steps else "", unit, "this ledger")

    def pay(self, name: str, noise_multiplier: float) -> Payment:
        """Pay for one release beside the steps, under a new id.

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

    def check_paid(self, payment: Payment) -> None:
        """Refuse a payment that was made in another ledger, whose epsilon would count the release alone.

        Raises:
            SettingError: nothing is drawn.
        """
        if not any(payment.event in spent for spent in self.by_session.values()):
            raise SettingError(
                f"the release of {payment.event.name} was paid for in another ledger than the run's; pay in "
                "that one.",
                field="payment",
            )

    @abstractmethod
    def settle(self) -> None:
        """Signal that no step is in progress: what was recorded in advance and not spent is given back."""

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
        return sum([count for each, count in self.entries if each is event or each == event])

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
        """Take over the steps of the ledger that this one is a copy of, and of its run, not its session."""
        self._session, self._process = new_session(run_of(state["_session"])), os.getpid()
        self._unit = state.get("_unit", "")
        self._entries = list(state["_entries"])
        self._by_session = {session: dict(spent) for session, spent in state["_by_session"].items()}

    def spend(self, event: Event, session: str = "") -> None:
        """Record one more step; of another session, as in a budget, where one is named."""
        self.count(event, 1, session)

    def count(self, event: Event, steps: int, session: str = "") -> None:
        """Record `steps` >= 0 steps of one kind at once."""
        if not steps:
            return
        counts = self._by_session.setdefault(session or self.session, {})
        counts[event] = counts.get(event, 0) + steps
        event = kind_of(event)
        if self._entries and self._entries[-1][0] == event:
            steps += self._entries.pop()[1]
        self._entries.append((event, steps))

    def expect(self, event: Event, steps: int, session: str = "") -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing: no step was recorded in advance."""

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
