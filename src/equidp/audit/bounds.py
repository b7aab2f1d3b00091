"""Lower bounds on epsilon at a level of confidence, from counts of correct and wrong guesses.

`epsilon_from_rates` assumes nothing about the mechanism. `noise_from_rates` assumes that only its noise may
differ. A bound is above the true epsilon with probability at most 1 - level, if the rule that guesses (a
threshold) was fixed before the guesses that are counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from dp_accounting import get_epsilon_gaussian
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtri

from equidp.accounting.risk import Risk
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import EventCounts

_MOST_NOISE = 64.0
"""Scale of the noise beyond which the bound is 0."""
_LEAST_NOISE = 0.1
"""Noise multiplier of a step below which no noise explains the guesses."""
_PRECISION = 2e-3
"""Relative precision of a scale."""


@final
@dataclass(frozen=True)
class Rates:
    """Counts of a rule's guesses "in" over runs with the canary and over runs without.

    Attributes:
        found, inside: runs with the canary that were guessed "in", and all runs with it.
        false, outside: runs without the canary that were guessed "in", and all runs without it.
    """

    found: int
    inside: int
    false: int
    outside: int

    def limits(self, level: float) -> tuple[float, float]:
        """Return the least true-positive rate and the largest false-positive rate, both at once at `level`.

        Clopper and Pearson (1934), with half of 1 - level for each.

        >>> [round(limit, 4) for limit in Rates(50, 100, 0, 100).limits(0.95)]
        [0.3983, 0.0362]
        """
        return (
            _lowest_rate(self.found, self.inside, (1 + level) / 2),
            1 - _lowest_rate(self.outside - self.false, self.outside, (1 + level) / 2),
        )

    def swap_sides(self) -> Rates:
        """Return the counts of the guesses "out", with runs without the canary as `inside`."""
        return Rates(self.outside - self.false, self.outside, self.inside - self.found, self.inside)


def _lowest_rate(successes: int, trials: int, level: float) -> float:
    """Least rate that explains the successes, at a one-sided level."""
    return float(betaincinv(successes, trials - successes + 1, 1 - level)) if successes else 0.0


def epsilon_from_rates(rates: Rates, delta: float, level: float = 0.95) -> float:
    """Return a lower bound on epsilon for any mechanism: ln((TPR - delta) / FPR), or the same for "out".

    Args:
        rates: rates of a rule that was fixed before the counted runs.
        delta: delta in [0, 1).
        level: confidence level.

    Returns:
        >= 0, finite.

    >>> round(epsilon_from_rates(Rates(900, 1000, 10, 1000), delta=1e-5), 3)
    3.872
    """
    bound = 0.0
    for each in (rates, rates.swap_sides()):
        found, false = each.limits(level)
        if found > delta and false > 0:
            bound = max(bound, math.log((found - delta) / false))
    return bound


def noise_from_rates(rates: Rates, claim: EventCounts, delta: float, level: float = 0.95) -> float:
    """Return a lower bound on epsilon for the claimed mechanism with its noise scaled.

    It assumes Poisson samples at the claimed rate and Gaussian noise of some scale. Another mechanism is
    judged by the one of these that it resembles. At confidence `level`, the rates are above the trade-off
    curve of each mechanism with more noise than the one whose epsilon is returned. For a Gaussian mechanism
    this is mu = z(TPR) - z(FPR) (Dong, Roth and Su 2022, equation 6).

    Args:
        rates: rates of a rule that was fixed before the counted runs.
        claim: one event without shares, and how often.
        delta: delta in (0, 1).
        level: confidence level.

    Returns:
        >= 0, or infinite if no noise explains the rates.

    >>> from equidp.kernel.event import Event
    >>> claim = ((Event(rate=1.0, noise=1.0), 1),)
    >>> round(noise_from_rates(Rates(900, 1000, 10, 1000), claim, delta=1e-5), 2)
    18.61
    """
    found, false = rates.limits(level)
    if found <= false:
        return 0.0
    ((event, steps),) = claim
    if event.rate == 1:
        return float(get_epsilon_gaussian(1 / (ndtri(found) - ndtri(false)), delta))

    def scaled(log_scale: float) -> EventCounts:
        return ((event.with_noises(lambda noise: noise * math.exp(log_scale)), steps),)

    def excess(log_scale: float) -> float:
        return Risk.of(scaled(log_scale), (false,)).true_positive_rates[0] - found

    least, most = math.log(_LEAST_NOISE / event.noise), math.log(_MOST_NOISE)
    if excess(most) >= 0:
        return 0.0
    if excess(least) < 0:
        return math.inf
    return epsilon(scaled(brentq(excess, least, most, xtol=_PRECISION) + _PRECISION), delta)
