"""The summary of a comparison, computed once for words, page, plots and terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from equidp.comparison.result import Comparison, Setup
from equidp.data.dataset import ALL
from equidp.evaluation.costs import equal_cost, group_gaps, summary, wilcoxon_table
from equidp.report.format import label

_HARDLY_BETTER = 0.005


class Interval(NamedTuple):
    """A mean over seeds with its confidence interval, whose ends are NaN for a single seed."""

    mean: float
    low: float
    high: float


class Kind(NamedTuple):
    """The runs that differ in nothing but their seed."""

    method: str
    setting: str

    @property
    def label(self) -> str:
        return label(self.method, self.setting)


@dataclass(frozen=True)
class Overview:
    """A row of the summary table: one kind of run. Costs and gaps of the baseline are NaN.

    Attributes:
        kind: of run.
        epsilon: the largest over seeds.
        accuracy: mean over all test examples.
        cost: mean privacy cost over all test examples.
        worst_group: the group with the largest mean cost; "" for the baseline.
        worst_cost: its cost.
        gap: largest difference in cost between two groups.
        verdict: "holds", "fails" or "undecided" on equal cost, "one seed: no verdict", or "reference".
    """

    kind: Kind
    epsilon: float
    accuracy: float
    cost: float
    worst_group: str
    worst_cost: float
    gap: Interval
    verdict: str


@dataclass(frozen=True, eq=False)
class Summary:
    """All that reports show of a comparison.

    Attributes:
        comparison: the comparison itself.
        kinds: of its runs, the baseline first.
        costs: `Comparison.costs()`.
        by_group: `summary` of the costs: means and intervals over seeds, indexed by method, setting and group.
        gaps: `group_gaps` of the costs.
        verdicts: `equal_cost` of the costs, indexed by method and setting.
        tests: `wilcoxon_table` of the costs.
        individual: means over seeds of `Comparison.individual`, indexed by method, setting and group.
        overview: one row per kind of run.
        no_better_than_one_answer: kinds whose accuracy hardly exceeds always answering the most frequent class.
    """

    comparison: Comparison
    kinds: tuple[Kind, ...]
    costs: pd.DataFrame
    by_group: pd.DataFrame
    gaps: pd.DataFrame
    verdicts: pd.DataFrame
    tests: pd.DataFrame
    individual: pd.DataFrame
    overview: tuple[Overview, ...]
    no_better_than_one_answer: tuple[Kind, ...]

    @property
    def setup(self) -> Setup:
        """What was compared and how."""
        return self.comparison.setup

    @property
    def private_kinds(self) -> tuple[Kind, ...]:
        """Kinds of run other than the baseline."""
        return tuple(kind for kind in self.kinds if kind.method != self.setup.baseline)

    def interval(self, kind: Kind, group: str, metric: str) -> Interval:
        """A metric of `equidp.evaluation.costs.METRICS` over seeds."""
        return Interval(*(self.by_group.at[(*kind, group), f"{metric}_{end}"] for end in Interval._fields))


@lru_cache(maxsize=1)
def summarise(comparison: Comparison) -> Summary:
    """The summary of a comparison; kept for the next call with the same one."""
    costs, setup = comparison.costs(), comparison.setup
    kinds = tuple(dict.fromkeys(map(Kind, costs["method"], costs["setting"])))
    by_group = summary(costs, setup.level).set_index(["method", "setting", "group"])
    verdicts = equal_cost(costs, setup.tau, setup.level).set_index(["method", "setting"])
    accuracy = by_group["accuracy_mean"].xs(ALL, level="group")
    share = setup.data.most_frequent_class[1]
    return Summary(
        comparison=comparison,
        kinds=kinds,
        costs=costs,
        by_group=by_group,
        gaps=group_gaps(costs),
        verdicts=verdicts,
        tests=wilcoxon_table(costs, setup.baseline),
        individual=_individual(comparison.individual),
        overview=tuple(_overview(kinds, by_group, verdicts, setup.baseline)),
        no_better_than_one_answer=tuple(kind for kind in kinds if accuracy[kind] < share + _HARDLY_BETTER),
    )


def _individual(rows: pd.DataFrame) -> pd.DataFrame:
    if rows.empty:
        return rows
    grouped = rows.drop(columns="target_epsilon").groupby(["method", "setting", "group"], sort=False)
    means = grouped.mean().drop(columns="seed")
    return means.assign(standard_error=means["standard_error"] / grouped["seed"].nunique() ** 0.5)


def _overview(
    kinds: tuple[Kind, ...], by_group: pd.DataFrame, verdicts: pd.DataFrame, baseline: str
) -> Iterator[Overview]:
    for kind in kinds:
        part = by_group.loc[kind]
        epsilon, accuracy = float(part.at[ALL, "epsilon"]), float(part.at[ALL, "accuracy_mean"])
        if kind.method == baseline:
            nothing = Interval(np.nan, np.nan, np.nan)
            yield Overview(kind, epsilon, accuracy, np.nan, "", np.nan, nothing, "reference")
            continue
        costs = part["privacy_cost_mean"].drop(ALL)
        verdict = verdicts.loc[kind]
        yield Overview(
            kind=kind,
            epsilon=epsilon,
            accuracy=accuracy,
            cost=float(part.at[ALL, "privacy_cost_mean"]),
            worst_group=str(costs.idxmax()),
            worst_cost=float(costs.max()),
            gap=Interval(*(float(verdict[f"gap_{end}"]) for end in Interval._fields)),
            verdict=str(verdict["verdict"]),
        )
