"""Epsilons of examples whose histories of shares are known (Yu et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting.rdp import RdpAccountant

from equidp._validate import unknown_name
from equidp.individual.accounts import Floats, Integers, chunks
from equidp.individual.tight import tight_epsilons, tight_profiles
from equidp.kernel.epsilon import checked_delta, mechanism, renyi_divergences
from equidp.kernel.event import Entries, Event, Label

Counts = npt.NDArray[Any]
"""Steps of each example in each cell of a grid of shares, [n, cells], of any unsigned type."""
Mechanisms = tuple[tuple[float, float], ...]
"""(noise multiplier, sampling rate) pairs."""

_CHUNK = 2**16  # examples whose divergences are held at a time


def individual_epsilons(
    counts: Counts,
    shares: Floats,
    event: Event,
    delta: float,
    accountant: str = "pld",
    others: Entries = (),
    labels: Integers | None = None,
) -> Floats:
    """Return the epsilon of each example over the steps in its history and all else, [n].

    Args:
        counts: how many steps, all of them `event`, each example spent at each share, [n, cells].
        shares: shares of the sensitivity, in [0, 1], [cells].
        event: cost of one step.
        delta: delta in (0, 1).
        accountant: name from `INDIVIDUAL_ACCOUNTANTS`.
        others: (event, number) pairs that each example pays in full as well.
        labels: label of each example, [n]. None: all pay what the largest rate and whole bounds cost.

    Raises:
        SettingError: delta outside (0, 1), or an unknown accountant.

    Formal guarantee: if no share is understated, the composition of example i's steps and of the other
    entries is (result[i], delta)-DP for adding or removing i. Each step is a Poisson-subsampled Gaussian
    mechanism at its label's rate, of noise multiplier ((z / sigma)^2 + (r / sigma_s)^2)^(-1/2). The shares z
    follow from the trajectory of the run, so this is output-specific privacy (Yu et al. 2023), not a
    guarantee given in advance.
    """
    if accountant not in INDIVIDUAL_ACCOUNTANTS:
        raise unknown_name("accountant", accountant, INDIVIDUAL_ACCOUNTANTS)
    checked_delta(delta)
    epsilons_of = partial(INDIVIDUAL_ACCOUNTANTS[accountant], delta=delta)
    if labels is None:
        event, labels = replace(event, shares=()), np.zeros(len(counts), dtype=np.int64)
    parts = chunks(len(counts), _CHUNK)
    return np.concatenate(
        [_by_label(counts[part], shares, event, others, labels[part], epsilons_of) for part in parts]
    )


def individual_profiles(
    counts: Counts,
    shares: Floats,
    event: Event,
    epsilons: Floats,
    *,
    others: Entries,
    labels: Integers,
) -> Floats:
    """Return delta of each example at each epsilon, >= 0, over the steps in its history, [n, epsilons].

    Formal guarantee: as in `individual_epsilons`, for every epsilon.
    """

    def evaluate(some: Counts, mechanisms: Mechanisms) -> Floats:
        return tight_profiles(some, *_means_and_rates(mechanisms), epsilons)

    return _by_label(counts, shares, event, others, labels, evaluate)


def _by_label(
    counts: Counts,
    shares: Floats,
    event: Event,
    others: Entries,
    labels: Integers,
    evaluate: Callable[[Counts, Mechanisms], Floats],
) -> Floats:
    """Evaluate counts of steps and of all else by the mechanisms of each example's label."""
    further = np.array([number for _, number in others], dtype=np.uint32)
    whole = np.hstack([counts.astype(np.uint32), np.tile(further, (len(counts), 1))])
    if not event.shares:
        return evaluate(whole, _mechanisms(shares, event, None, others))
    present, places = np.unique(labels, return_inverse=True)
    rows = [np.flatnonzero(places == place) for place in range(len(present))]
    values = [
        evaluate(whole[own], _mechanisms(shares, event, event.labels[label], others))
        for label, own in zip(present, rows, strict=True)
    ]
    return np.concatenate(values)[np.argsort(np.concatenate(rows))]


def _mechanisms(shares: Floats, event: Event, label: Label | None, others: Entries) -> Mechanisms:
    """Mechanisms of a step at each share, for an example of the label, then of all else.

    A label's share of the bound is the most that its examples can use.
    """
    own = next((each for each in event.shares if label and each.label == label.name), None)
    row, bound = (1.0, 1.0) if own is None else (own.row, own.bound)
    rate = event.cost(label).rate
    squares = (np.minimum(shares, bound) / event.noise) ** 2
    if event.statistics_noise is not None:
        squares = squares + (row / event.statistics_noise) ** 2
    if not rate:  # never drawn: no share of anything, at any rate
        squares, rate = 0 * squares, 1.0
    noises = (float(each**-0.5) if each else math.inf for each in squares)
    costs = [each.cost() for each, _ in others]
    return (*((noise, rate) for noise in noises), *((cost.noise, cost.rate) for cost in costs))


def _means_and_rates(mechanisms: Mechanisms) -> tuple[Floats, Floats]:
    noises, rates = np.array(mechanisms).T
    with np.errstate(divide="ignore"):  # without noise, the mean is infinite
        return 1 / noises, rates


def _tight(counts: Counts, mechanisms: Mechanisms, delta: float) -> Floats:
    epsilons = tight_epsilons(counts, *_means_and_rates(mechanisms), delta)
    unknown = np.isinf(epsilons)
    if unknown.any():
        epsilons[unknown] = _renyi(counts[unknown], mechanisms, delta)
    return epsilons


def _renyi(counts: Counts, mechanisms: Mechanisms, delta: float) -> Floats:
    """Epsilons by dp_accounting's conversion (Canonne et al. 2020, Proposition 12) of summed divergences.

    An infinite divergence counts only if it occurred.
    """
    orders, table = _divergence_table(mechanisms)
    finite, spent = np.isfinite(table), counts.astype(np.float64)
    sums = spent @ np.where(finite, table, 0.0)
    if not finite.all():
        sums[(spent @ (~finite).astype(np.float64)) > 0] = np.inf
    with np.errstate(invalid="ignore"):
        epsilons = sums + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    epsilons = np.where(orders > 1.01, epsilons, np.inf)
    epsilons = np.where(delta**2 + np.expm1(-sums) > 0, 0.0, epsilons)
    return np.asarray(epsilons.min(axis=1).clip(min=0.0))


INDIVIDUAL_ACCOUNTANTS = {"pld": _tight, "rdp": _renyi}
"""Name -> (counts, mechanisms, delta) -> epsilons.

pld: privacy loss distributions, tight, the default. rdp: Renyi divergences as in Yu et al., looser and about
four times faster.
"""


@lru_cache(maxsize=16)
def _divergence_table(mechanisms: Mechanisms) -> tuple[Floats, Floats]:
    """Return orders [orders], and the Renyi divergence of each mechanism, [mechanisms, orders]."""
    orders = np.asarray(RdpAccountant().orders, dtype=np.float64)
    rows = [
        np.zeros_like(orders)
        if math.isinf(noise)
        else renyi_divergences(mechanism([(Event(rate, noise), 1)]))[1]
        for noise, rate in mechanisms
    ]
    return orders, np.stack(rows)
