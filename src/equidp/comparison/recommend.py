"""Recommendation of a method after a comparison, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from equidp._extras import require_extra
from equidp.data.dataset import ALL
from equidp.evaluation.baselines import (
    NEGLIGIBLE,
    Judgement,
    baseline_names,
    informative,
    judge_baselines,
)
from equidp.evaluation.costs import group_gaps
from equidp.evaluation.intervals import LEVEL, mean_interval
from equidp.evaluation.metrics import Metric
from equidp.policies.table import BASELINE

with require_extra("tables"):
    import pandas as pd


@dataclass(frozen=True)
class Standing:
    """Means of a method over all seeds.

    Attributes:
        label: its name, with its setting if several are compared.
        value: metric over all examples.
        gap: the largest gap in cost between two groups.
        behind: loss in the metric against the best method.
        by: label of the method that beats it in every group, or "" if none does, or if this was not tested.
    """

    label: str
    value: float
    gap: float
    behind: float
    by: str = ""


@dataclass(frozen=True)
class Recommendation:
    """Recommended private method at one epsilon.

    A method is a candidate if its metric over all examples is not clearly worse than the best one's by a
    tenth of the tolerance or more, and not worse by more than the tolerance on average. A method that another
    beats is not a candidate. To beat it, the other's mean over seeds must be at least as good in each group,
    and better over all examples. Differences are paired over seeds. They are clear if their interval,
    corrected for the number of methods (Bonferroni), is on one side of 0.

    The candidate with the smallest mean largest gap is recommended if each other candidate's gap is clearly
    larger, or if no other candidate has a better mean of the metric. Otherwise nothing is recommended, and
    the candidates are alike. Nothing is recommended if a reference that methods are measured against is not
    meaningful (`equidp.evaluation.baselines.judge_baselines`), or from one seed.

    Attributes:
        epsilon: target epsilon, or None if the comparison had no target.
        method, setting: recommended method and setting, or "" if nothing can be recommended.
        chosen: standing of the recommended method, or None if nothing can be recommended.
        worse: methods that are clearly worse in the metric.
        far_behind: methods that are not clearly worse, but by more than the tolerance on average.
        beaten: methods that are neither, and that another one beats in every group.
        wider: candidates with a clearly larger gap than the taken one.
        alike: other candidates, the smallest gap first.
        uninformative: labels of methods that are no better than one constant prediction.
        seeds: fewest seeds of a method in which the metric is defined.
        faults: judgements of references that do not serve.
    """

    epsilon: float | None
    method: str = ""
    setting: str = ""
    chosen: Standing | None = None
    worse: tuple[Standing, ...] = ()
    far_behind: tuple[Standing, ...] = ()
    beaten: tuple[Standing, ...] = ()
    wider: tuple[Standing, ...] = ()
    alike: tuple[Standing, ...] = ()
    uninformative: tuple[str, ...] = ()
    seeds: int = 1
    faults: tuple[Judgement, ...] = ()

    @property
    def compared(self) -> bool:
        """True if other private methods were compared."""
        others = self.worse, self.far_behind, self.beaten, self.wider, self.alike, self.uninformative
        return any(others)

    @property
    def sure(self) -> bool:
        """True if each other method is clearly worse or has a clearly larger gap."""
        unclear = self.alike or self.far_behind or self.beaten
        return self.chosen is not None and self.compared and not unclear

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "sure": self.sure}


@dataclass(frozen=True, eq=False)
class _Kind:
    """Runs that differ only in their seed. `overall`, by seed, and `by_group`, means over seeds, are values
    of the metric; larger is better."""

    method: str
    setting: str
    label: str
    overall: pd.Series
    gap: pd.Series
    by_group: pd.Series
    useful: bool
    reference: str

    def beats(self, other: _Kind) -> bool:
        """True if means over seeds are at least as good in each group, and better over all examples."""
        overall = self.overall.mean() > other.overall.mean()
        return bool(overall and (self.by_group - other.by_group).dropna().ge(0).all())


def recommend_methods(
    costs: pd.DataFrame, metric: Metric, gap_tolerance: float
) -> tuple[Recommendation, ...]:
    """Return a recommendation for each target epsilon.

    Args:
        costs: costs from `equidp.evaluation.costs.privacy_costs`.
        metric: metric of costs and gaps.
        gap_tolerance: how much worse in the metric a candidate may be on average.
    """
    private, judged = costs[costs["method"] != BASELINE], judge_baselines(costs, gap_tolerance, BASELINE)
    found = []
    for target, part in private.groupby("target_epsilon", sort=False, dropna=False):
        epsilon = None if np.isnan(target) else float(target)
        kinds = _kinds(part, metric, epsilon)
        against = dict.fromkeys(kind.reference for kind in kinds if kind.useful)
        faults = tuple(judged[name] for name in against if not judged[name].serves)
        advised = _recommend_method(epsilon, kinds, metric, gap_tolerance)
        if faults:
            advised = Recommendation(
                epsilon, uninformative=advised.uninformative, seeds=advised.seeds, faults=faults
            )
        found.append(advised)
    return tuple(found)


def _kinds(part: pd.DataFrame, metric: Metric, epsilon: float | None) -> list[_Kind]:
    gaps, names = group_gaps(part).query("pair == 'largest'"), baseline_names(part)
    groups = part[(part["group"] != ALL) & part["privacy_cost"].notna()]  # without groups of too few people
    by_group = metric.sign * groups.groupby(["method", "setting", "group"])[metric.name].mean()
    kinds = []
    for (method, setting), rows in part[part["group"] == ALL].groupby(["method", "setting"], sort=False):
        own = gaps[(gaps["method"] == method) & (gaps["setting"] == setting)]
        swept = setting.removeprefix("" if epsilon is None else f"epsilon={epsilon:g}").removeprefix(", ")
        kinds.append(
            _Kind(
                method,
                setting,
                label=f"{method} ({swept})" if swept else method,
                overall=metric.sign * rows.set_index("seed")[metric.name],
                gap=own.set_index("seed")["cost_gap"],
                by_group=by_group.get((method, setting), pd.Series(dtype=float)),
                useful=bool(informative(rows).mean() > 0.5),
                reference=names[rows.index[0]],
            )
        )
    return kinds


def _recommend_method(
    epsilon: float | None, kinds: Sequence[_Kind], metric: Metric, gap_tolerance: float
) -> Recommendation:
    useful = [kind for kind in kinds if kind.useful]
    uninformative = tuple(kind.label for kind in kinds if not kind.useful)
    seeds = min(len(kind.overall.dropna()) for kind in kinds)
    if seeds < 2 or not useful:
        return Recommendation(epsilon, uninformative=uninformative, seeds=seeds)
    corrected = 1 - (1 - LEVEL) / max(1, len(useful) - 1)

    def clear(differences: pd.Series) -> bool:
        return bool(mean_interval(differences.dropna(), corrected)[1] > 0)

    best = max(useful, key=lambda kind: kind.overall.mean())
    behind = {kind: float((best.overall - kind.overall).mean()) for kind in useful}
    worse = [
        kind
        for kind in useful
        if behind[kind] > NEGLIGIBLE * gap_tolerance and clear(best.overall - kind.overall)
    ]
    far_behind = [kind for kind in useful if behind[kind] > gap_tolerance and kind not in worse]
    close = [kind for kind in useful if kind not in worse and kind not in far_behind]
    beaten_by = {kind: next((each.label for each in useful if each.beats(kind)), "") for kind in close}
    candidates = [kind for kind in close if not beaten_by[kind]]
    candidates.sort(key=lambda kind: (round(kind.gap.mean(), 9), -kind.overall.mean()))
    first, *others = candidates
    wider = [kind for kind in others if clear(kind.gap - first.gap)]
    alike = [kind for kind in others if kind not in wider]
    taken = all(kind.overall.mean() <= first.overall.mean() for kind in alike)

    def standings(kinds: Sequence[_Kind]) -> tuple[Standing, ...]:
        return tuple(
            Standing(
                kind.label,
                metric.sign * float(kind.overall.mean()),
                float(kind.gap.mean()),
                behind[kind],
                beaten_by.get(kind, ""),
            )
            for kind in kinds
        )

    return Recommendation(
        epsilon,
        first.method if taken else "",
        first.setting if taken else "",
        standings([first])[0] if taken else None,
        worse=standings(worse),
        far_behind=standings(far_behind),
        beaten=standings([kind for kind in close if beaten_by[kind]]),
        wider=standings(wider),
        alike=standings(alike if taken else [first, *alike]),
        uninformative=uninformative,
        seeds=seeds,
    )
