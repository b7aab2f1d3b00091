"""The noise that a target epsilon asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import final

import dp_accounting
from dp_accounting.mechanism_calibration import ExplicitBracketInterval, calibrate_dp_mechanism

from equidp._validate import check_number
from equidp.accounting.cache import remember
from equidp.errors import SettingError
from equidp.kernel.epsilon import ACCOUNTANTS, checked_accountant, checked_delta
from equidp.kernel.events import run_event
from equidp.kernel.ledger import StepEvent

_TOLERANCE = 1e-4
"""Relative, on the noise multiplier."""


@remember
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
    """Returns the smallest noise multiplier, to a relative 1e-4, whose whole run keeps to a target epsilon.

    Args:
        target_epsilon: > 0.
        delta: in (0, 1).
        sample_rate: q in (0, 1].
        steps: T >= 1.
        statistics_ratio: sigma_s / sigma of the policy's statistics; None: it reads none.
        accountant: a name from `ACCOUNTANTS`.
        spent: what was spent before on the same data, and counts towards the target.

    Returns:
        sigma, such that `epsilon` of what was spent and T steps is at most `target_epsilon`; never too little
        noise.

    Raises:
        SettingError: a number outside its range, an unknown accountant, or no noise up to 10^6 reaches the
        target.

    >>> round(calibrate_noise(3.0, delta=1e-5, sample_rate=0.02, steps=1000, accountant="rdp"), 2)
    1.22
    """
    check_number("(0, inf)", target_epsilon=target_epsilon)
    checked_delta(delta)
    checked_accountant(accountant)

    def run(sigma: float) -> dp_accounting.DpEvent:
        noise = None if statistics_ratio is None else statistics_ratio * sigma
        return run_event((*spent, (StepEvent(sample_rate, sigma, noise), steps)))

    def smallest(name: str, start: float, factor: float) -> float:
        epsilon = cache(ACCOUNTANTS[name])
        low = high = start
        while epsilon(run(high), delta) > target_epsilon:
            low, high = high, high * factor
            if high > 1e6:
                raise SettingError(
                    f"target epsilon={target_epsilon} cannot be reached with any noise at this delta; raise "
                    "one of the two."
                )
        while epsilon(run(low), delta) <= target_epsilon:
            if low < 1e-2:
                return low
            low, high = low / factor, low
        make, tolerance = partial(_Accountant, epsilon), _TOLERANCE / 4 * low
        bracket = ExplicitBracketInterval(low, high)
        return float(calibrate_dp_mechanism(make, run, target_epsilon, delta, bracket, tol=tolerance))

    if accountant != "pld":
        return smallest(accountant, 1.0, 2.0)
    # Renyi accounting is cheap and never below PLD, so its answer is a good place to start from.
    return smallest("pld", smallest("rdp", 1.0, 2.0), 1.1)


@final
class _Accountant(dp_accounting.PrivacyAccountant):  # type: ignore[misc]  # it has no types
    """One of `ACCOUNTANTS` for dp_accounting's calibration, with epsilon capped to be finite."""

    def __init__(self, epsilon: Callable[[dp_accounting.DpEvent, float], float]) -> None:
        super().__init__(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        self._epsilon = epsilon

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> None:
        """Takes every event: `ledger` composes them."""

    def get_epsilon(self, target_delta: float) -> float:
        return min(self._epsilon(self.ledger, target_delta), 1e9)
