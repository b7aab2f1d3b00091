"""Privacy as risk: the most that any membership attack can achieve, and the noise that a risk asks for.

An attack sees all that a run releases and says whether one person's examples were in the data. Of those that
were not, it accuses a share, its false-positive rate; of those that were, it finds a share, its true-positive
rate. For every epsilon, (epsilon, delta(epsilon))-privacy limits the second by the first (Kairouz, Oh and
Viswanath 2015, Theorem 2.1); all epsilons together give the limits here, which are far tighter than those
that follow from one epsilon and delta (Kulynych et al. 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import dp_accounting
import numpy as np
import numpy.typing as npt

from equidp._validate import check_number, unknown_name
from equidp.accounting.cache import epsilon, remember
from equidp.accounting.privacy_losses import privacy_profile
from equidp.accounting.rows import run_event
from equidp.errors import SettingError
from equidp.kernel.epsilon import ACCOUNTANTS, Entries, largest_over_groups

Floats = npt.NDArray[np.float64]

FALSE_POSITIVE_RATES = (0.001, 0.01)
EPSILONS: Floats = 14.0 * np.linspace(0.0, 1.0, 401) ** 2
"""Where delta is computed: dense near 0, as losses of very private runs are, and up to -log(10^-6)."""

_USUAL_DELTA = 1e-6


def value_names(false_positive_rates: tuple[float, ...] = FALSE_POSITIVE_RATES) -> tuple[str, ...]:
    """Return the names of a risk's values, as in the tables of attacks.

    >>> value_names((0.01,))
    ('tpr_at_1%_fpr', 'advantage', 'auc')
    """
    return (*(f"tpr_at_{100 * rate:g}%_fpr" for rate in false_positive_rates), "advantage", "auc")


@final
@dataclass(frozen=True)
class Risk:
    """Upper bounds on what any membership attack achieves, whatever the attacker knows or can compute.

    Attributes:
        false_positive_rates: shares of others that an attack takes for members.
        true_positive_rates: the largest share of members that it finds then, one for each.
        advantage: the largest difference between the two rates; delta at epsilon 0.
        auc: the largest area under an attack's ROC curve; .5 is guessing.

    Example:
        >>> import equidp
        >>> from equidp.kernel.ledger import StepEvent
        >>> step = StepEvent(sample_rate=1.0, noise_multiplier=1.0)
        >>> risk = equidp.Risk.of([(step, 1)])
        >>> round(risk.true_positive_rates[1], 3), round(risk.advantage, 3), round(risk.auc, 3)
        (0.092, 0.383, 0.76)
    """

    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]
    advantage: float
    auc: float

    def __str__(self) -> str:
        """A clause; values are rounded up.

        >>> str(Risk((0.001, 0.01), (0.0183, 0.0923), 0.38291, 0.76)).split(", ")[1:]
        ['advantage at most 0.383', 'AUC at most 0.760']
        """
        found = " and ".join(
            f"{_percent(found)} at {'' if at else 'a false-positive rate of '}{100 * rate:g}%"
            for at, (rate, found) in enumerate(
                zip(self.false_positive_rates, self.true_positive_rates, strict=True)
            )
        )
        ends = f"advantage at most {_thousandths(self.advantage)}, AUC at most {_thousandths(self.auc)}"
        return f"true-positive rate at most {found}, {ends}"

    def values_by_name(self) -> dict[str, float]:
        """Return all values by name, as in the tables of attacks, such as tpr_at_1%_fpr.

        >>> Risk((0.01,), (0.0923,), 0.3829, 0.76).values_by_name()
        {'tpr_at_1%_fpr': 0.0923, 'advantage': 0.3829, 'auc': 0.76}
        """
        values = (*self.true_positive_rates, self.advantage, self.auc)
        return dict(zip(value_names(self.false_positive_rates), values, strict=True))

    def at_most(self, other: Risk) -> Risk:
        """Return the smaller of each value of two risks at the same false-positive rates."""
        rates = map(min, self.true_positive_rates, other.true_positive_rates)
        advantage, auc = min(self.advantage, other.advantage), min(self.auc, other.auc)
        return Risk(self.false_positive_rates, tuple(rates), advantage, auc)

    @classmethod
    def of(
        cls, entries: Entries, false_positive_rates: tuple[float, ...] = FALSE_POSITIVE_RATES, rows: int = 1
    ) -> Risk:
        """Return the risk of (step event, number of steps) pairs together, to the owner of `rows` examples.

        Of steps by group, each value is the largest over the groups that an example may be in.

        Raises:
            SettingError: a rate outside (0, 1), or rows not a whole number >= 1.
        """
        for rate in false_positive_rates:
            check_number("(0, 1)", ", a share of non-members", false_positive_rate=rate)
        given = tuple(entries)
        return cls(
            tuple(false_positive_rates),
            tuple(_value_of(given, "tpr", rate, rows) for rate in false_positive_rates),
            _value_of(given, "advantage", None, rows),
            _value_of(given, "auc", None, rows),
        )

    @classmethod
    def of_profile(
        cls, epsilons: Floats, deltas: Floats, false_positive_rates: tuple[float, ...] = FALSE_POSITIVE_RATES
    ) -> Risk:
        """Return the risk where (epsilons[i], deltas[i])-privacy holds for every i, [n], epsilons >= 0."""
        rates = tuple(MEASURES["tpr"](epsilons, deltas, rate) for rate in false_positive_rates)
        others = (MEASURES[name](epsilons, deltas, None) for name in ("advantage", "auc"))
        return cls(tuple(false_positive_rates), rates, *others)


def _percent(share: float) -> str:
    """A share in percent, rounded up to two decimals.

    >>> _percent(0.09231)
    '9.24%'
    """
    return f"{math.ceil(1e4 * share - 1e-9) / 100:g}%"


def _thousandths(share: float) -> str:
    return f"{math.ceil(1e3 * share - 1e-9) / 1000:.3f}"


def _true_positive_rate(epsilons: Floats, deltas: Floats, rate: float | None) -> float:
    assert rate is not None
    slopes, heights = _lines(epsilons, deltas)
    return float((slopes * rate + heights).min())


def _advantage(epsilons: Floats, deltas: Floats, _: float | None) -> float:
    """The least (e^epsilon - 1 + 2 delta) / (e^epsilon + 1): where the two lines of an epsilon meet."""
    return float((1 - 2 * (1 - deltas) / (1 + np.exp(epsilons))).min())


def _auc(epsilons: Floats, deltas: Floats, _: float | None) -> float:
    """The area below the lowest lines at their crossings; in between, the lower of the two at the ends."""
    slopes, heights = _lines(epsilons, deltas)
    steeper, flatter = slopes[:-1], slopes[1:]
    crossings = np.divide(
        np.diff(heights), steeper - flatter, out=np.zeros(len(flatter)), where=steeper > flatter
    )
    places = np.unique(np.concatenate([[0.0, 1.0], crossings.clip(0.0, 1.0)]))
    lowest = np.array([np.argmin(slopes * place + heights) for place in places])
    values, slope = slopes[lowest] * places + heights[lowest], slopes[lowest]
    widths, start, end = np.diff(places), values[:-1], values[1:]
    bend = np.divide(
        end - start - slope[1:] * widths,
        slope[:-1] - slope[1:],
        out=widths.copy(),
        where=slope[:-1] > slope[1:],
    ).clip(0.0, widths)
    middle = start + slope[:-1] * bend
    area = bend * (start + middle) / 2 + (widths - bend) * (middle + end) / 2
    return float(area.sum().clip(0.5, 1.0))


def _lines(epsilons: Floats, deltas: Floats) -> tuple[Floats, Floats]:
    """Return slopes, falling, and heights of lines that no attack's ROC curve rises above.

    At false-positive rate a they are e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a), and 1.
    """
    falling = np.exp(-epsilons)
    slopes = np.concatenate([np.exp(epsilons)[::-1], falling, [0.0]])
    return slopes, np.concatenate([deltas[::-1], 1 - falling * (1 - deltas), [1.0]])


MEASURES = {"tpr": _true_positive_rate, "advantage": _advantage, "auc": _auc}
"""Name -> (epsilons, deltas, false-positive rate or None) -> the largest that an attack achieves."""


@remember
def _value_of(entries: tuple[Any, ...], measure: str, rate: float | None, rows: int) -> float:
    def of_one_group(entries: tuple[Any, ...]) -> float:
        usual = epsilon(entries, _USUAL_DELTA, "pld" if rows > 1 else "rdp", rows)
        return MEASURES[measure](EPSILONS, _deltas(run_event(entries, rows), usual), rate)

    return of_one_group(entries) if rows > 1 else largest_over_groups(of_one_group, entries)


@lru_cache(maxsize=16)
def _deltas(event: dp_accounting.DpEvent, usual: float) -> Floats:
    return privacy_profile(event, EPSILONS, usual)


@final
@dataclass(frozen=True)
class RiskTarget:
    """A risk that noise is calibrated to.

    Attributes:
        measure: a name from `MEASURES`.
        most: the largest value allowed: tpr in (its false-positive rate, 1), advantage in (0, 1), auc in
            (.5, 1).
        false_positive_rate: of a tpr, in (0, 1); None for the others.

    Raises:
        SettingError: a value outside its range, an unknown measure.

    Example:
        >>> import equidp
        >>> equidp.RiskTarget.parse("tpr=0.05@0.01")
        RiskTarget(measure='tpr', most=0.05, false_positive_rate=0.01)
        >>> str(equidp.RiskTarget("advantage", 0.1))
        'advantage=0.1'
    """

    measure: str
    most: float
    false_positive_rate: float | None = None

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise unknown_name("measure of risk", self.measure, MEASURES)
        if (self.measure == "tpr") != (self.false_positive_rate is not None):
            raise SettingError(
                f"risk {self}; expected a false-positive rate for tpr alone: tpr=0.05@0.01, advantage=0.1 or "
                "auc=0.6.",
                field="risk",
            )
        if self.false_positive_rate is not None:
            check_number("(0, 1)", ", a share of non-members", false_positive_rate=self.false_positive_rate)
        chance = {"tpr": self.false_positive_rate, "advantage": 0.0, "auc": 0.5}[self.measure]
        check_number(f"({chance}, 1)", ": guessing has the lower end", **{self.measure: self.most})

    @classmethod
    def parse(cls, text: str) -> RiskTarget:
        """Return the target of a text: tpr=0.05@0.01, advantage=0.1 or auc=0.6.

        Raises:
            SettingError: says what is wrong.
        """
        measure, _, numbers = (part.strip() for part in text.partition("="))
        try:
            most, *rate = (float(number) for number in numbers.split("@", 1))
        except ValueError as error:
            raise SettingError(
                f"risk {text!r}; expected tpr=0.05@0.01 (a true-positive rate at a false-positive rate), "
                "advantage=0.1 or auc=0.6."
            ) from error
        return cls(measure, most, *rate)

    def __str__(self) -> str:
        at = "" if self.false_positive_rate is None else f"@{self.false_positive_rate:g}"
        return f"{self.measure}={self.most:g}{at}"

    def measure_event(self, event: dp_accounting.DpEvent) -> float:
        """Return the measure that an event has; at most `most` where the target is kept."""
        deltas = _deltas(event, ACCOUNTANTS["rdp"](event, _USUAL_DELTA))
        return MEASURES[self.measure](EPSILONS, deltas, self.false_positive_rate)
