"""Calibration of noise, and of the rate or bound of a group, to a target epsilon or a target risk."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import final

import dp_accounting
from dp_accounting.mechanism_calibration import ExplicitBracketInterval, calibrate_dp_mechanism
from dp_accounting.rdp import RdpAccountant

from equidp._validate import check_number, check_whole
from equidp.accounting.cache import remember
from equidp.accounting.risk import RiskTarget
from equidp.errors import SettingError
from equidp.kernel.epsilon import (
    ACCOUNTANTS,
    FINE,
    Entries,
    checked_accountant,
    checked_delta,
    epsilon,
    pld_epsilon,
    project_groups,
    renyi_accountant,
    run_event,
)
from equidp.kernel.ledger import SMALLEST_SHARE, StepEvent

PROTECTIONS = ("sampling", "scaling")
"""Ways in which a group has a smaller epsilon than others: it is drawn less often, or has a smaller bound."""

_ORDERS = tuple(map(float, RdpAccountant().orders))
_NEAR_ORDERS = 8
"""Number of orders on either side of the best one that epsilon is taken over next."""
_TOLERANCE = 1e-4
"""Relative, on the noise multiplier."""
_NEAR, _TRIES = 3e-3, 8
"""Distance from the target at which a secant ends, in the logarithm of epsilon, and its most steps."""
_BUDGET_USED, _SMALLEST_RATE, _MOST_SHARES = 0.998, 1e-6, 60
"""Share of a group's budget that is spent at least, smallest multiple of a rate, and most tries of either."""


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
    """Return the smallest noise multiplier, to a relative 1e-4, whose whole run keeps to a target epsilon.

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
        noise. Where less than 0.01 is enough, the result is below that, and may be more than is needed.

    Raises:
        SettingError: a number outside its range, an unknown accountant, or no noise up to 10^6 reaches the
        target.

    >>> round(calibrate_noise(3.0, delta=1e-5, sample_rate=0.02, steps=1000, accountant="rdp"), 2)
    1.22
    """
    check_number("(0, inf)", target_epsilon=target_epsilon)
    checked_delta(delta)
    checked_accountant(accountant)

    entries = _entries_with(sample_rate, steps, statistics_ratio, spent)
    if accountant == "pld":
        noise = _smallest_by_pld(target_epsilon, delta, entries)
    elif accountant == "rdp":
        noise = _smallest(_RenyiCost(delta), target_epsilon, _event_of(entries), 1.0, 2.0)
    else:
        run, cost = _event_of(entries), ACCOUNTANTS[accountant]
        noise = _smallest(lambda event: cost(event, delta), target_epsilon, run, 1.0, 2.0)
    if noise is None:
        raise SettingError(
            f"target epsilon={target_epsilon} cannot be reached with any noise at this delta; raise one of "
            "the two."
            if not spent
            else f"what is released beside the steps costs epsilon "
            f"{ACCOUNTANTS[accountant](run_event(spent), delta):.4g} of {target_epsilon:g}, and leaves "
            "nothing to train with; give it a smaller share.",
            field="target_epsilon",
        )
    return noise


def calibrate_step(
    target_epsilon: float,
    delta: float,
    unit: StepEvent,
    steps: int,
    accountant: str = "pld",
    spent: tuple[tuple[StepEvent, int], ...] = (),
) -> float:
    """Return the smallest noise multiplier, to a relative 1e-4, whose run keeps every group to an epsilon.

    Args:
        unit: one step at noise multiplier 1; plain, or by group.
        target_epsilon, delta, steps, accountant, spent: as in `calibrate_noise`.

    Raises:
        SettingError: as `calibrate_noise`; or the step costs no group anything.

    >>> from equidp.kernel.epsilon import epsilon_of_group
    >>> from equidp.kernel.ledger import GroupShare, make_step_event
    >>> shares = GroupShare("a", 0.02, 0.5), GroupShare("b", 0.01)
    >>> noise = calibrate_step(3.0, 1e-5, make_step_event(0.02, 1.0, by_group=shares), 1000, "rdp")
    >>> run = [(make_step_event(0.02, noise, by_group=shares), 1000)]
    >>> [round(epsilon_of_group(run, name, 1e-5, "rdp"), 2) for name in "ab"]
    [1.77, 3.0]
    """
    return _noise_of_groups(
        unit,
        lambda rate, ratio: calibrate_noise(target_epsilon, delta, rate, steps, ratio, accountant, spent),
    )


def calibrate_step_to_risk(
    target: RiskTarget, unit: StepEvent, steps: int, spent: tuple[tuple[StepEvent, int], ...] = ()
) -> float:
    """Return the smallest noise multiplier, to a relative 1e-4, whose run keeps every group to a risk.

    Args:
        unit: one step at noise multiplier 1; plain, or by group.
        target, steps, spent: as in `calibrate_noise_to_risk`.

    Raises:
        SettingError: as `calibrate_noise_to_risk`; or the step costs no group anything.

    >>> target = RiskTarget.parse("tpr=0.05@0.01")
    >>> noise = calibrate_step_to_risk(target, StepEvent(0.02, 1.0), steps=100)
    >>> noise == calibrate_noise_to_risk(target, sample_rate=0.02, steps=100)
    True
    """
    return _noise_of_groups(
        unit, lambda rate, ratio: calibrate_noise_to_risk(target, rate, steps, ratio, spent)
    )


def _noise_of_groups(unit: StepEvent, calibrate: Callable[[float, float | None], float]) -> float:
    """Return the largest noise multiplier that `calibrate` finds for a group's rate and statistics ratio."""
    found = []
    for each in project_groups([(unit, 1)]):
        for event, _ in each:
            statistics = event.statistics_noise
            ratio = None if statistics is None else statistics / event.noise_multiplier
            noise = calibrate(event.sample_rate, ratio)
            scale = event.noise_multiplier  # next above, so that noise * scale is no less than what was found
            found.append(noise if scale == 1 else math.nextafter(noise / scale, math.inf))
    if not found:
        raise SettingError(
            "no group is drawn and has a share of the bound, so that no noise is too little; give a group a "
            "rate and a bound above 0.",
            field="by_group",
        )
    return max(found)


@remember
@lru_cache(maxsize=256)
def calibrate_share(
    budget: float,
    delta: float,
    step: StepEvent,
    steps: int,
    protect_by: str = PROTECTIONS[0],
    accountant: str = "pld",
    spent: tuple[tuple[StepEvent, int], ...] = (),
) -> float:
    """Return the share, of the sample rate or of the bound, at which a run costs a group at most its budget.

    Epsilon rises with either. The share that is returned costs at least 99% of the budget, unless all of the
    rate or of the bound costs less.

    Args:
        budget: epsilon of the group, > 0.
        delta: in (0, 1).
        step: what a step costs an example that is drawn at the whole rate and has the whole bound.
        steps: T >= 1.
        protect_by: "sampling", of the rate; "scaling", of the bound, which statistics are bounded by too.
        accountant: a name from `ACCOUNTANTS`.
        spent: what counts for the group beside the steps.

    Returns:
        The share, in (0, 1]; of a bound, at least 1/16.

    Raises:
        SettingError: a number outside its range, or a budget that no share meets.

    >>> step = StepEvent(0.02, 1.22)
    >>> share = calibrate_share(1.0, 1e-5, step, 1000, accountant="rdp")
    >>> round(share, 2), 0.99 < epsilon([(StepEvent(0.02 * share, 1.22), 1000)], 1e-5, "rdp") <= 1.0
    (0.35, True)
    """
    check_number("(0, inf)", "", epsilon_by_group=budget)
    checked_delta(delta)
    by_rate = protect_by == PROTECTIONS[0]

    @cache
    def cost(share: float) -> float:
        if by_rate:
            event = StepEvent(step.sample_rate * share, step.noise_multiplier, step.statistics_noise)
        else:
            statistics = None if step.statistics_noise is None else step.statistics_noise / share
            event = StepEvent(step.sample_rate, step.noise_multiplier / share, statistics)
        return epsilon((*spent, (event, steps)), delta, accountant)

    least = _SMALLEST_RATE if by_rate else SMALLEST_SHARE
    if cost(1.0) <= budget:
        return 1.0
    if cost(least) > budget:
        raise _unmet_budget(budget, cost(least), epsilon(spent, delta, accountant), protect_by)
    low, high, aim = least, 1.0, budget * (1 + _BUDGET_USED) / 2
    share = max(least, aim / cost(1.0))
    for _ in range(_MOST_SHARES):
        found = cost(share)
        if found > budget:
            high = share
        else:
            low = share
            if found >= _BUDGET_USED * budget:
                break
        share = _next_share((low, cost(low)), (high, cost(high)), aim)
    return low


def _next_share(below: tuple[float, float], above: tuple[float, float], aim: float) -> float:
    """Share between two whose costs lie below and above: by a secant, as costs are about a power of it, or in
    the middle.

    Args:
        below, above: (share, cost).
        aim: cost to reach.
    """
    (low, less), (high, more) = below, above
    width = math.log(high / low)
    place = 0.5
    if less > 0 and math.isfinite(more):
        place = math.log(aim / less) / math.log(more / less)
    return low * math.exp(width * (place if 1e-3 < place < 1 - 1e-3 else 0.5))


def _unmet_budget(budget: float, found: float, beside: float, protect_by: str) -> SettingError:
    """Error on a budget that the smallest share exceeds."""
    if beside >= budget:
        why = f"what is released beside the steps costs every group epsilon {beside:.4g}"
        todo = "release less, or give a larger budget"
    elif protect_by == PROTECTIONS[0]:
        why, todo = "no rate is small enough", "give a larger budget"
    else:
        why = f"a bound of 1/{1 / SMALLEST_SHARE:.0f}, the smallest, costs epsilon {found:.4g}"
        todo = f"give a larger budget or a smaller rate, or protect by {PROTECTIONS[0]}"
    return SettingError(
        f"epsilon_by_group: at most {budget:g} for a group cannot be met: {why}; {todo}.",
        field="epsilon_by_group",
    )


@remember
@lru_cache(maxsize=256)
def calibrate_noise_to_risk(
    target: RiskTarget,
    sample_rate: float,
    steps: int,
    statistics_ratio: float | None = None,
    spent: tuple[tuple[StepEvent, int], ...] = (),
) -> float:
    """Return the smallest noise multiplier, to a relative 1e-4, whose whole run keeps to a target risk.

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
        target.measure_event,
        target.most,
        _event_of(_entries_with(sample_rate, steps, statistics_ratio, spent)),
        1.0,
        2.0,
    )
    if noise is None:
        raise SettingError(
            f"risk {target} cannot be reached with any noise"
            f"{', since what was spent before counts too' if spent else ''}; allow a larger one.",
            field="risk",
        )
    return noise


def _entries_with(
    sample_rate: float, steps: int, statistics_ratio: float | None, spent: tuple[tuple[StepEvent, int], ...]
) -> Callable[[float], Entries]:
    """Return what a run spends, and what was spent before, as a function of the noise multiplier."""
    check_whole(1, steps=steps)

    def entries(sigma: float) -> Entries:
        noise = None if statistics_ratio is None else statistics_ratio * sigma
        return (*spent, (StepEvent(sample_rate, sigma, noise), steps))

    return entries


def _event_of(entries: Callable[[float], Entries]) -> Callable[[float], dp_accounting.DpEvent]:
    return lambda sigma: run_event(entries(sigma))


def _smallest(
    cost: Callable[[dp_accounting.DpEvent], float],
    target: float,
    run: Callable[[float], dp_accounting.DpEvent],
    start: float,
    factor: float,
    tolerance: float = _TOLERANCE,
) -> float | None:
    """Return the smallest noise whose run costs at most the target; None where 10^6 is too little."""
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
    make, bracket = partial(_Accountant, known), ExplicitBracketInterval(low, high)
    return float(calibrate_dp_mechanism(make, run, target, 0.0, bracket, tol=tolerance / 4 * low))


def _smallest_by_pld(target: float, delta: float, entries: Callable[[float], Entries]) -> float | None:
    """Return the smallest noise by privacy loss distributions; None where 10^6 is too little.

    A secant by wide bins, at a tenth of the time, ends near it. What they add to epsilon is quadratic in
    their width, so bins of twice the width tell how much it is. The noise that follows is returned only where
    epsilon by narrow bins, an upper bound, is at most the target and close to it; mostly the first one is.
    """
    # Renyi accounting is cheap and never below PLD, so its answer is a good place to start from.
    run, width = _event_of(entries), max(FINE, min(10 * FINE, 1e-3 * target))
    noise = _smallest(_RenyiCost(delta), target, run, 1.0, 2.0, 0.05)
    if noise is None:
        return None
    wide, wider = pld_epsilon(width), pld_epsilon(2 * width)
    slope, before = -1.2, (0.0, 0.0)  # of log epsilon over log noise
    for _ in range(_TRIES):
        found = wide(run(noise), delta)
        if not 0 < found < math.inf:
            break
        if before[0]:
            slope = math.log(found / before[1]) / math.log(noise / before[0])
        if not slope < 0:
            break
        if before[0] and abs(math.log(found / target)) < _NEAR:
            found -= (wider(run(noise), delta) - found) / 3 * (1 - (FINE / width) ** 2)
            noise *= math.pow(target / found, 1 / slope) * (1 + _TOLERANCE / 4)
            found = epsilon(entries(noise), delta, "pld")  # which remembers it for the finished run
            if target * (1 + slope * _TOLERANCE) <= found <= target:
                return noise
            break
        before, step = (noise, found), math.pow(target / found, 1 / slope)
        noise *= step if abs(math.log(step)) > _NEAR else 1 + _NEAR  # two points, for the slope
    return _smallest(lambda event: ACCOUNTANTS["pld"](event, delta), target, run, noise, 1.1)


@final
class _RenyiCost:
    """Epsilon of events by Renyi accounting, mostly by few orders: those near the best of the event before.

    Epsilon is the smallest over orders, so that of fewer orders is an upper bound. It falls, then rises with
    the order: where the best of few orders is neither the first nor the last of them, it is the best of all.
    Elsewhere all orders are tried. In calibration, events follow each other that are nearly the same.
    """

    def __init__(self, delta: float) -> None:
        self._delta, self._near = delta, _ORDERS

    def __call__(self, event: dp_accounting.DpEvent) -> float:
        found, best = self._epsilon_and_order(event, self._near)
        if best in (self._near[0], self._near[-1]):
            found, best = self._epsilon_and_order(event, _ORDERS)
        at = _ORDERS.index(best)
        self._near = _ORDERS[max(0, at - _NEAR_ORDERS) : at + _NEAR_ORDERS + 1]
        return found

    def _epsilon_and_order(
        self, event: dp_accounting.DpEvent, orders: tuple[float, ...]
    ) -> tuple[float, float]:
        """Return the smallest epsilon over these orders, and its order."""
        found, best = renyi_accountant(event, orders).get_epsilon_and_optimal_order(self._delta)
        return float(found), float(best)


@final
class _Accountant(dp_accounting.PrivacyAccountant):  # type: ignore[misc]  # it has no types
    """Any cost of an event for dp_accounting's calibration, which calls it epsilon; capped to be finite."""

    def __init__(self, cost: Callable[[dp_accounting.DpEvent], float]) -> None:
        super().__init__(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        self._cost = cost

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> None:
        """Take every event: `ledger` composes them."""

    def get_epsilon(self, target_delta: float) -> float:
        return min(self._cost(self.ledger), 1e9)
