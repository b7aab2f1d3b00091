"""Lower bounds on epsilon at a level of confidence, from counts of correct and wrong guesses.

| bound | needs | assumes |
| --- | --- | --- |
| `epsilon_from_rates` | runs with and without one canary | nothing: holds for any mechanism |
| `noise_from_rates` | the same | the claimed mechanism, with more or less noise |

A bound is above the true epsilon with probability at most 1 - level, provided that the rule that guesses (a
threshold) was fixed before the guesses that are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, final

import numpy as np
import numpy.typing as npt
from dp_accounting import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from scipy.special import betaincinv, ndtr, ndtri

from equidp._validate import check_number, check_whole
from equidp.errors import SettingError
from equidp.kernel.epsilon import Entries, effective_noise_multiplier, epsilon, run_event
from equidp.kernel.ledger import StepEvent

_MOST_NOISE = 64.0
"""Scale of the noise beyond which the bound is 0."""


@final
@dataclass(frozen=True)
class Rates:
    """Counts of a rule's guesses "in" over runs with the canary and over runs without.

    Attributes:
        found, inside: runs with the canary that were guessed "in", and all runs with it.
        false, outside: runs without the canary that were guessed "in", and all runs without it.

    Raises:
        SettingError: a negative count, or more guesses than runs.
    """

    found: int
    inside: int
    false: int
    outside: int

    def __post_init__(self) -> None:
        check_whole(0, found=self.found, inside=self.inside, false=self.false, outside=self.outside)
        if self.found > self.inside or self.false > self.outside:
            raise SettingError(
                f"{self}: more guesses than runs.", field="found" if self.found > self.inside else "false"
            )

    def limits(self, level: float) -> tuple[float, float]:
        """Return the least true-positive rate and the largest false-positive rate, both at once at `level`.

        Clopper and Pearson (1934), with half of 1 - level for each.

        >>> [round(limit, 4) for limit in Rates(50, 100, 0, 100).limits(0.95)]
        [0.3983, 0.0362]
        """
        return (
            lowest_rate(self.found, self.inside, (1 + level) / 2),
            1 - lowest_rate(self.outside - self.false, self.outside, (1 + level) / 2),
        )

    def swap_sides(self) -> Rates:
        """Return the counts of the guesses "out", with runs without the canary as `inside`."""
        return Rates(self.outside - self.false, self.outside, self.inside - self.found, self.inside)


def lowest_rate(successes: int, trials: int, level: float) -> float:
    """Return the least rate that explains the successes, at a one-sided level (Clopper-Pearson)."""
    return float(betaincinv(successes, trials - successes + 1, 1 - level)) if successes else 0.0


def epsilon_from_rates(rates: Rates, delta: float, level: float = 0.95) -> float:
    """Return a lower bound on epsilon for any mechanism: ln((TPR - delta) / FPR), or the same for "out".

    Args:
        rates: of a rule that was fixed before the counted runs.
        delta: in [0, 1).
        level: of confidence.

    Returns:
        >= 0, finite.

    >>> round(epsilon_from_rates(Rates(900, 1000, 10, 1000), delta=1e-5), 3)
    3.872
    """
    _check(delta, level)
    bound = 0.0
    for each in (rates, rates.swap_sides()):
        found, false = each.limits(level)
        if found > delta and false > 0:
            bound = max(bound, math.log((found - delta) / false))
    return bound


def noise_from_rates(rates: Rates, family: NoiseFamily, delta: float, level: float = 0.95) -> float:
    """Return a lower bound on epsilon for the claimed mechanism with its noise scaled.

    The rates, at confidence `level`, lie above the trade-off curve of every member of the family with more
    noise than the member whose epsilon is returned. For a Gaussian mechanism that is mu = z(TPR) - z(FPR)
    (Dong, Roth and Su 2022, equation 6).

    Returns:
        >= 0; infinite where no member explains the rates.

    >>> from equidp.kernel.ledger import StepEvent
    >>> family = NoiseFamily([(StepEvent(1.0, 1.0), 1)])
    >>> round(noise_from_rates(Rates(900, 1000, 10, 1000), family, delta=1e-5), 2)
    18.61
    """
    _check(delta, level)
    found, false = rates.limits(level)
    return _least_epsilon(family, delta, lambda scale: float(family.reach(scale, false)) >= found)


def _least_epsilon(family: NoiseFamily, delta: float, possible: Callable[[float], bool]) -> float:
    """Epsilon of the family's member with the most noise that is possible, to the family's precision."""
    low = high = 1.0  # of the noise's scale
    while possible(high):
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            return 0.0
    if low == high:
        while not possible(low := low / 2):
            high = low
            if low < family.smallest:
                return math.inf
    while high / low > 1 + family.precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if possible(middle) else (low, middle)
    return family.epsilon(high, delta)


def _check(delta: float, level: float) -> None:
    check_number("[0, 1)", delta=delta)
    check_number("(0, 1)", ", such as 0.95", level=level)


Floats = npt.NDArray[np.float64]

_LOSSES = np.concatenate([[0.0], np.geomspace(1e-3, 60.0, 250)])
"""Epsilons of the tangents that a trade-off curve is made of."""
_FAINT = 0.1


@final
class NoiseFamily:
    """Mechanisms that differ from the claimed mechanism in the scale of their noise alone.

    Lower bounds by a family assume that the mechanism is a member: Poisson samples at the claimed rates,
    Gaussian noise on gradients and statistics. A mechanism outside, such as one that releases a sum without
    noise, is judged by the member that it resembles.

    Trade-off curves are exact where every step takes all examples (one Gaussian mechanism), else from privacy
    loss distributions, rounded towards more loss, the worse of both directions.

    Args:
        entries: (event, number of steps) pairs of the claim.

    Raises:
        SettingError: no steps, or steps without noise, which claim no privacy.

    >>> family = NoiseFamily([(StepEvent(1.0, 1.0), 1)])
    >>> round(float(family.reach(1.0, 0.01)), 4)  # mu = 1
    0.0924
    """

    def __init__(self, entries: Entries) -> None:
        self.entries = tuple(entries)
        if not self.entries or any(_sigma(event) == 0 for event, _ in self.entries):
            raise SettingError(
                "steps without noise claim no privacy; there is nothing to audit.", field="noise_multiplier"
            )

    @cached_property
    def mu(self) -> float | None:
        """mu of the family's Gaussian mechanism: sqrt(sum of 1 / sigma^2); None where steps sample."""
        if any(event.sample_rate != 1 for event, _ in self.entries):
            return None
        return math.sqrt(sum(steps / _sigma(event) ** 2 for event, steps in self.entries))

    def reach(self, scale: float, rate: float | Floats) -> Floats:
        """Return the largest true-positive rate of any test at a false-positive rate, under scaled noise."""
        rate = np.asarray(rate, dtype=np.float64)
        if self.mu is not None:
            return np.asarray(ndtr(ndtri(rate) + self.mu / scale))
        deltas, rates = _deltas(self._scale_entries(scale)), rate[..., np.newaxis]
        over = np.exp(_LOSSES) * rates + deltas
        under = 1 - np.exp(-_LOSSES) * np.maximum(0.0, 1 - deltas - rates)
        return np.asarray(np.minimum(np.minimum(over, under).min(axis=-1), 1.0))

    def epsilon(self, scale: float, delta: float) -> float:
        """Return epsilon under noise times `scale`."""
        if self.mu is not None:
            return float(get_epsilon_gaussian(scale / self.mu, delta))
        return epsilon(self._scale_entries(scale), delta)

    @property
    def precision(self) -> float:
        """Relative distance below which two scales count as equal."""
        return 5e-3 if self.mu is None else 1e-5

    @property
    def smallest(self) -> float:
        """Scale at which a step's noise is a tenth of its sensitivity, and epsilon too large to compute."""
        return _FAINT / min(_sigma(event) for event, _ in self.entries)

    def _scale_entries(self, scale: float) -> tuple[tuple[StepEvent, int], ...]:
        return tuple((_scale_noise(event, scale), steps) for event, steps in self.entries)


def _sigma(event: StepEvent) -> float:
    return effective_noise_multiplier(event.noise_multiplier, event.statistics_noise)


def _scale_noise(event: StepEvent, scale: float) -> StepEvent:
    statistics = event.statistics_noise
    return StepEvent(
        event.sample_rate, event.noise_multiplier * scale, None if statistics is None else statistics * scale
    )


@lru_cache(maxsize=256)
def _deltas(entries: tuple[tuple[StepEvent, int], ...]) -> Any:
    """Delta at each of `_LOSSES`."""
    width = 5e-3 * max(1.0, 0.25 * max(_sigma(event) ** -2 for event, _ in entries))
    accountant = PLDAccountant(value_discretization_interval=width)
    return np.asarray(accountant.compose(run_event(entries)).get_delta(_LOSSES), dtype=np.float64)
