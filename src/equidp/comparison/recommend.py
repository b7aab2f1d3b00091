"""Recommendation of a method after a comparison, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from equidp.data.dataset import ALL
from equidp.evaluation.costs import group_gaps
from equidp.evaluation.intervals import mean_interval
from equidp.evaluation.metrics import Metric

_NEGLIGIBLE = 0.1
"""Share of tau: a method that is worse by less counts as not worse, however sure the figure is."""


class Standing(NamedTuple):
    """Means of a method over all seeds.

    Attributes:
        label: its name, with its setting where several are compared.
        value: the metric over all examples.
        gap: the largest gap in cost between two groups.
        behind: loss in the metric against the best method.
    """

    label: str
    value: float
    gap: float
    behind: float


@dataclass(frozen=True)
class Recommendation:
    """Recommended private method at one epsilon.

    Methods whose metric over all examples is not clearly worse than the best one's by a tenth of tau or more,
    and by no more than tau on average, are candidates; of these the one with the smallest mean largest gap is
    taken. Differences are paired over seeds, and clear where their interval, corrected for the number of
    methods (Bonferroni), lies on one side of 0.

    Attributes:
        epsilon: target; None where the comparison had no target.
        method, setting: what to take; "" where nothing can be recommended.
        chosen: standing of the recommended method; None where nothing can be recommended.
        worse: methods that are clearly worse in the metric.
        far_behind: methods that are not clearly worse, but by more than tau on average.
        wider: candidates with a clearly larger gap.
        alike: candidates that are not clearly different.
        uninformative: labels of methods that are no better than one constant answer.
        seeds: the fewest seeds of a method in which the metric is defined; one supports no recommendation.
    """

    epsilon: float | None
    method: str = ""
    setting: str = ""
    chosen: Standing | None = None
    worse: tuple[Standing, ...] = ()
    far_behind: tuple[Standing, ...] = ()
    wider: tuple[Standing, ...] = ()
    alike: tuple[Standing, ...] = ()
    uninformative: tuple[str, ...] = ()
    seeds: int = 1

    @property
    def compared(self) -> bool:
        """True where other private methods were compared."""
        return any((self.worse, self.far_behind, self.wider, self.alike, self.uninformative))

    @property
    def sure(self) -> bool:
        """True where each other method is clearly worse or has a clearly larger gap."""
        return self.chosen is not None and self.compared and not self.alike and not self.far_behind

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        standings = ("worse", "far_behind", "wider", "alike")
        plain = {name: [each._asdict() for each in getattr(self, name)] for name in standings}
        chosen = None if self.chosen is None else self.chosen._asdict()
        return {**vars(self), "chosen": chosen, **plain, "sure": self.sure}


@dataclass(frozen=True, eq=False)
class _Kind:
    """Runs that differ in their seed alone."""

    method: str
    setting: str
    label: str
    overall: pd.Series
    """The metric over all examples by seed, where a larger one is better."""
    gap: pd.Series
    useful: bool


def recommendations(
    costs: pd.DataFrame, metric: Metric, *, baseline: str, tau: float, level: float
) -> tuple[Recommendation, ...]:
    """A recommendation for each target epsilon.

    Args:
        costs: from `equidp.evaluation.costs.privacy_costs`.
        metric: the metric of costs and gaps.
        baseline: the method without privacy, which is never recommended.
        tau: how much worse in the metric a candidate may be on average.
        level: of the intervals.
    """
    private = costs[costs["method"] != baseline]
    found = []
    for target, part in private.groupby("target_epsilon", sort=False, dropna=False):
        epsilon = None if np.isnan(target) else float(target)
        found.append(_recommend_method(epsilon, _kinds(part, metric, epsilon), metric, tau, level))
    return tuple(found)


def _kinds(part: pd.DataFrame, metric: Metric, epsilon: float | None) -> list[_Kind]:
    gaps = group_gaps(part).query("pair == 'largest'")
    kinds = []
    for (method, setting), rows in part[part["group"] == ALL].groupby(["method", "setting"], sort=False):
        own = gaps[(gaps["method"] == method) & (gaps["setting"] == setting)]
        swept = setting.removeprefix("" if epsilon is None else f"epsilon={epsilon:g}").removeprefix(", ")
        useful = rows["informative"].mean() > 0.5 if "informative" in rows else True
        overall = metric.sign * rows.set_index("seed")[metric.name]
        label = f"{method} ({swept})" if swept else method
        kinds.append(_Kind(method, setting, label, overall, own.set_index("seed")["cost_gap"], bool(useful)))
    return kinds


def _recommend_method(
    epsilon: float | None, kinds: Sequence[_Kind], metric: Metric, tau: float, level: float
) -> Recommendation:
    useful = [kind for kind in kinds if kind.useful]
    uninformative = tuple(kind.label for kind in kinds if not kind.useful)
    seeds = min(len(kind.overall.dropna()) for kind in kinds)
    if seeds < 2 or not useful:
        return Recommendation(epsilon, uninformative=uninformative, seeds=seeds)
    corrected = 1 - (1 - level) / max(1, len(useful) - 1)

    def clear(differences: pd.Series) -> bool:
        return bool(mean_interval(differences.dropna(), corrected)[1] > 0)

    best = max(useful, key=lambda kind: kind.overall.mean())
    standings = {kind: _standing(kind, best, metric) for kind in useful}
    worse = [
        kind
        for kind in useful
        if standings[kind].behind > _NEGLIGIBLE * tau and clear(best.overall - kind.overall)
    ]
    far_behind = [kind for kind in useful if standings[kind].behind > tau and kind not in worse]
    candidates = [kind for kind in useful if kind not in worse and kind not in far_behind]
    chosen = min(candidates, key=lambda kind: (round(kind.gap.mean(), 9), -kind.overall.mean()))
    wider = [kind for kind in candidates if clear(kind.gap - chosen.gap)]
    alike = [kind for kind in candidates if kind is not chosen and kind not in wider]

    def of(kinds: Sequence[_Kind]) -> tuple[Standing, ...]:
        return tuple(standings[kind] for kind in kinds)

    return Recommendation(
        epsilon,
        chosen.method,
        chosen.setting,
        standings[chosen],
        of(worse),
        of(far_behind),
        of(wider),
        of(alike),
        uninformative,
        seeds,
    )


def _standing(kind: _Kind, best: _Kind, metric: Metric) -> Standing:
    value, gap = metric.sign * float(kind.overall.mean()), float(kind.gap.mean())
    return Standing(kind.label, value, gap, float((best.overall - kind.overall).mean()))
