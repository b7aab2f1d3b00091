"""The noise that a target epsilon, or a target risk, asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import final

import dp_accounting
from dp_accounting.mechanism_calibration import ExplicitBracketInterval, calibrate_dp_mechanism

from equidp._validate import check_number
from equidp.accounting.cache import remember
from equidp.accounting.risk import RiskTarget
from equidp.errors import SettingError
from equidp.kernel.epsilon import ACCOUNTANTS, checked_accountant, checked_delta
from equidp.kernel.events import run_event
from equidp.kernel.ledger import ChoiceEvent, StepEvent

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

    def smallest(name: str, start: float, factor: float) -> float:
        noise = _smallest(
            lambda event: ACCOUNTANTS[name](event, delta), target_epsilon, make_run, start, factor
        )
        if noise is None:
            raise SettingError(
                f"target epsilon={target_epsilon} cannot be reached with any noise at this delta; raise "
                "one of the two."
                if not spent
                else f"what is released beside the steps costs epsilon "
                f"{ACCOUNTANTS[name](run_event(spent), delta):.4g} of {target_epsilon:g}, and leaves nothing "
                "to train with; give it a smaller share."
            )
        return noise

    make_run = _run_with(sample_rate, steps, statistics_ratio, spent)
    if accountant != "pld":
        return smallest(accountant, 1.0, 2.0)
    # Renyi accounting is cheap and never below PLD, so its answer is a good place to start from.
    return smallest("pld", smallest("rdp", 1.0, 2.0), 1.1)


@remember
@lru_cache(maxsize=256)
def calibrate_choice(
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    mean: float,
    statistics_ratio: float | None = None,
    beside: tuple[StepEvent, ...] = (),
    spent: tuple[tuple[StepEvent, int], ...] = (),
) -> float:
    """Returns the smallest noise multiplier, to a relative 1e-4, of the tries of a private choice.

    Args:
        target_epsilon, delta, sample_rate, steps, statistics_ratio, spent: as in `calibrate_noise`; the whole
            choice costs at most the target, by Renyi accounting.
        mean: of the number of tries.
        beside: what each try releases beside its steps, its score among it.

    Raises:
        SettingError: a number outside its range, or no noise up to 10^6 reaches the target.

    >>> round(calibrate_choice(3.0, 1e-5, 0.02, 1000, mean=8, beside=(StepEvent(1.0, 20.0),)), 2)
    1.96
    """
    check_number("(0, inf)", target_epsilon=target_epsilon)
    checked_delta(delta)

    def run(sigma: float) -> dp_accounting.DpEvent:
        noise = None if statistics_ratio is None else statistics_ratio * sigma
        tried = ((StepEvent(sample_rate, sigma, noise), steps), *((event, 1) for event in beside))
        return run_event((*spent, (ChoiceEvent(tried, mean), 1)))

    rdp = ACCOUNTANTS["rdp"]
    noise = _smallest(lambda event: rdp(event, delta), target_epsilon, run, 1.0, 2.0)
    if noise is None:
        raise SettingError(
            f"a choice with {mean:g} tries on average cannot keep to epsilon={target_epsilon:g}: what is "
            "released beside the steps leaves nothing to train with. Raise epsilon, or choose among fewer."
        )
    return noise


@remember
@lru_cache(maxsize=256)
def calibrate_noise_to_risk(
    target: RiskTarget,
    sample_rate: float,
    steps: int,
    statistics_ratio: float | None = None,
    spent: tuple[tuple[StepEvent, int], ...] = (),
) -> float:
    """Returns the smallest noise multiplier, to a relative 1e-4, whose whole run keeps to a target risk.

    Args:
        target: what no membership attack may exceed.
        sample_rate, steps, statistics_ratio, spent: as in `calibrate_noise`.

    Raises:
        SettingError: a number outside its range, or no noise up to 10^6 reaches the target.

    >>> target = RiskTarget.parse("tpr=0.05@0.01")
    >>> round(calibrate_noise_to_risk(target, sample_rate=0.02, steps=100), 2)
    0.66
    """
    noise = _smallest(
        target.measure_event, target.most, _run_with(sample_rate, steps, statistics_ratio, spent), 1.0, 2.0
    )
    if noise is None:
        raise SettingError(
            f"risk {target} cannot be reached with any noise"
            f"{', since what was spent before counts too' if spent else ''}; allow a larger one."
        )
    return noise


def _run_with(
    sample_rate: float, steps: int, statistics_ratio: float | None, spent: tuple[tuple[StepEvent, int], ...]
) -> Callable[[float], dp_accounting.DpEvent]:
    """Returns a run, and what was spent before, as a function of the noise multiplier."""

    def run(sigma: float) -> dp_accounting.DpEvent:
        noise = None if statistics_ratio is None else statistics_ratio * sigma
        return run_event((*spent, (StepEvent(sample_rate, sigma, noise), steps)))

    return run


def _smallest(
    cost: Callable[[dp_accounting.DpEvent], float],
    target: float,
    run: Callable[[float], dp_accounting.DpEvent],
    start: float,
    factor: float,
) -> float | None:
    """Returns the smallest noise whose run costs at most the target; None where 10^6 is too little."""
    known = cache(cost)
    low = high = start
    while known(run(high)) > target:
        low, high = high, high * factor
        if high > 1e6:
            return None
    while known(run(low)) <= target:
        if low < 1e-2:
            return low
        low, high = low / factor, low
    make, tolerance = partial(_Accountant, known), _TOLERANCE / 4 * low
    bracket = ExplicitBracketInterval(low, high)
    return float(calibrate_dp_mechanism(make, run, target, 0.0, bracket, tol=tolerance))


@final
class _Accountant(dp_accounting.PrivacyAccountant):  # type: ignore[misc]  # it has no types
    """Any cost of an event for dp_accounting's calibration, which calls it epsilon; capped to be finite."""

    def __init__(self, cost: Callable[[dp_accounting.DpEvent], float]) -> None:
        super().__init__(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        self._cost = cost

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> None:
        """Takes every event: `ledger` composes them."""

    def get_epsilon(self, target_delta: float) -> float:
        return min(self._cost(self.ledger), 1e9)
