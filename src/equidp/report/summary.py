"""The summary of a comparison, computed once for words, page, plots and terminal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from equidp.comparison.result import Comparison, Setup
from equidp.data.dataset import ALL
from equidp.evaluation.costs import equal_cost, summary


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
        """The name of the method, with its setting where a comparison has several."""
        return f"{self.method} ({self.setting})" if self.setting else self.method


class Overview(NamedTuple):
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
    cost: float = np.nan
    worst_group: str = ""
    worst_cost: float = np.nan
    gap: Interval = Interval(np.nan, np.nan, np.nan)
    verdict: str = "reference"


@dataclass(frozen=True, eq=False)
class Summary:
    """All that reports show of a comparison; each part is computed once."""

    comparison: Comparison

    @property
    def setup(self) -> Setup:
        """What was compared and how."""
        return self.comparison.setup

    @cached_property
    def costs(self) -> pd.DataFrame:
        """`Comparison.costs()`."""
        return self.comparison.costs()

    @cached_property
    def by_group(self) -> dict[Kind, pd.DataFrame]:
        """`equidp.evaluation.costs.summary` of each kind of run, the baseline first; indexed by group."""
        return _indexed(summary(self.costs, self.setup.level))

    @cached_property
    def individual(self) -> dict[Kind, pd.DataFrame]:
        """Means over seeds of `Comparison.individual` for each private kind of run, indexed by group."""
        rows = self.comparison.individual
        if rows.empty:
            return {}
        grouped = rows.drop(columns="target_epsilon").groupby(["method", "setting", "group"], sort=False)
        means = grouped.mean().drop(columns="seed")
        error = means["standard_error"] / grouped["seed"].nunique() ** 0.5
        return _indexed(means.assign(standard_error=error).reset_index())

    @cached_property
    def overview(self) -> tuple[Overview, ...]:
        """One row per kind of run."""
        gaps = by_kind(equal_cost(self.costs, self.setup.tau, self.setup.level))
        return tuple(self._overview(kind, gaps[kind].iloc[0]) for kind in self.kinds)

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

    def _overview(self, kind: Kind, gap: pd.Series) -> Overview:
        part = self.by_group[kind]
        overall, costs = part.loc[ALL], part["privacy_cost_mean"].drop(ALL)
        row = Overview(kind, overall["epsilon"], overall["accuracy_mean"])
        if kind.method == self.setup.baseline:
            return row
        return row._replace(
            cost=overall["privacy_cost_mean"],
            worst_group=str(costs.idxmax()),
            worst_cost=costs.max(),
            gap=_interval(gap, "gap"),
            verdict=gap["verdict"],
        )


@lru_cache(maxsize=1)
def summarise(comparison: Comparison) -> Summary:
    """The summary of a comparison; kept for the next call with the same one."""
    return Summary(comparison)


def by_kind(rows: pd.DataFrame) -> dict[Kind, pd.DataFrame]:
    """The rows of each kind of run, in the order of their first rows."""
    if rows.empty:
        return {}
    return {Kind(*key): part for key, part in rows.groupby(["method", "setting"], sort=False)}


def _indexed(rows: pd.DataFrame) -> dict[Kind, pd.DataFrame]:
    return {kind: part.set_index("group") for kind, part in by_kind(rows).items()}


def _interval(row: pd.Series, name: str) -> Interval:
    return Interval(*(row[f"{name}_{end}"] for end in Interval._fields))
