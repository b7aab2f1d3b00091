"""Guesses "in" or "out" by rules that are chosen on some runs and counted on others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np
from scipy.special import ndtri

from equidp.accounting.risk import Floats
from equidp.audit.bounds import Rates, epsilon_from_rates, noise_from_rates
from equidp.kernel.event import EventCounts

_TRAINING_SHARE = 0.25
_THRESHOLDS = 200
_HANDICAP = 0.5
"""Margin over the likelihood that another rule must show, in mu and in epsilon, because a rule looks too good
on the runs that it is fitted to."""
_RIDGE = 1e-3
_SAME = 1e-12


@final
class Features(NamedTuple):
    """Measurements of runs on one side.

    Attributes:
        likelihood: log likelihood ratio of the gradients released, [runs].
        spread: distance between the largest and the smallest release of a run, [runs], or 0 for one step.
        state: numbers of the policy's state at the end of a run, [runs, numbers].
    """

    likelihood: Floats
    spread: Floats
    state: Floats


Rule = Callable[[Features], Floats]
"""Features -> a score of each run; "in" scores higher."""


class Bounds(NamedTuple):
    """Lower bounds on epsilon: for the claimed mechanism, and for any mechanism."""

    epsilon: float
    assumption_free: float


def compute_bounds(
    sides: tuple[Features, Features], claim: EventCounts, delta: float, level: float
) -> Bounds:
    """Lower bounds on epsilon from runs with the canary and runs without, in this order.

    A rule for each bound is chosen on the first quarter of the runs. Candidates are thresholds on the
    likelihood, on a linear combination of it and the policy's state, and on the spread. Its guesses about the
    other runs count.
    """
    cuts = [int(_TRAINING_SHARE * len(each.likelihood)) for each in sides]
    first = [Features(*(part[:cut] for part in each)) for each, cut in zip(sides, cuts, strict=True)]
    last = [Features(*(part[cut:] for part in each)) for each, cut in zip(sides, cuts, strict=True)]
    rules: list[Rule] = [lambda each: each.likelihood, _discriminant(*first)]
    if any(each.spread.any() for each in first):
        rules += [lambda each: each.spread, lambda each: -each.spread]
    best: dict[str, tuple[float, Rates]] = {}
    for place, rule in enumerate(rules):
        handicap = _HANDICAP if place else 0.0
        trained, counted = [rule(each) for each in first], [rule(each) for each in last]
        for threshold in _thresholds(*trained):
            # Limits, not rates: a threshold far out would look good by luck.
            limits = _count_guesses(trained, threshold).limits(level)
            for name, promise in zip(Bounds._fields, _promise_of_rule(*limits, delta), strict=True):
                if name not in best or promise - handicap > best[name][0]:
                    best[name] = promise - handicap, _count_guesses(counted, threshold)
    return Bounds(
        noise_from_rates(best["epsilon"][1], claim, delta, level),
        epsilon_from_rates(best["assumption_free"][1], delta, level),
    )


def _discriminant(inside: Features, outside: Features) -> Rule:
    """Fisher's linear discriminant of likelihood and state, without constant columns."""

    def columns(each: Features) -> Floats:
        return np.column_stack([each.likelihood, each.state])

    groups = [columns(inside), columns(outside)]
    centre, scale = (f(np.concatenate(groups), axis=0) for f in (np.mean, np.std))
    used = scale > _SAME * (1 + np.abs(centre))
    a, b = ((each - centre)[:, used] / scale[used] for each in groups)
    within = (a - a.mean(0)).T @ (a - a.mean(0)) + (b - b.mean(0)).T @ (b - b.mean(0))
    within = within / (len(a) + len(b)) + _RIDGE * np.eye(used.sum())
    weights = np.linalg.solve(within, a.mean(0) - b.mean(0))

    def score(each: Features) -> Floats:
        return np.asarray(((columns(each) - centre)[:, used] / scale[used]) @ weights)

    return score


def _thresholds(inside: Floats, outside: Floats) -> Floats:
    """Places between neighbouring values, spread evenly over both sides' runs."""
    values = np.unique(np.concatenate([inside, outside]))
    between = (values[1:] + values[:-1]) / 2 if len(values) > 1 else values
    picked = np.linspace(0, len(between) - 1, min(_THRESHOLDS, len(between))).round().astype(int)
    return np.asarray(between[picked])


def _promise_of_rule(found: float, false: float, delta: float) -> tuple[float, float]:
    """Promise of a rule for each bound: mu of a Gaussian, and epsilon."""
    over = np.log(max(found - delta, 1e-300) / false)
    under = np.log(max(1 - false - delta, 1e-300) / (1 - found))
    return float(ndtri(found) - ndtri(false)), float(max(over, under))


def _count_guesses(scores: list[Floats], threshold: float) -> Rates:
    found, false = (int((each > threshold).sum()) for each in scores)
    return Rates(found, len(scores[0]), false, len(scores[1]))
