"""Calibration of noise, and of the rate or bound of a group, to a target epsilon or a target risk."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache

import dp_accounting
from scipy.optimize import brentq

from equidp._validate import check_number, check_whole
from equidp.accounting.risk import RiskTarget
from equidp.errors import SettingError
from equidp.kernel.epsilon import (
    ACCOUNTANTS,
    FINE,
    checked_accountant,
    checked_delta,
    epsilon as epsilon_of,
    mechanism,
    over_labels,
    pld_epsilon,
)
from equidp.kernel.event import SMALLEST_SHARE, Entries, Event, EventCounts

PROTECTIONS = ("sampling", "scaling")
"""Ways to a smaller epsilon for a group: it is drawn less often, or has a smaller bound."""

_TOLERANCE = 1e-4
"""Relative, on the noise multiplier."""
_NEAR, _TRIES = 3e-3, 8
"""Distance from the target at which a secant ends, in the logarithm of epsilon, and its most steps."""
_BUDGET_USED, _SMALLEST_RATE, _MOST_SHARES = 0.998, 1e-6, 60
"""Share of a group's budget that is spent at least, smallest multiple of a rate, and most tries of either."""

Cost = Callable[[dp_accounting.DpEvent], float]
"""Cost of a run to an example: epsilon or a risk."""
Plan = Callable[[float], Entries]
"""Entries of a run by its noise, including its releases."""


@lru_cache(maxsize=256)
def calibrate_noise(
    epsilon: float,
    delta: float,
    step: Event,
    steps: int,
    accountant: str = "pld",
    spent: EventCounts = (),
) -> float:
    """Return the smallest noise multiplier, to a relative 1e-4, whose whole run keeps to a target epsilon.

    Args:
        epsilon: > 0.
        delta: delta in (0, 1).
        step: one step at noise multiplier 1, with statistics noise sigma_s / sigma.
        steps: T >= 1.
        accountant: name from `ACCOUNTANTS`.
        spent: what counts towards the target in addition to the steps.

    Returns:
        sigma, never too small. If less than 0.01 is enough, it is below 0.01, but may not be the smallest.

    Raises:
        SettingError: no noise up to 10^6 reaches the target, or the step costs no example anything.

    >>> round(calibrate_noise(3.0, 1e-5, Event(rate=0.02, noise=1.0), 1000, accountant="rdp"), 2)
    1.22
    """
    check_number("(0, inf)", epsilon=epsilon)
    checked_delta(delta)
    checked_accountant(accountant)
    plan = _plan(step, steps, spent)
    if accountant == "pld":
        noise = _least_noise_by_secant(epsilon, delta, plan)
    else:
        noise = _least_noise(lambda event: ACCOUNTANTS[accountant](event, delta), epsilon, plan)
    if noise is None:
        beside = epsilon_of(spent, delta, accountant)
        raise SettingError(
            f"no noise reaches epsilon {epsilon:g} at delta {delta:g}: the releases other than "
            f"the steps cost {beside:.4g}. Give a larger epsilon or delta, or release less.",
            field="epsilon",
        )
    return noise


@lru_cache(maxsize=256)
def calibrate_noise_to_risk(target: RiskTarget, step: Event, steps: int, spent: EventCounts = ()) -> float:
    """Return the smallest noise multiplier, to a relative 1e-4, whose whole run keeps to a target risk.

    Arguments and errors are as in `calibrate_noise`.

    >>> target = RiskTarget(0.05, false_positive_rate=0.01)
    >>> round(calibrate_noise_to_risk(target, Event(rate=0.02, noise=1.0), steps=100), 2)
    0.66
    """
    noise = _least_noise(target.measure_event, target.most, _plan(step, steps, spent))
    if noise is None:
        raise SettingError(
            f"no noise reaches {target}{' beside what is released' if spent else ''}; allow a larger risk.",
            field="risk",
        )
    return noise


def _plan(step: Event, steps: int, spent: Entries) -> Plan:
    check_whole(1, steps=steps)
    if not any(step.cost(label).rate for label in step.labels or [None]):
        raise SettingError(
            "no group is drawn and has a share of the bound, so that no noise is too little; give a group a "
            "rate and a bound above 0.",
            field="shares",
        )

    def entries(noise: float) -> Entries:
        return (*spent, (step.with_noises(lambda unit: unit * noise), steps))

    return entries


def _largest(cost: Cost, entries: Entries) -> float:
    """Cost of entries to the example that pays most."""
    return over_labels(entries, lambda label: cost(mechanism(entries, label)))[0]


def _least_noise(
    cost: Cost,
    target: float,
    plan: Plan,
    start: float = 1.0,
    factor: float = 2.0,
    tolerance: float = _TOLERANCE,
) -> float | None:
    """Return the least noise whose run costs at most the target, or None if 10^6 is too little.

    The cost was computed at this noise, and is at most the target.
    """

    @cache
    def gap(noise: float) -> float:
        return min(_largest(cost, plan(noise)), 1e9) - target

    low = high = start
    while gap(high) > 0:
        low, high = high, high * factor
        if high > 1e6:
            return None
    while gap(low) <= 0:
        if low < 1e-2:
            return low
        low, high = low / factor, low
    near = tolerance / 4 * low
    root = float(brentq(gap, low, high, xtol=near))
    return next((noise for noise in (root, root + near) if gap(noise) <= 0), high)


def _least_noise_by_secant(target: float, delta: float, plan: Plan) -> float | None:
    """Return the least noise by privacy loss distributions, or None if 10^6 is too little.

    A secant search with wide bins, at a tenth of the time, ends near it. The error that bins add to epsilon
    is quadratic in their width, so bins of twice the width show how large it is. The resulting noise is
    returned only if epsilon with narrow bins, an upper bound, is at most the target and close to it. Usually
    the first one is.
    """
    # Renyi accounting is cheap and never below PLD, so its answer is a good place to start from.
    noise = _least_noise(lambda event: ACCOUNTANTS["rdp"](event, delta), target, plan, tolerance=0.05)
    if noise is None:
        return None

    def by_bins(width: float) -> float:
        return _largest(lambda event: pld_epsilon(event, delta, width), plan(noise))

    width = max(FINE, min(10 * FINE, 1e-3 * target))
    slope, before = -1.2, (0.0, 0.0)  # of log epsilon over log noise
    for _ in range(_TRIES):
        found = by_bins(width)
        if not 0 < found < math.inf:
            break
        if before[0]:
            slope = math.log(found / before[1]) / math.log(noise / before[0])
        if not slope < 0:
            break
        if before[0] and abs(math.log(found / target)) < _NEAR:
            found -= (by_bins(2 * width) - found) / 3 * (1 - (FINE / width) ** 2)
            noise *= math.pow(target / found, 1 / slope) * (1 + _TOLERANCE / 4)
            found = epsilon_of(plan(noise), delta)  # which remembers it for the finished run
            if target * (1 + slope * _TOLERANCE) <= found <= target:
                return noise
            break
        before, step = (noise, found), math.pow(target / found, 1 / slope)
        noise *= step if abs(math.log(step)) > _NEAR else 1 + _NEAR  # two points, for the slope
    return _least_noise(lambda event: ACCOUNTANTS["pld"](event, delta), target, plan, noise, 1.1)


@lru_cache(maxsize=256)
def calibrate_share(
    budget: float,
    delta: float,
    step: Event,
    steps: int,
    protect_by: str = PROTECTIONS[0],
    accountant: str = "pld",
    spent: EventCounts = (),
) -> float:
    """Return the share of the sampling rate or bound at which a run costs a group at most its budget.

    Args:
        budget: epsilon of the group, > 0.
        delta: delta in (0, 1).
        step: cost of a step to an example with the whole rate and the whole bound.
        steps: T >= 1.
        protect_by: "sampling": share of the rate. "scaling": share of the bound, which also bounds
            statistics.
        accountant: name from `ACCOUNTANTS`.
        spent: what counts for the group in addition to the steps.

    Returns:
        The share, in (0, 1], or for a bound at least 1/16. It costs at least 99% of the budget, or is 1.

    Raises:
        SettingError: no share meets the budget.

    >>> step = Event(rate=0.02, noise=1.22)
    >>> share = calibrate_share(1.0, 1e-5, step, 1000, accountant="rdp")
    >>> round(share, 2), 0.99 < epsilon_of([(Event(0.02 * share, 1.22), 1000)], 1e-5, "rdp") <= 1.0
    (0.35, True)
    """
    check_number("(0, inf)", "", epsilon_by_group=budget)
    checked_delta(delta)
    by_rate = protect_by == PROTECTIONS[0]

    @cache
    def cost(share: float) -> float:
        if by_rate:
            event = replace(step, rate=step.rate * share)
        else:
            event = step.with_noises(lambda noise: noise / share)
        return epsilon_of((*spent, (event, steps)), delta, accountant)

    least = _SMALLEST_RATE if by_rate else SMALLEST_SHARE
    if cost(1.0) <= budget:
        return 1.0
    if cost(least) > budget:
        raise SettingError(
            f"epsilon_by_group: {budget:g} is too small: at the smallest {'rate' if by_rate else 'bound'}, "
            f"{least:g} of the whole, the group still has {cost(least):.4g}, of which "
            f"{epsilon_of(spent, delta, accountant):.4g} are for releases other than the steps. Give a "
            "larger budget, or release less.",
            field="epsilon_by_group",
        )
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
    """Share between two, each with its cost: by a secant, as costs are about a power of it, or half way."""
    (low, less), (high, more) = below, above
    place = 0.5
    if less > 0 and math.isfinite(more):
        place = math.log(aim / less) / math.log(more / less)
    return low * math.exp(math.log(high / low) * (place if 1e-3 < place < 1 - 1e-3 else 0.5))
