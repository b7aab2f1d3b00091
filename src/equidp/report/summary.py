"""Summary of a comparison, computed once for words, page, plots and terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from equidp._extras import require_extra
from equidp.comparison.plan import Kind
from equidp.comparison.result import Comparison, Setup
from equidp.data.dataset import ALL
from equidp.display import Interval, measured_number
from equidp.evaluation.baselines import Judgement, baseline_names
from equidp.evaluation.costs import COSTS, EPSILON_OF_GROUP, TOTAL_COSTS, summary
from equidp.evaluation.intervals import LEVEL, mean_interval
from equidp.evaluation.metrics import METRICS, Metric
from equidp.policies.table import BASELINE
from equidp.report.format import capitalise, metric_text, number, unit

with require_extra("tables"):
    import pandas as pd


class Detail(NamedTuple):
    """Column of `equidp.evaluation.costs.summary`, its heading, and the text of its values."""

    column: str
    title: str
    show: Callable[[float], str]


class Overview(NamedTuple):
    """Row of the summary table, one kind of run. Costs and gaps of a reference, and of runs against one that
    does not serve, are NaN.

    Attributes:
        kind: kind of run.
        epsilon: the largest over seeds.
        value: mean of the comparison's metric, by default accuracy, over all test examples.
        cost: mean privacy cost over all test examples.
        worst_group: group with the largest mean cost, or "" without one.
        worst_cost: its cost.
        gap: largest difference in cost between two groups.
        verdict: verdict of `equidp.evaluation.costs.equal_cost`, or "reference".
        informative: whether its runs are better than one constant prediction.
    """

    kind: Kind
    epsilon: float
    value: float
    cost: float = np.nan
    worst_group: str = ""
    worst_cost: float = np.nan
    gap: Interval = Interval(np.nan)
    verdict: str = "reference"
    informative: bool = True


@dataclass(frozen=True, eq=False)
class Summary:
    """Results of a comparison that reports show. Each part is computed once."""

    comparison: Comparison

    @property
    def setup(self) -> Setup:
        """Setup of the comparison."""
        return self.comparison.setup

    @property
    def metric(self) -> Metric:
        """Metric of costs, gaps and verdicts."""
        return self.comparison.metric

    @property
    def label(self) -> str:
        """Label of the metric for titles, capitalised and without its unit."""
        return capitalise(self.metric.label)

    @property
    def scale(self) -> float:
        """Factor from a value of the metric to its display: 100 for percentage points."""
        return 100.0 if self.metric.percent else 1.0

    def text(self, value: float) -> str:
        """Text of a value of the metric, or of a difference: in points to a tenth, or to three digits."""
        return metric_text(self.metric, value)

    @property
    def details(self) -> tuple[Detail, ...]:
        """Columns by group: the metric, its costs, loss, excessive risk, and other metrics of the runs."""
        titles = {"model_cost": "Model cost", "total_cost": "Model cost and privacy cost together"}
        both, of = TOTAL_COSTS if self.has_model_cost else (), unit(self.metric)
        metrics = [self.metric, *(m for n, m in METRICS.items() if n in self.costs and n != self.metric.name)]
        first, *others = (
            Detail(each.name, capitalise(each.heading), partial(metric_text, each)) for each in metrics
        )
        return (
            first,
            Detail("privacy_cost", f"Privacy cost, {of}", self.text),
            *(Detail(name, f"{titles[name]}, {of}", self.text) for name in both),
            Detail("loss", "Loss", measured_number),
            Detail("excessive_risk", "Excessive risk: loss beyond the non-private run's", measured_number),
            *([Detail(EPSILON_OF_GROUP, "Epsilon of the group", number)] if self.has_groups else []),
            *others,
        )

    @property
    def has_groups(self) -> bool:
        """True if runs differ in the epsilon of groups."""
        return EPSILON_OF_GROUP in self.costs

    @property
    def costs(self) -> pd.DataFrame:
        """`Comparison.costs()`, without those against a reference that does not serve."""
        return self.comparison.served_costs

    @cached_property
    def by_group(self) -> dict[Kind, pd.DataFrame]:
        """`equidp.evaluation.costs.summary` of each kind of run, the reference first; indexed by group."""
        parts = by_kind(summary(self.costs, LEVEL, self.metric))
        return {kind: part.set_index("group") for kind, part in parts.items()}

    @cached_property
    def overview(self) -> tuple[Overview, ...]:
        """Rows of the summary table, one per kind of run."""
        verdicts = by_kind(self.comparison.verdicts())
        return tuple(self._overview(kind, verdicts[kind].iloc[0]) for kind in self.kinds)

    @property
    def best(self) -> pd.DataFrame:
        """Results of the best non-private model, or empty if no models were tried."""
        references = self.comparison.references
        return references if references.empty else references[references["best"]]

    @property
    def best_label(self) -> str:
        """Name of the best model without privacy, such as "boosted trees"."""
        first = self.best.iloc[0]
        return Kind(first["method"], first["baseline"]).label

    @property
    def has_model_cost(self) -> bool:
        """True if the best non-private model differs from some reference."""
        return not self.best.empty and (len(self.reference_kinds) > 1 or not self.best["chosen"].all())

    def best_interval(self, group: str) -> Interval:
        """Interval over seeds of the metric of the best model without privacy."""
        values = self.best.loc[self.best["group"] == group, self.metric.name]
        return Interval(*mean_interval(values.dropna(), LEVEL, self.metric.range))

    @cached_property
    def judgements(self) -> dict[Kind, Judgement]:
        """Judgement of the reference that each kind of run is measured against."""
        names = by_kind(self.costs.assign(baseline=baseline_names(self.costs)))
        return {kind: self.comparison.judgements[part["baseline"].iloc[0]] for kind, part in names.items()}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds of run, the reference first."""
        return tuple(self.by_group)

    @property
    def reference_kinds(self) -> tuple[Kind, ...]:
        """Kinds of run of the reference."""
        return tuple(kind for kind in self.by_group if kind.method == BASELINE)

    @property
    def private_kinds(self) -> tuple[Kind, ...]:
        """Kinds of run other than the reference."""
        return tuple(kind for kind in self.by_group if kind.method != BASELINE)

    def kinds_of(self, column: str) -> tuple[Kind, ...]:
        """Kinds of run that have a column: of costs those that can lose, of others all."""
        if column == "model_cost":
            return self.reference_kinds
        own = (*COSTS, *TOTAL_COSTS, EPSILON_OF_GROUP)
        return self.private_kinds if column in own else self.kinds

    def sizes(self) -> dict[str, int]:
        """Training examples of each group, and of all."""
        setup = self.setup
        sizes = zip(setup.group_names, setup.train_group_sizes, strict=True)
        return {**dict(sizes), ALL: setup.num_train}

    def interval(self, kind: Kind, group: str, column: str) -> Interval:
        """Interval over seeds, one of `equidp.evaluation.costs.ranges`."""
        return interval_of(self.by_group[kind].loc[group], column)

    def _overview(self, kind: Kind, verdict: pd.Series) -> Overview:
        part = self.by_group[kind]
        overall, costs = part.loc[ALL], part["privacy_cost_mean"].drop(ALL)
        row = Overview(
            kind, overall["epsilon"], overall[f"{self.metric.name}_mean"], informative=verdict["informative"]
        )
        if kind.method == BASELINE:
            return row
        return row._replace(
            cost=overall["privacy_cost_mean"],
            worst_group="" if costs.isna().all() else str(costs.idxmax()),
            worst_cost=costs.max(),
            gap=interval_of(verdict, "gap"),
            verdict=verdict["verdict"],
        )


def interval_of(row: pd.Series, name: str) -> Interval:
    """Return the mean and the ends of a column, of a row of `equidp.evaluation.costs.summary`."""
    return Interval(*(row[f"{name}_{end}"] for end in ("mean", "low", "high")))


@lru_cache(maxsize=1)
def summarise(comparison: Comparison) -> Summary:
    """Return the summary of a comparison; cached for the last comparison."""
    return Summary(comparison)


def by_kind(rows: pd.DataFrame) -> dict[Kind, pd.DataFrame]:
    """Return the rows of each kind of run, in the order of their first rows."""
    if rows.empty:
        return {}
    return {Kind(*key): part for key, part in rows.groupby(["method", "setting"], sort=False)}
