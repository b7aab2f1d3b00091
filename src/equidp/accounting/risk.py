"""Privacy as risk: the most that any membership attack can achieve.

An attack sees all that a run releases, and decides whether one person's examples were in the data. Its
false-positive rate is the share of non-members that it accuses. Its true-positive rate is the share of
members that it finds. For every epsilon, (epsilon, delta(epsilon))-privacy limits the second by the first
(Kairouz, Oh and Viswanath 2015, Theorem 2.1). All epsilons together give the limits here, which are far
tighter than limits from one epsilon and delta (Kulynych et al. 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting.pld import PLDAccountant

from equidp._validate import check_number
from equidp.accounting.rows import checked_rows, epsilon, mechanism
from equidp.errors import SettingError
from equidp.kernel.epsilon import (
    ACCOUNTANTS,
    FINE,
    TRANSFORM_LOSS,
    WIDEST,
    checked_entries,
    count_steps,
    mechanism as mechanism_of_row,
    over_labels,
)
from equidp.kernel.event import Entries, Label

Floats = npt.NDArray[np.float64]

FALSE_POSITIVE_RATES = (0.001, 0.01)
EPSILONS: Floats = 14.0 * np.linspace(0.0, 1.0, 401) ** 2
"""Epsilons that delta is computed at: dense near 0, as losses of private runs are, up to -log(10^-6)."""

_USUAL_DELTA = 1e-6
_PROFILE = 2e-4
"""Width of the bins of a privacy profile over epsilon: about 0.1% above."""


def value_names(false_positive_rates: tuple[float, ...] = FALSE_POSITIVE_RATES) -> tuple[str, ...]:
    """Return the names of a risk's values, as in the tables of attacks.

    >>> value_names((0.01,))
    ('tpr_at_1%_fpr', 'advantage')
    """
    return (*(f"tpr_at_{100 * rate:g}%_fpr" for rate in false_positive_rates), "advantage")


@final
@dataclass(frozen=True)
class Risk:
    """Upper bounds on the success of any membership attack, for any knowledge and computing power.

    Attributes:
        false_positive_rates: shares of non-members that an attack takes for members.
        true_positive_rates: largest share of members that it then finds, one per false-positive rate.
        advantage: largest difference between the two rates; delta at epsilon 0.

    Example:
        >>> import equidp
        >>> from equidp.kernel.event import Event
        >>> risk = equidp.Risk.of([(Event(rate=1.0, noise=1.0), 1)])
        >>> round(risk.true_positive_rates[1], 3), round(risk.advantage, 3)
        (0.092, 0.383)
    """

    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]
    advantage: float

    def __str__(self) -> str:
        """A clause; values are rounded up."""
        pairs = zip(self.false_positive_rates, self.true_positive_rates, strict=True)
        texts = [f"{math.ceil(1e4 * most - 1e-9) / 100:g}% at {100 * rate:g}%" for rate, most in pairs]
        found = " and ".join(texts).replace(" at ", " at a false-positive rate of ", 1)
        advantage = math.ceil(1e3 * self.advantage - 1e-9) / 1000
        return f"true-positive rate at most {found}, advantage at most {advantage:.3f}"

    def values_by_name(self) -> dict[str, float]:
        """Return all values by name (`value_names`)."""
        return dict(zip(value_names(self.false_positive_rates), self.values, strict=True))

    @property
    def values(self) -> tuple[float, ...]:
        """The true-positive rates, followed by the advantage."""
        return (*self.true_positive_rates, self.advantage)

    def at_most(self, other: Risk) -> Risk:
        """Return the smaller of each value of two risks at the same false-positive rates."""
        rates = map(min, self.true_positive_rates, other.true_positive_rates)
        return Risk(self.false_positive_rates, tuple(rates), min(self.advantage, other.advantage))

    @classmethod
    def of(
        cls, entries: Entries, false_positive_rates: tuple[float, ...] = FALSE_POSITIVE_RATES, rows: int = 1
    ) -> Risk:
        """Return the risk of (event, count) pairs together, for the owner of `rows` examples.

        Each value is the largest over the labels that an example may have. For several rows, it is the value
        at the largest rate and whole bounds.
        """
        for rate in false_positive_rates:
            check_number("(0, 1)", ", a share of non-members", false_positive_rate=rate)
        given, rates = checked_entries(entries), tuple(false_positive_rates)
        if checked_rows(rows) > 1:
            return _risk(mechanism(given, rows), epsilon(given, _USUAL_DELTA, rows=rows), rates)

        def largest(place: int) -> float:
            def of_label(label: Label | None) -> float:
                return _risk_of_row(mechanism_of_row(given, label), rates).values[place]

            return over_labels(given, of_label)[0]

        *found, advantage = map(largest, range(len(rates) + 1))
        return cls(rates, tuple(found), advantage)

    @classmethod
    def of_profile(
        cls, epsilons: Floats, deltas: Floats, false_positive_rates: tuple[float, ...] = FALSE_POSITIVE_RATES
    ) -> Risk:
        """Return the risk if (epsilons[i], deltas[i])-privacy holds for every i, [n], epsilons >= 0.

        At false-positive rate a, no attack's ROC curve rises above e^epsilon a + delta, 1 - e^-epsilon (1 -
        delta - a), and 1. The advantage is largest at the point where the first two lines meet.
        """
        rates = np.asarray(false_positive_rates)[:, None]
        rising, falling = np.exp(epsilons) * rates + deltas, 1 - np.exp(-epsilons) * (1 - deltas - rates)
        tops = np.minimum(rising, falling).min(axis=1).clip(max=1.0)
        advantage = (1 - 2 * (1 - deltas) / (1 + np.exp(epsilons))).min()
        return cls(tuple(false_positive_rates), tuple(tops.tolist()), float(advantage))


@lru_cache(maxsize=64)
def _risk(event: dp_accounting.DpEvent, usual: float, rates: tuple[float, ...]) -> Risk:
    return Risk.of_profile(EPSILONS, privacy_profile(event, EPSILONS, usual), rates)


def _risk_of_row(event: dp_accounting.DpEvent, rates: tuple[float, ...]) -> Risk:
    return _risk(event, ACCOUNTANTS["rdp"](event, _USUAL_DELTA), rates)


def privacy_profile(event: dp_accounting.DpEvent, epsilons: Floats, usual: float) -> Floats:
    """Return delta at each epsilon, of both directions the larger: the whole trade-off, not one point of it.

    Guarantee: for every pair, what `epsilon` guarantees.

    | case | delta |
    | --- | --- |
    | no steps | 0 |
    | a step without noise, or usual above 10^5 | 1 |

    Args:
        event: event of `equidp.accounting.rows.mechanism`.
        epsilons: increasing, >= 0, [n].
        usual: about the epsilon at a small delta; bins are a small part of it.

    >>> import dp_accounting
    >>> gaussian = dp_accounting.GaussianDpEvent(1.0)
    >>> privacy_profile(gaussian, np.array([0.0, 1.0]), usual=5.0).round(3)
    array([0.383, 0.127])
    """
    if event == dp_accounting.NoOpDpEvent():
        return np.zeros(len(epsilons))
    if not usual <= 1 / WIDEST:
        return np.ones(len(epsilons))
    bins = PLDAccountant(value_discretization_interval=max(FINE, _PROFILE * usual)).compose(event)
    deltas = np.broadcast_to(np.asarray(bins.get_delta(epsilons), np.float64), np.shape(epsilons))
    return np.clip(deltas + 10 * (100 + count_steps(event)) * TRANSFORM_LOSS, 0.0, 1.0)


@final
@dataclass(frozen=True)
class RiskTarget:
    """A risk to calibrate the noise to.

    Attributes:
        most: largest value allowed, in (its false-positive rate, 1), or for the advantage in (0, 1).
        false_positive_rate: false-positive rate at which `most` limits the true-positive rate, in (0, 1).
            None: `most` limits the advantage.

    Raises:
        SettingError: a value is outside its range.

    Example:
        >>> import equidp
        >>> str(equidp.RiskTarget(0.1)), str(equidp.RiskTarget(0.05, false_positive_rate=0.01))
        ('advantage 0.1', 'true-positive rate 0.05 at a false-positive rate of 0.01')
    """

    most: float
    false_positive_rate: float | None = None

    def __post_init__(self) -> None:
        rate = self.false_positive_rate
        if rate is not None:
            check_number("(0, 1)", ", a share of non-members", false_positive_rate=rate)
        check_number(f"({rate or 0.0}, 1)", ": guessing has the lower end", risk=self.most)

    @classmethod
    def of(cls, *numbers: float) -> RiskTarget | None:
        """Return the target for one number or two, or None without numbers."""
        if len(numbers) > 2:
            raise SettingError(
                f"risk={numbers}; expected an advantage, or a true-positive and a false-positive rate.",
                field="risk",
            )
        return cls(*numbers) if numbers else None

    def __str__(self) -> str:
        if self.false_positive_rate is None:
            return f"advantage {self.most:g}"
        return f"true-positive rate {self.most:g} at a false-positive rate of {self.false_positive_rate:g}"

    def measure_event(self, event: dp_accounting.DpEvent) -> float:
        """Return an event's value of this risk. The target is met if it is at most `most`."""
        rate = self.false_positive_rate
        return _risk_of_row(event, () if rate is None else (rate,)).values[0]
