"""Summary of a comparison, computed once for words, page, plots and terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from equidp._extras import require_extra
from equidp.comparison.result import Comparison, Setup, interval_of
from equidp.comparison.sweep import Kind
from equidp.data.dataset import ALL
from equidp.display import Interval, measured_number
from equidp.evaluation.baselines import Judgement, baseline_names
from equidp.evaluation.costs import COSTS, EPSILON_OF_GROUP, TOTAL_COSTS, equal_cost, summary
from equidp.evaluation.intervals import mean_interval
from equidp.evaluation.metrics import METRICS, Metric
from equidp.report.format import capitalise, metric_text, number, unit

with require_extra("tables"):
    import pandas as pd


class Detail(NamedTuple):
    """Column of `equidp.evaluation.costs.summary`, its heading, and the text of its values."""

    column: str
    title: str
    show: Callable[[float], str]


class Overview(NamedTuple):
    """Row of the summary table: one kind of run. Costs and gaps of the baseline are NaN.

    Attributes:
        kind: of run.
        epsilon: the largest over seeds.
        accuracy: mean of the comparison's metric, by default accuracy, over all test examples.
        cost: mean privacy cost over all test examples.
        worst_group: the group with the largest mean cost; "" for the baseline.
        worst_cost: its cost.
        gap: largest difference in cost between two groups.
        verdict: "within tolerance", "exceeds tolerance", "inconclusive", "uninformative" or "no verdict" on
            equal cost, "one seed: no verdict", or "baseline".
        informative: True where its runs are better than one constant prediction.
    """

    kind: Kind
    epsilon: float
    accuracy: float
    cost: float = np.nan
    worst_group: str = ""
    worst_cost: float = np.nan
    gap: Interval = Interval(np.nan)
    verdict: str = "baseline"
    informative: bool = True


@dataclass(frozen=True, eq=False)
class Summary:
    """Results of a comparison that reports show; each part is computed once."""

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
        """Details that are shown first of each group: the metric, its costs, loss and excessive risk."""
        titles = {"model_cost": "Model cost", "total_cost": "Model cost and privacy cost together"}
        both, of = TOTAL_COSTS if self.has_model_cost else (), unit(self.metric)
        return (
            self._detail(self.metric),
            Detail("privacy_cost", f"Privacy cost, {of}", self.text),
            *(Detail(name, f"{titles[name]}, {of}", self.text) for name in both),
            Detail("loss", "Loss", measured_number),
            Detail("excessive_risk", "Excessive risk: loss beyond the non-private run's", measured_number),
            *([Detail(EPSILON_OF_GROUP, "Epsilon of the group", number)] if self.has_groups else []),
        )

    @property
    def has_groups(self) -> bool:
        """True where runs differ in the epsilon of groups."""
        return EPSILON_OF_GROUP in self.costs

    @property
    def further_details(self) -> tuple[Detail, ...]:
        """Details of the other metrics that the runs have."""
        others = [each for name, each in METRICS.items() if name in self.costs and name != self.metric.name]
        return tuple(map(self._detail, others))

    def _detail(self, metric: Metric) -> Detail:
        return Detail(metric.name, capitalise(metric.heading), partial(metric_text, metric))

    @cached_property
    def costs(self) -> pd.DataFrame:
        """`Comparison.costs()`."""
        return self.comparison.costs()

    @cached_property
    def by_group(self) -> dict[Kind, pd.DataFrame]:
        """`equidp.evaluation.costs.summary` of each kind of run, the baseline first; indexed by group."""
        return _index_by_group(summary(self.costs, self.setup.level, self.metric))

    @cached_property
    def individual(self) -> dict[Kind, pd.DataFrame]:
        """Means over seeds of `Comparison.individual` for each private kind of run, indexed by group."""
        rows = self.comparison.individual
        if rows.empty:
            return {}
        grouped = rows.drop(columns="target_epsilon").groupby(["method", "setting", "group"], sort=False)
        means = grouped.mean(numeric_only=True).drop(columns="seed")  # without names of settings
        error = means["standard_error"] / grouped["seed"].nunique() ** 0.5
        return _index_by_group(means.assign(standard_error=error).reset_index())

    @cached_property
    def overview(self) -> tuple[Overview, ...]:
        """Rows of the summary table, one per kind of run."""
        setup = self.setup
        gaps = by_kind(equal_cost(self.costs, setup.gap_tolerance, setup.level, self.metric, setup.baseline))
        return tuple(self._overview(kind, gaps[kind].iloc[0]) for kind in self.kinds)

    @property
    def best(self) -> pd.DataFrame:
        """Results of the best model without privacy; empty where no models were tried."""
        baselines = self.comparison.baselines
        return baselines if baselines.empty else baselines[baselines["best"]]

    @property
    def has_model_cost(self) -> bool:
        """True where the best model without privacy is another one than some baseline."""
        return not self.best.empty and (len(self.baseline_kinds) > 1 or not self.best["chosen"].all())

    def best_interval(self, group: str) -> Interval:
        """Interval over seeds of the metric of the best model without privacy."""
        values = self.best.loc[self.best["group"] == group, self.metric.name]
        return Interval(*mean_interval(values.dropna(), self.setup.level, self.metric.range))

    @cached_property
    def judged(self) -> dict[str, Judgement]:
        """Judgement of each baseline, by its setting."""
        return {each.baseline: each for each in self.comparison.judgements}

    @cached_property
    def judgements(self) -> dict[Kind, Judgement]:
        """Judgement of the baseline that each kind of run is measured against."""
        names = by_kind(self.costs.assign(baseline=baseline_names(self.costs)))
        return {kind: self.judged[part["baseline"].iloc[0]] for kind, part in names.items()}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds of run, the baseline first."""
        return tuple(self.by_group)

    @property
    def baseline_kinds(self) -> tuple[Kind, ...]:
        """Kinds of run of the baseline."""
        return tuple(kind for kind in self.by_group if kind.method == self.setup.baseline)

    def kinds_of(self, column: str) -> tuple[Kind, ...]:
        """Kinds of run that have a column: of costs those that can lose, of others all."""
        if column == "model_cost":
            return self.baseline_kinds
        own = (*COSTS, *TOTAL_COSTS, EPSILON_OF_GROUP)
        return self.private_kinds if column in own else self.kinds

    @property
    def private_kinds(self) -> tuple[Kind, ...]:
        """Kinds of run other than the baseline."""
        return tuple(kind for kind in self.by_group if kind.method != self.setup.baseline)

    def sizes(self) -> dict[str, int]:
        """Training examples of each group, and of all."""
        data = self.setup.data
        return {**dict(zip(data.group_names, data.train_group_sizes, strict=True)), ALL: data.num_train}

    def interval(self, kind: Kind, group: str, metric: str) -> Interval:
        """Interval over seeds, one of `equidp.evaluation.costs.ranges`."""
        return interval_of(self.by_group[kind].loc[group], metric)

    def _overview(self, kind: Kind, gap: pd.Series) -> Overview:
        part = self.by_group[kind]
        overall, costs = part.loc[ALL], part["privacy_cost_mean"].drop(ALL)
        row = Overview(
            kind, overall["epsilon"], overall[f"{self.metric.name}_mean"], informative=gap["informative"]
        )
        if kind.method == self.setup.baseline:
            return row
        return row._replace(
            cost=overall["privacy_cost_mean"],
            worst_group="" if costs.isna().all() else str(costs.idxmax()),
            worst_cost=costs.max(),
            gap=interval_of(gap, "gap"),
            verdict=gap["verdict"],
        )


@lru_cache(maxsize=1)
def summarise(comparison: Comparison) -> Summary:
    """Return the summary of a comparison; cached for the last comparison."""
    return Summary(comparison)


def by_kind(rows: pd.DataFrame) -> dict[Kind, pd.DataFrame]:
    """Return the rows of each kind of run, in the order of their first rows."""
    if rows.empty:
        return {}
    return {Kind(*key): part for key, part in rows.groupby(["method", "setting"], sort=False)}


def _index_by_group(rows: pd.DataFrame) -> dict[Kind, pd.DataFrame]:
    return {kind: part.set_index("group") for kind, part in by_kind(rows).items()}
