"""The noise that a target epsilon asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from scipy.optimize import brentq

from equidp._validate import check_number
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent

_TOLERANCE = 1e-4
"""Relative, on the noise multiplier."""


@lru_cache(maxsize=256)
def calibrate_noise(
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    statistics_ratio: float | None = None,
    accountant: str = "pld",
    spent: tuple[tuple[StepEvent, int], ...] = (),
) -> float:
    """The smallest noise multiplier, to a relative 1e-4, whose whole run stays within a target epsilon.

    Args:
        target_epsilon: > 0.
        delta: in (0, 1).
        sample_rate: q in (0, 1].
        steps: T >= 1.
        statistics_ratio: sigma_s / sigma of the policy's statistics; None: it reads none.
        accountant: a name from `ACCOUNTANTS`.
        spent: what was spent before on the same data, and counts towards the target.

    Returns:
        sigma, such that `epsilon` of what was spent and T steps is at most `target_epsilon`.

    Raises:
        SettingError: the target is not a number > 0, or no noise up to 10^6 reaches it.
    """
    check_number("(0, inf)", target_epsilon=target_epsilon)

    def excess(name: str) -> Callable[[float], float]:
        def of(sigma: float) -> float:
            noise = None if statistics_ratio is None else statistics_ratio * sigma
            value = epsilon((*spent, (StepEvent(sample_rate, sigma, noise), steps)), delta, name)
            return math.log(min(value, 1e9) / target_epsilon) if value else -math.inf

        return of

    if accountant != "pld":
        return _smallest(excess(accountant), 1.0, target_epsilon)
    # Renyi accounting is cheap and never below PLD, so its answer is a good place to start from.
    return _smallest(excess("pld"), _smallest(excess("rdp"), 1.0, target_epsilon), target_epsilon)


def _smallest(excess: Callable[[float], float], start: float, target: float) -> float:
    """The smallest sigma with excess(sigma) <= 0, from above; `excess` falls as sigma grows."""
    low = high = start
    factor = 1.1 if start != 1.0 else 2.0
    while excess(high) > 0:
        high *= factor
        if high > 1e6:
            raise SettingError(
                f"target epsilon={target} cannot be reached with any noise at this delta; raise one of the two."
            )
    while excess(low) <= 0:
        if low < 1e-2:
            return high
        high, low = low, low / factor
    sigma = float(brentq(lambda x: max(excess(x), -50.0), low, high, rtol=_TOLERANCE / 4))
    while excess(sigma) > 0:
        sigma *= 1 + _TOLERANCE / 4
    return sigma
