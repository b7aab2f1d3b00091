"""Epsilons of examples whose histories of shares are known (Yu et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from equidp._validate import unknown_name
from equidp.errors import SettingError
from equidp.individual.histories import Counts, Floats, Histories, Integers, chunks
from equidp.individual.tight import tight_epsilons, tight_profiles
from equidp.kernel.epsilon import Entries, checked_delta, effective_noise_multiplier, renyi_divergences
from equidp.kernel.ledger import GroupedStepEvent, StepEvent

Mechanisms = tuple[tuple[float, float], ...]
"""(noise multiplier, sample rate) pairs."""

_CHUNK = 2**16  # examples whose divergences are held at a time


def own_noise_multiplier(event: StepEvent, share: float) -> float:
    """Return the noise multiplier of one step for an example that uses this share of the sensitivity.

    It is (share^2 / sigma^2 + 1 / sigma_s^2)^(-1/2): the share of the gradient's query, and all of the
    statistics' query where the step has one. Infinite where the example contributes to neither.
    """
    statistics = 0.0 if event.statistics_noise is None else event.statistics_noise**-2
    inverse = share**2 / event.noise_multiplier**2 + statistics
    return inverse**-0.5 if inverse else math.inf


def individual_epsilons(
    histories: Histories,
    event: StepEvent,
    delta: float,
    accountant: str = "pld",
    releases: Entries = (),
    labels: Integers | None = None,
) -> Floats:
    """Return the epsilon of each example over the steps in its history and the releases, [n].

    Args:
        histories: of a run whose steps were all `event`.
        event: what one step costs an example that uses all of the sensitivity.
        delta: in (0, 1).
        accountant: a name from `INDIVIDUAL_ACCOUNTANTS`.
        releases: (event, number) pairs at any sample rate that each example pays in full as well.
        labels: group of each example, [n], where the event differs by group: an example then pays by its
            group's rate, and at most its group's shares.

    Raises:
        SettingError: delta outside (0, 1), or an unknown accountant.

    Formal guarantee: if no share is understated, the composition of example i's steps, each a
    Poisson-subsampled Gaussian mechanism of noise multiplier `own_noise_multiplier(event, z)`, and of the
    releases is (result[i], delta)-DP for adding or removing i. The shares z follow from the trajectory of the
    run, so this is output-specific privacy (Yu et al. 2023), no guarantee given in advance.
    """
    if accountant not in INDIVIDUAL_ACCOUNTANTS:
        raise unknown_name("accountant", accountant, INDIVIDUAL_ACCOUNTANTS)
    checked_delta(delta)
    epsilons_of = INDIVIDUAL_ACCOUNTANTS[accountant]
    groups = _mechanisms_of_groups(histories, event, releases)

    def evaluate(counts: Counts, mechanisms: Mechanisms) -> Floats:
        return epsilons_of(counts, mechanisms, delta)

    parts = []
    for chunk in chunks(0, histories.num_examples, _CHUNK):
        own = None if labels is None else labels[chunk]
        parts.append(_by_group(groups, own, histories.part(chunk), releases, evaluate))
    return np.concatenate(parts)


def individual_profiles(
    histories: Histories,
    event: StepEvent,
    epsilons: Floats,
    releases: Entries = (),
    labels: Integers | None = None,
) -> Floats:
    """Return delta of each example at each epsilon over the steps in its history, [n, epsilons].

    Args:
        histories, event, releases, labels: as in `individual_epsilons`.
        epsilons: >= 0, [epsilons].

    Formal guarantee: as that of `individual_epsilons`, for every epsilon.
    """

    def profiles_of(counts: Counts, mechanisms: Mechanisms) -> Floats:
        return tight_profiles(counts, *_means_and_rates(mechanisms), epsilons)

    groups = _mechanisms_of_groups(histories, event, releases)
    return _by_group(groups, labels, histories.counts, releases, profiles_of)


def _by_group(
    groups: Sequence[Mechanisms],
    labels: Integers | None,
    counts: Counts,
    releases: Entries,
    evaluate: Callable[[Counts, Mechanisms], Floats],
) -> Floats:
    """Evaluate counts, with those of releases, by the mechanisms of each example's group, in their order."""
    whole = _append_releases(counts, releases)
    if len(groups) == 1:
        return evaluate(whole, groups[0])
    if labels is None:
        raise SettingError("steps differ by group, and examples have no labels; give them.", field="labels")
    order, found = [], []
    for group, mechanisms in enumerate(groups):
        if len(own := np.flatnonzero(labels == group)):
            order.append(own)
            found.append(evaluate(whole[own], mechanisms))
    values = np.concatenate(found)
    values[np.concatenate(order)] = values.copy()
    return values


def _mechanisms_of_groups(histories: Histories, event: StepEvent, releases: Entries) -> list[Mechanisms]:
    """Mechanisms of each group; of one where groups do not differ."""
    if not isinstance(event, GroupedStepEvent):
        return [_mechanisms(histories.shares, event, releases)]
    found = []
    for group, rate in zip(event.by_group, event.drawn_rates, strict=True):
        row, shares = group.row_share, np.minimum(histories.shares, group.bound_share)
        noise = event.statistics_noise / row if event.statistics_noise is not None and row else None
        if not rate:  # never drawn: no share of anything, at any rate
            shares, noise = 0 * shares, None
        found.append(_mechanisms(shares, StepEvent(rate or 1.0, event.noise_multiplier, noise), releases))
    return found


def _mechanisms(shares: Floats, event: StepEvent, releases: Entries) -> Mechanisms:
    """Mechanisms of the columns of `_append_releases`: a step at each share, then each release."""
    own = [(own_noise_multiplier(event, share), event.sample_rate) for share in shares]
    for each, _ in releases:
        noise = effective_noise_multiplier(each.noise_multiplier, each.statistics_noise)
        own.append((noise, each.sample_rate))
    return tuple(own)


def _append_releases(counts: Counts, releases: Entries) -> Counts:
    """Append the counts of releases, equal for all, to the counts of steps."""
    further = np.array([count for _, count in releases], dtype=np.uint32)
    return np.hstack([counts, np.tile(further, (len(counts), 1))])


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
    orders, table = _divergence_table(mechanisms)
    return _convert_to_epsilons(orders, _sum_divergences(counts, table), delta)


INDIVIDUAL_ACCOUNTANTS = {"pld": _tight, "rdp": _renyi}
"""Name -> (counts, mechanisms, delta) -> epsilons.

pld: privacy loss distributions, tight, the default. rdp: Renyi divergences as in Yu et al., looser and about
four times faster: the minimum over orders of dp_accounting's conversion (Canonne et al. 2020, Proposition 12)
of the summed divergences.
"""


@lru_cache(maxsize=16)
def _divergence_table(mechanisms: Mechanisms) -> tuple[Floats, Floats]:
    """Return orders [orders], and the Renyi divergence of each mechanism, [mechanisms, orders]."""
    orders, _ = renyi_divergences(StepEvent(1.0, 1.0))
    events = [None if math.isinf(noise) else StepEvent(rate, noise) for noise, rate in mechanisms]
    rows = (renyi_divergences(each)[1] if each else np.zeros_like(orders) for each in events)
    return orders, np.stack(list(rows))


def _sum_divergences(counts: npt.NDArray[np.uint32], table: Floats) -> Floats:
    """Return each history's divergences, [n, orders]; an infinite one counts only where it occurred."""
    finite = np.isfinite(table)
    sums = counts.astype(np.float64) @ np.where(finite, table, 0.0)
    if not finite.all():
        sums[(counts.astype(np.float64) @ (~finite).astype(np.float64)) > 0] = np.inf
    return sums


def _convert_to_epsilons(orders: Floats, divergences: Floats, delta: float) -> Floats:
    """Return epsilons [n] of divergences [n, orders], as dp_accounting.rdp.compute_epsilon does for one."""
    with np.errstate(invalid="ignore"):
        epsilons = divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    epsilons = np.where(orders > 1.01, epsilons, np.inf)
    epsilons = np.where(delta**2 + np.expm1(-divergences) > 0, 0.0, epsilons)
    return np.asarray(epsilons.min(axis=1).clip(min=0.0))
