"""The summary of a comparison, computed once for words, page, plots and terminal."""

from __future__ import annotations

from collections.abc import Mapping
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
        costs: `Comparison.costs()`.
        by_group: means and intervals over seeds (`equidp.evaluation.groups.summary`) of each kind of run, the
            baseline first; indexed by group.
        gaps: `group_gaps` of the costs.
        verdicts: of `equal_cost`, for each kind of run.
        tests: `wilcoxon_table` of the costs.
        individual: means over seeds of `Comparison.individual` for each private kind of run, indexed by
            group; empty if not asked for.
        overview: one row per kind of run.
        no_better_than_one_answer: kinds whose accuracy hardly exceeds always giving the most frequent class.
    """

    comparison: Comparison
    costs: pd.DataFrame
    by_group: Mapping[Kind, pd.DataFrame]
    gaps: pd.DataFrame
    verdicts: Mapping[Kind, str]
    tests: pd.DataFrame
    individual: Mapping[Kind, pd.DataFrame]
    overview: tuple[Overview, ...]
    no_better_than_one_answer: tuple[Kind, ...]

    @property
    def setup(self) -> Setup:
        """What was compared and how."""
        return self.comparison.setup

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds of run, the baseline first."""
        return tuple(self.by_group)

    @property
    def private_kinds(self) -> tuple[Kind, ...]:
        """Kinds of run other than the baseline."""
        return tuple(kind for kind in self.by_group if kind.method != self.setup.baseline)

    def sizes(self) -> dict[str, int]:
        """Training examples of each group, and of all."""
        data = self.setup.data
        return {**dict(zip(data.group_names, data.train_group_sizes, strict=True)), ALL: data.num_train}

    def interval(self, kind: Kind, group: str, metric: str) -> Interval:
        """One of `equidp.evaluation.costs.METRICS` over seeds."""
        return _interval(self.by_group[kind].loc[group], metric)


@lru_cache(maxsize=1)
def summarise(comparison: Comparison) -> Summary:
    """The summary of a comparison; kept for the next call with the same one."""
    costs, setup = comparison.costs(), comparison.setup
    by_group = _indexed(summary(costs, setup.level))
    gaps = {kind: part.iloc[0] for kind, part in by_kind(equal_cost(costs, setup.tau, setup.level)).items()}
    overview = tuple(_overview(kind, by_group[kind], gaps[kind], setup.baseline) for kind in by_group)
    threshold = setup.data.most_frequent_class[1] + _HARDLY_BETTER
    return Summary(
        comparison=comparison,
        costs=costs,
        by_group=by_group,
        gaps=group_gaps(costs),
        verdicts={kind: row["verdict"] for kind, row in gaps.items()},
        tests=wilcoxon_table(costs, setup.baseline),
        individual=_individual(comparison.individual),
        overview=overview,
        no_better_than_one_answer=tuple(row.kind for row in overview if row.accuracy < threshold),
    )


def by_kind(rows: pd.DataFrame) -> dict[Kind, pd.DataFrame]:
    """The rows of each kind of run, in the order of their first rows."""
    if rows.empty:
        return {}
    return {Kind(*key): part for key, part in rows.groupby(["method", "setting"], sort=False)}


def _individual(rows: pd.DataFrame) -> dict[Kind, pd.DataFrame]:
    if rows.empty:
        return {}
    grouped = rows.drop(columns="target_epsilon").groupby(["method", "setting", "group"], sort=False)
    means = grouped.mean().drop(columns="seed")
    error = means["standard_error"] / grouped["seed"].nunique() ** 0.5
    return _indexed(means.assign(standard_error=error).reset_index())


def _indexed(rows: pd.DataFrame) -> dict[Kind, pd.DataFrame]:
    return {kind: part.set_index("group") for kind, part in by_kind(rows).items()}


def _overview(kind: Kind, part: pd.DataFrame, gap: pd.Series, baseline: str) -> Overview:
    overall, costs = part.loc[ALL], part["privacy_cost_mean"].drop(ALL)
    if kind.method == baseline:
        nothing = Interval(np.nan, np.nan, np.nan)
        return Overview(
            kind, overall["epsilon"], overall["accuracy_mean"], np.nan, "", np.nan, nothing, "reference"
        )
    return Overview(
        kind=kind,
        epsilon=overall["epsilon"],
        accuracy=overall["accuracy_mean"],
        cost=overall["privacy_cost_mean"],
        worst_group=str(costs.idxmax()),
        worst_cost=costs.max(),
        gap=_interval(gap, "gap"),
        verdict=gap["verdict"],
    )


def _interval(row: pd.Series, name: str) -> Interval:
    return Interval(*(row[f"{name}_{end}"] for end in Interval._fields))
