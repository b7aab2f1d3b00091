"""Events: what one access to the data costs an example, in one form for steps and releases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from equidp._validate import check_number
from equidp.errors import SettingError

STEP = "step"
"""Name of the event of a step. A release has another."""
SMALLEST_SHARE = 1 / 16
"""Smallest share of a bound that a label may have, except 0. Rounding adds a share of the whole bound to a
sum (`bounding.ROUNDING`). For smaller shares, it would not be small compared with the label's own bound."""


class Label(NamedTuple):
    """One value of a column of labels, such as a group of people. Each example has one label in each column.

    Attributes:
        column: digest of the column, from its names and each example's label. "1" in two columns is two
            labels.
        name: name of the value.
    """

    column: str
    name: str


class Cost(NamedTuple):
    """Cost of an event to one example: a Poisson-subsampled Gaussian mechanism.

    Attributes:
        rate: probability that the example is sampled, in [0, 1].
        noise: noise multiplier, relative to what the example can move. 0: no privacy. Infinite: nothing is
            spent.
    """

    rate: float
    noise: float


@dataclass(frozen=True)
class Share:
    """Public numbers that decide how a step treats the examples of one label.

    Attributes:
        label: name of the label.
        rate: probability q_k that an example of the label is in a sample, in [0, 1].
        bound: share c_k of the sensitivity that its gradients may use; 0, or in [1/16, 1].
        row: largest norm r_k of its rows of statistics; 0, or in [1/16, 1].

    Raises:
        SettingError: the name is empty, or a value is outside its range.
    """

    label: str
    rate: float
    bound: float = 1.0
    row: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.label, str) and self.label):
            raise SettingError(f"label={self.label!r}; expected the name of a group.")
        check_number("[0, 1]", ", a probability", rate=self.rate)
        for name, share in (("bound", self.bound), ("row", self.row)):
            if share != 0:
                check_number(f"[{SMALLEST_SHARE}, 1]", ", a share; 0: none", **{name: share})


@dataclass(frozen=True)
class Event:
    """One access to the data: a Poisson sample, a gradient query, and perhaps a statistics query on it.

    A release that is not a step is an event of rate 1 with its own name.

    Attributes:
        rate: largest probability that an example is in the sample, in (0, 1].
        noise: noise sigma of the gradient query over its sensitivity, in [0, inf). 0: no privacy.
        statistics_noise: noise sigma_s of the statistics query over its sensitivity of 1. None: no such
            query.
        name: name of the event, `STEP` for a step.
        shares: one share per label, in the order of their numbers. Empty: all examples are treated alike.
        column: digest of the labels' column (`Label`), or "" without shares.

    Raises:
        SettingError: a value is NaN or outside its range, a label has two shares, or `rate` is not the
            largest rate of the shares.

    >>> event = Event(0.02, 1.0, shares=(Share("rare", 0.02, bound=0.5), Share("*", 0.01)), column="sex")
    >>> event.cost(Label("sex", "rare"))
    Cost(rate=0.02, noise=2.0)
    >>> event.cost(Label("smoker", "rare"))
    Cost(rate=0.02, noise=1.0)
    """

    rate: float
    noise: float
    statistics_noise: float | None = None
    name: str = STEP
    shares: tuple[Share, ...] = ()
    column: str = ""

    def __post_init__(self) -> None:
        check_number("(0, 1]", ", a probability", rate=self.rate)
        check_number("[0, inf)", noise=self.noise)
        if self.statistics_noise is not None:
            check_number("[0, inf)", ", or None", statistics_noise=self.statistics_noise)
        if not self.name:
            raise SettingError("name=''; expected the name of what is released.")
        names = [each.label for each in self.shares]
        if len({*names}) < len(names):
            raise SettingError(
                f"labels {', '.join(names)}; expected names that differ.",
                field="shares",
            )
        if self.shares and (largest := max(each.rate for each in self.shares)) != self.rate:
            raise SettingError(f"rate={self.rate}; expected the largest of the shares' rates, {largest}.")

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels that the event has shares for, or none if all examples are treated alike."""
        return tuple(Label(self.column, each.label) for each in self.shares)

    @property
    def drawn_rates(self) -> tuple[float, ...]:
        """Sampling probability of each label, or 0 for a label that may add nothing.

        An absent example does not even change the order in which the others are added."""
        return tuple(self.cost(label).rate for label in self.labels)

    def with_noises(self, change: Callable[[float], float]) -> Event:
        """Return the event with the same change to both noise multipliers.

        >>> Event(0.1, 1.0, 3.0).with_noises(lambda noise: 2 * noise)
        Event(rate=0.1, noise=2.0, statistics_noise=6.0, name='step', shares=(), column='')
        """
        statistics = None if self.statistics_noise is None else change(self.statistics_noise)
        return replace(self, noise=change(self.noise), statistics_noise=statistics)

    def cost(self, label: Label | None = None) -> Cost:
        """Return the event's cost to an example of a label. None: a cost that covers any example.

        Formal guarantee: for datasets that differ in one example of the label, added or removed, the event is
        the Poisson-subsampled Gaussian mechanism that is returned. Both queries use one sample, so together
        they are one Gaussian mechanism of noise multiplier ((c / sigma)^2 + (r / sigma_s)^2)^(-1/2),
        subsampled once (Andrew et al. 2021, Theorem 1).

        | case | cost |
        | --- | --- |
        | None, a label of another column, or one without a share here | the largest rate, whole bounds |
        | rate 0, or a share of 0 in every query | rate 0, infinite noise: nothing |
        | a query without noise in which the label has a share above 0 | noise 0: no privacy |
        """
        share = Share("*", self.rate)
        if label is not None and label.column == self.column:
            share = next((each for each in self.shares if each.label == label.name), share)
        queries = [(share.bound, self.noise)]
        if self.statistics_noise is not None:
            queries.append((share.row, self.statistics_noise))
        used = [(part, noise) for part, noise in queries if part]
        if not used or not share.rate:
            return Cost(0.0, math.inf)
        noises, rate = [noise / part for part, noise in used], float(share.rate)
        if not all(noises):
            return Cost(rate, 0.0)
        return Cost(rate, noises[0] if len(noises) == 1 else sum(each**-2 for each in noises) ** -0.5)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Event:
        """Return the event from its `dataclasses.asdict`, also after a round trip through JSON.

        >>> from dataclasses import asdict
        >>> event = Event(0.1, 1.0, shares=(Share("a", 0.1),), column="1")
        >>> Event.of_record(asdict(event)) == event
        True
        """
        return cls(**{**record, "shares": tuple(Share(**each) for each in record["shares"])})

    def __str__(self) -> str:
        text = f"sample rate {self.rate:.6g}, noise multiplier {self.noise:.6g}"
        if self.statistics_noise is not None:
            text += f", statistics noise {self.statistics_noise:.6g}"
        for each in self.shares:
            text += f"; {each.label}: {each.rate:.6g}"
            text += "" if each.bound == 1 else f", {each.bound:.6g} of the bound"
            if self.statistics_noise is not None and each.row != 1:
                text += f", {each.row:.6g} of the row"
        return text


Entries = Iterable[tuple[Event, int]]
"""(event, count) pairs."""
EventCounts = tuple[tuple[Event, int], ...]
"""The same as a tuple, which can be read more than once."""
UNITS = ROWS, PEOPLE = "rows", "people"
"""Unit of privacy: single rows, or people with all their rows. Costs of the two units cannot be added. A run
on rows costs a person with several rows more than its epsilon says."""


class Account(Protocol):
    """The part of a ledger that the kernel uses (`equidp.ledger`)."""

    def charge(self, run: str, event: Event, ahead: int = 1) -> None:
        """Record one more event of a run, of which up to `ahead` are left with it; return once it is on disk.

        Raises:
            BudgetError: the event cannot be recorded or is not allowed, and must not take place.
        """

    def count(self, run: str, event: Event) -> int:
        """Return the number of these events that a run has spent."""
