"""Recommendation of a method after a comparison, its reason, and how sure it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from equidp.data.dataset import ALL
from equidp.evaluation.costs import group_gaps
from equidp.evaluation.intervals import mean_interval
from equidp.evaluation.metric import Metric

_MOST_NAMED = 4
_NEGLIGIBLE = 0.1
"""Share of tau: a method that is worse by less counts as not worse, however sure the figure is."""


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
        sure: True where each other method is clearly worse or has a clearly larger gap.
        as_good: labels of methods that are not clearly different.
        reason: a few sentences.
    """

    epsilon: float | None
    method: str
    setting: str
    sure: bool
    as_good: tuple[str, ...]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class _Kind(NamedTuple):
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
    at = "" if epsilon is None else f"At epsilon {epsilon:g}: "
    useful = [kind for kind in kinds if kind.useful]
    if min(len(kind.overall.dropna()) for kind in kinds) < 2:
        return _none(epsilon, f"{at}one run of each method supports no recommendation; use more seeds.")
    if not useful:
        return _none(
            epsilon,
            f"{at}no method can be recommended: no private model is better than one constant answer.",
        )
    corrected = 1 - (1 - level) / max(1, len(useful) - 1)

    def clear(differences: pd.Series) -> bool:
        return bool(mean_interval(differences.dropna(), corrected)[1] > 0)

    best = max(useful, key=lambda kind: kind.overall.mean())
    behind = {kind.label: _behind(best, kind) for kind in useful}
    worse = [
        kind
        for kind in useful
        if behind[kind.label] > _NEGLIGIBLE * tau and clear(best.overall - kind.overall)
    ]
    far = [kind for kind in useful if _behind(best, kind) > tau and kind not in worse]
    candidates = [kind for kind in useful if kind not in worse and kind not in far]
    chosen = min(candidates, key=lambda kind: (round(kind.gap.mean(), 9), -kind.overall.mean()))
    wider = [kind for kind in candidates if clear(kind.gap - chosen.gap)]
    alike = [kind for kind in candidates if kind is not chosen and kind not in wider]
    unsure = [*alike, *far]
    text = _Words(metric)
    parts = {
        f"Clearly worse in {metric.label}": {kind.label: text.of(_behind(best, kind)) for kind in worse},
        "Not clearly worse, but by more than tau on average": {
            kind.label: text.of(_behind(best, kind)) for kind in far
        },
        "With a clearly larger gap": {kind.label: text.of(kind.gap.mean()) for kind in wider},
        "Not clearly different, so a choice by other reasons will do": {
            kind.label: f"gap {text.of(kind.gap.mean())}, {metric.label} {text.of(_value(kind, metric))}"
            for kind in alike
        },
        "No better than one constant answer": {kind.label: "" for kind in kinds if not kind.useful},
    }
    others = len(kinds) > 1
    sure = "This is clear" if not unsure else "This is not sure; more seeds would tell"
    reason = [
        f"{at}{'take' if at else 'Take'} {chosen.label}: {metric.label} {text.of(_value(chosen, metric))}, "
        f"largest gap between groups {text.of(chosen.gap.mean())}{text.unit}.",
        f"{sure}." if others else "No other method was compared.",
        *(f"{head}: {_join_labels(labels)}." for head, labels in parts.items() if labels),
    ]
    return Recommendation(
        epsilon,
        chosen.method,
        chosen.setting,
        others and not unsure,
        tuple(kind.label for kind in alike),
        " ".join(reason),
    )


def _none(epsilon: float | None, reason: str) -> Recommendation:
    return Recommendation(epsilon, "", "", False, (), reason[:1].upper() + reason[1:])


def _behind(best: _Kind, kind: _Kind) -> float:
    return float((best.overall - kind.overall).mean())


def _value(kind: _Kind, metric: Metric) -> float:
    return metric.sign * float(kind.overall.mean())


def _join_labels(labels: Mapping[str, str]) -> str:
    named: Iterable[tuple[str, str]] = itertools.islice(labels.items(), _MOST_NAMED)
    texts = [f"{label} ({figure})" if figure else label for label, figure in named]
    left = len(labels) - len(texts)
    return ", ".join([*texts, *([f"and {left} more"] if left else [])])


@dataclass(frozen=True)
class _Words:
    """Texts of values of a metric."""

    metric: Metric

    @property
    def unit(self) -> str:
        return " points" if self.metric.percent else ""

    def of(self, value: float) -> str:
        if np.isnan(value):
            return "not known"
        return f"{100 * value:.1f}" if self.metric.percent else f"{value:.3g}"
