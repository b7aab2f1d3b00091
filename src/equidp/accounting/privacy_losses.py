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

from equidp.kernel.epsilon import (
    FINE,
    TRANSFORM_LOSS,
    WIDEST,
    count_steps,
    transforms_lose_digits,
)

Floats = npt.NDArray[np.float64]
LossDistribution = Any
"""dp_accounting's PrivacyLossDistribution of both directions, which has no types."""

_REACH = 10.0  # standard deviations beyond which a Gaussian has less than `_TAIL`
_TAIL = 1e-22  # mass that a direction may leave out of its bins; counted as an infinite loss
_PROFILE = 2e-4
"""Width of the bins of a privacy profile over epsilon: about 0.1% above."""

_TABLE, _NEWTON, _FLAT = 4096, 3, 1e-300


@lru_cache(maxsize=4)
def loss_distribution(event: dp_accounting.DpEvent, width: float) -> LossDistribution:
    """Return the privacy loss distribution of a `run_event` in bins of a width; None without noise.

    Guarantee: for every epsilon, delta of the result, in either direction, is at least that of the run, up to
    dp_accounting's rounding of about 10^-15 a step.

    >>> from equidp.accounting.rows import run_event
    >>> from equidp.kernel.ledger import StepEvent
    >>> event = run_event([(StepEvent(0.1, 1.0), 5)], rows=2)
    >>> round(loss_distribution(event, 1e-3).get_epsilon_for_delta(1e-5), 1)
    5.1
    """
    events = [] if isinstance(event, dp_accounting.NoOpDpEvent) else getattr(event, "events", [event])
    if any(isinstance(each, dp_accounting.NonPrivateDpEvent) for each in events):
        return None
    counted = [
        (each.event, each.count) if isinstance(each, dp_accounting.SelfComposedDpEvent) else (each, 1)
        for each in events
    ]
    parts = [_compose_step(step, steps, width) for step, steps in counted]
    return reduce(lambda one, other: one.compose(other), parts, pld.identity(width))


def privacy_profile(
    event: dp_accounting.DpEvent, epsilons: npt.NDArray[np.float64], usual: float
) -> npt.NDArray[np.float64]:
    """Return delta at each epsilon, of both directions the larger: the whole trade-off, not one point of it.

    Guarantee: for every pair, what `epsilon` guarantees.

    | case | delta |
    | --- | --- |
    | no steps | 0 |
    | a step without noise, or usual above 10^5 | 1 |
    | epsilon below 0 | the hockey-stick divergence at e^epsilon |

    Args:
        event: a `run_event`.
        epsilons: increasing, [n]; >= 0 where the event holds no step.
        usual: about the epsilon at a small delta; bins are a small part of it.

    >>> from equidp.kernel.epsilon import run_event
    >>> from equidp.kernel.ledger import StepEvent
    >>> event = run_event([(StepEvent(sample_rate=1.0, noise_multiplier=1.0), 1)])
    >>> privacy_profile(event, np.array([0.0, 1.0]), usual=5.0).round(3)
    array([0.383, 0.127])
    """
    if event == dp_accounting.NoOpDpEvent():
        return np.zeros(len(epsilons))
    width = max(FINE, _PROFILE * usual)
    distribution = None if usual > 1 / WIDEST else loss_distribution(event, width)
    if distribution is None:
        return np.ones(len(epsilons))
    deltas = np.asarray(distribution.get_delta_for_epsilon(epsilons), dtype=np.float64)
    return np.clip(deltas + 10 * (100 + count_steps(event)) * TRANSFORM_LOSS, 0.0, 1.0)


def has_profile(event: dp_accounting.DpEvent, delta: float) -> bool:
    """True where `privacy_profile` uses privacy losses, and is exact enough for this delta."""
    private = not any(
        isinstance(each, dp_accounting.NonPrivateDpEvent) for each in getattr(event, "events", [event])
    )
    known = event != dp_accounting.NoOpDpEvent() and private
    return known and not transforms_lose_digits(event, delta)


def _compose_step(step: dp_accounting.DpEvent, steps: int, width: float) -> LossDistribution:
    if isinstance(step, dp_accounting.GaussianDpEvent):  # several steps are one of less noise
        return _gaussian_losses(step.noise_multiplier / steps**0.5, 1.0, width)
    if isinstance(step, dp_accounting.PoissonSampledDpEvent):
        return _gaussian_losses(step.event.noise_multiplier, step.sampling_probability, width).self_compose(
            steps
        )
    return _mixture_losses(step, width).self_compose(steps)


@lru_cache(maxsize=4)
def _gaussian_losses(noise: float, sample_rate: float, width: float) -> LossDistribution:
    return pld.from_gaussian_mechanism(noise, sampling_prob=sample_rate, value_discretization_interval=width)


def _mixture_losses(step: Any, width: float) -> LossDistribution:
    """Return what dp_accounting's `from_mixture_gaussian_mechanism` does, tens of times faster."""
    chances = np.asarray(step.sampling_probs)
    shifts = np.asarray(step.sensitivities)[chances > 0] / step.standard_deviation
    logs = np.log(chances[chances > 0])
    return pld.PrivacyLossDistribution(
        _removal_losses(shifts, logs, width), _addition_losses(shifts, logs, width)
    )


def _removal_losses(shifts: Floats, logs: Floats, width: float) -> Any:
    """Return the losses of P, the mixture, against Q = N(0, 1): delta = P(X > x) - e^epsilon Q(X > x)."""
    low, high = -_REACH, _REACH
    while np.exp(logs) @ ndtr(shifts - high) > _TAIL:
        high += 0.1
    epsilons, places = _bins(shifts, logs, low, high, width)
    above = ndtr(shifts - places[:, None]) @ np.exp(logs)
    return _pmf(epsilons, above - np.exp(epsilons + log_ndtr(-places)), width)


def _addition_losses(shifts: Floats, logs: Floats, width: float) -> Any:
    """Return the losses of Q against P: delta = Q(X < x) - e^epsilon P(X < x) where log P / Q = -epsilon."""
    epsilons, places = _bins(shifts, logs, -_REACH, _REACH, width)
    epsilons, places = -epsilons[::-1], places[::-1]
    below = logsumexp(logs + log_ndtr(places[:, None] - shifts), axis=1)
    return _pmf(epsilons, ndtr(places) - np.exp(epsilons + below), width)


def _bins(shifts: Floats, logs: Floats, low: float, high: float, width: float) -> tuple[Floats, Floats]:
    """Return multiples of the width that cover the losses log P / Q from low to high, and their places.

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
    """Return log P / Q at each point, and its slope there."""
    terms = logs - shifts**2 / 2 + points[:, None] * shifts
    largest = terms.max(axis=1)
    weights = np.exp(terms - largest[:, None])
    total = weights.sum(axis=1)
    return largest + np.log(total), weights @ shifts / total


def _pmf(epsilons: Floats, deltas: Floats, width: float) -> Any:
    """Return Connect-the-Dots of deltas at the bins' ends (Doroshenko et al. 2022, Algorithm 1)."""
    raised = np.clip(deltas + _TAIL, 0.0, 1.0)
    first, last = (round(end / width) for end in (epsilons[0], epsilons[-1]))
    never_rising = np.maximum.accumulate(raised[::-1])[::-1]
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(width, first, last, never_rising)
