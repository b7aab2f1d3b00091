"""Privacy loss distributions of whole runs, for one example or for all that one person owns."""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from typing import Any

import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting.pld import pld_pmf, privacy_loss_distribution as pld
from scipy.special import log_ndtr, logsumexp, ndtr

from equidp.kernel.events import RARE

Floats = npt.NDArray[np.float64]
LossDistribution = Any
"""dp_accounting's PrivacyLossDistribution of both directions, which has no types."""

_REACH = 10.0  # standard deviations beyond which a Gaussian has less than `_TAIL`
_TAIL = 1e-22  # mass that a direction may leave out of its bins; counted as an infinite loss
_TABLE, _NEWTON, _FLAT = 4096, 3, 1e-300


@lru_cache(maxsize=4)
def loss_distribution(event: dp_accounting.DpEvent, width: float) -> LossDistribution:
    """Returns the privacy loss distribution of a `run_event` in bins of a width; None without noise.

    Guarantee: for every epsilon, delta of the result, in either direction, is at least that of the run, up to
    dp_accounting's rounding of about 10^-15 a step.

    >>> from equidp.kernel.events import run_event
    >>> from equidp.kernel.ledger import StepEvent
    >>> event = run_event([(StepEvent(0.1, 1.0), 5)], rows=2)
    >>> round(loss_distribution(event, 1e-3).get_epsilon_for_delta(1e-5), 1)
    5.1
    """
    events = [] if isinstance(event, dp_accounting.NoOpDpEvent) else getattr(event, "events", [event])
    if any(isinstance(each, dp_accounting.NonPrivateDpEvent) for each in events):
        return None
    parts = [_self_composed(each.event, each.count, width) for each in events]
    return reduce(lambda one, other: one.compose(other), parts, pld.identity(width))


def _self_composed(step: dp_accounting.DpEvent, steps: int, width: float) -> LossDistribution:
    if isinstance(step, dp_accounting.GaussianDpEvent):  # several steps are one of less noise
        return _gaussian(step.noise_multiplier / steps**0.5, 1.0, width)
    if isinstance(step, dp_accounting.PoissonSampledDpEvent):
        return _gaussian(step.event.noise_multiplier, step.sampling_probability, width).self_compose(steps)
    return _mixture(step, width).self_compose(steps)


def _gaussian(noise: float, sample_rate: float, width: float) -> LossDistribution:
    return pld.from_gaussian_mechanism(noise, sampling_prob=sample_rate, value_discretization_interval=width)


def _mixture(step: Any, width: float) -> LossDistribution:
    """Returns what dp_accounting's `from_mixture_gaussian_mechanism` does, tens of times faster."""
    chances = np.asarray(step.sampling_probs)
    shifts = np.asarray(step.sensitivities)[chances > 0] / step.standard_deviation
    logs = np.log(chances[chances > 0])
    return pld.PrivacyLossDistribution(_removed(shifts, logs, width), _added(shifts, logs, width))


def _removed(shifts: Floats, logs: Floats, width: float) -> Any:
    """Returns the losses of P, the mixture, against Q = N(0, 1): delta = P(X > x) - e^epsilon Q(X > x)."""
    low, high = -_REACH, _REACH
    while np.exp(logs) @ ndtr(shifts - high) > _TAIL:
        high += 0.1
    epsilons, places = _bins(shifts, logs, low, high, width)
    above = ndtr(shifts - places[:, None]) @ np.exp(logs)
    return _pmf(epsilons, above - np.exp(epsilons + log_ndtr(-places)), width)


def _added(shifts: Floats, logs: Floats, width: float) -> Any:
    """Returns the losses of Q against P: delta = Q(X < x) - e^epsilon P(X < x) where log P / Q = -epsilon."""
    epsilons, places = _bins(shifts, logs, -_REACH, _REACH, width)
    epsilons, places = -epsilons[::-1], places[::-1]
    below = logsumexp(logs + log_ndtr(places[:, None] - shifts), axis=1)
    return _pmf(epsilons, ndtr(places) - np.exp(epsilons + below), width)


def _bins(shifts: Floats, logs: Floats, low: float, high: float, width: float) -> tuple[Floats, Floats]:
    """Returns multiples of the width that cover the losses log P / Q from low to high, and their places.

    Places are found by Newton's method. Any place gives a delta that is at most the true one, which is the
    largest over all places; the error is quadratic in that of the place, and so below rounding.
    """
    points = np.linspace(low, high, _TABLE)
    losses, _ = _loss(points, shifts, logs)
    epsilons = width * np.arange(math.floor(losses[0] / width), math.ceil(losses[-1] / width) + 1)
    after = np.searchsorted(losses, epsilons).clip(1, _TABLE - 1)
    start, end = points[after - 1], points[after]
    places = np.interp(epsilons, losses, points)
    for _ in range(_NEWTON):
        found, slope = _loss(places, shifts, logs)
        places = (places - (found - epsilons) / np.maximum(slope, _FLAT)).clip(start, end)
    return epsilons, places


def _loss(points: Floats, shifts: Floats, logs: Floats) -> tuple[Floats, Floats]:
    """Returns log P / Q at each point, and its slope there."""
    terms = logs - shifts**2 / 2 + points[:, None] * shifts
    largest = terms.max(axis=1)
    weights = np.exp(terms - largest[:, None])
    total = weights.sum(axis=1)
    return largest + np.log(total), weights @ shifts / total


def _pmf(epsilons: Floats, deltas: Floats, width: float) -> Any:
    """Returns Connect-the-Dots of deltas at the bins' ends (Doroshenko et al. 2022, Algorithm 1)."""
    raised = np.clip(deltas + _TAIL, 0.0, 1.0)
    first, last = (round(end / width) for end in (epsilons[0], epsilons[-1]))
    never_rising = np.maximum.accumulate(raised[::-1])[::-1]
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(width, first, last, never_rising)


def crude_epsilon(
    event: dp_accounting.DpEvent, rows: int, delta: float, orders: Floats, divergences: Floats
) -> float:
    """Returns an upper bound on epsilon for someone who owns several rows; loose, and cheap at any size.

    Guarantee: the smaller of two bounds at this delta.

    - Group privacy: from Renyi divergences r(o) of the run for one row, (m e, delta)-DP holds for m rows with
      e = ((o - 1) r(o) + log(m / delta)) / (o - m) at any order o > m, since delta grows by at most
      m e^((m - 1) e) (Vadhan 2017, Lemma 2.2) from e^((o - 1) (r(o) - e)) (Mironov 2017, Proposition 3).
    - Order 2: a step's divergence from the mixture is log E e^(k k' / sigma^2) over independent numbers k, k'
      of rows drawn, towards it at most log E e^(k^2 / sigma^2), since 1 / x is convex.

    Args:
        event: `run_event` of m rows.
        rows: m >= 2.
        delta: in (0, 1).
        orders, divergences: of the whole run for one row.
    """
    usable = orders > rows
    group = ((orders - 1) * divergences + math.log(rows / delta))[usable] / (orders - rows)[usable]
    total, missed = 0.0, 0.0
    for each in getattr(event, "events", [event]):
        if isinstance(each, dp_accounting.NonPrivateDpEvent):
            return math.inf
        step = each.event
        if isinstance(step, dp_accounting.GaussianDpEvent):
            total += each.count / step.noise_multiplier**2
        else:
            chances, shifts = np.asarray(step.sampling_probs), np.asarray(step.sensitivities)
            likely = chances > RARE
            missed += each.count * chances[~likely].sum()
            chances, shifts = chances[likely], shifts[likely] / step.standard_deviation
            pairs = np.log(np.outer(chances, chances)) + np.outer(shifts, shifts)
            total += each.count * max(logsumexp(pairs), logsumexp(np.log(chances) + shifts**2))
    second = total + 3 * missed - math.log(delta - missed) if delta > missed else math.inf
    return float(min(rows * group.min(initial=math.inf), second))
