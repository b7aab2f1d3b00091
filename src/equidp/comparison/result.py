"""Result of a comparison: what was compared, the results of every run, and tables of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import Any

from equidp._extras import require_extra
from equidp._files import write_whole
from equidp._validate import unknown_name
from equidp.advice.chosen_plan import SettingRow
from equidp.comparison.recommend import Recommendation, recommendations
from equidp.comparison.sweep import Kind
from equidp.comparison.tune import Tuning
from equidp.data.dataset import ALL
from equidp.diagnostics import Diagnosis
from equidp.display import Cell, Column, Interval, Table, measured_number, points
from equidp.errors import SettingError
from equidp.evaluation.baselines import Judgement, judge_baselines
from equidp.evaluation.costs import equal_cost, privacy_costs, summary
from equidp.evaluation.differences import GAP, OVERALL, WORST_GROUP, paired_differences
from equidp.evaluation.intervals import mean_interval
from equidp.evaluation.metrics import METRICS, Metric
from equidp.training.resolved import ResolvedPlan

with require_extra("tables"):
    import pandas as pd

TABLES = {
    "methods": "What privacy costs by method",
    "overall_costs": "Model cost and privacy cost over all test examples",
    "costs": "Privacy cost by group",
    "model_costs": "Model cost by group",
    "total_costs": "Model cost and privacy cost together by group",
    "metric": "The metric by group",
    "differences": "Differences from another method by seed, p corrected for all tests of the table",
    "baselines": "Models tried without privacy",
}
"""Name of a table -> its caption."""
_OF_BASELINES = ("overall_costs", "model_costs", "total_costs", "baselines")
"""Tables that need the models without privacy that were tried."""
_BY_GROUP = {
    "costs": "privacy_cost",
    "model_costs": "model_cost",
    "total_costs": "total_cost",
}
"""Name of a table of costs by group -> its column of the costs."""
_OF_BASELINE = (
    "method",
    "policy",
    "noise_multiplier",
)  # of what a plan holds


@dataclass(frozen=True)
class DataFacts:
    """Facts of the data that a comparison trained and tested on, as split for its first seed.

    Attributes:
        name: of the source.
        num_train: number of training examples.
        group_names: one per group.
        class_names: one per class.
        train_group_sizes: training examples of each group.
        test_group_sizes: test examples of each group.
        most_frequent_class: the class of most test examples, and its share of them.
        notes: sentences on how the data was prepared, above all what epsilon does not cover.
        highlighted_groups: groups that the data's paper compares, which plots show in colour.
    """

    name: str
    num_train: int
    group_names: tuple[str, ...]
    class_names: tuple[str, ...]
    train_group_sizes: tuple[int, ...]
    test_group_sizes: tuple[int, ...]
    most_frequent_class: tuple[str, float]
    notes: tuple[str, ...] = ()
    highlighted_groups: tuple[str, ...] | None = None


@dataclass(frozen=True)
class TrainingFacts:
    """Training of a comparison: what its runs share, and what differs by method.

    Attributes:
        plan: worked out for the baseline and the split of the first seed, without what differs by method;
            unless `Setup.steps_differ`, steps and sample rate are those of every run on that split.
        noise_multipliers: of each private run of the first seed, by method and setting.
        method_settings: method -> its settings, by name.
        by_method: method -> fields of the plan and settings that were given for this method alone.
        auto_takes: method that "auto" was compared as; "": it was not, or has a row of its own.
        rows: every setting of the runs, with its value and its origin.
    """

    plan: ResolvedPlan
    noise_multipliers: Mapping[str, float]
    method_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    auto_takes: str = ""
    rows: Sequence[SettingRow] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Plain values by name: every option of the plan, and then what differs by method."""
        shared = {name: value for name, value in self.plan.settings.items() if name not in _OF_BASELINE}
        of_methods = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        return {**shared, **of_methods, "rows": [row._asdict() for row in self.rows]}


@dataclass(frozen=True)
class Setup:
    """Setup of a comparison: data, training, methods, seeds and metric.

    Attributes:
        data: what the runs trained and tested on.
        training: how they trained.
        methods: their names, the baseline first.
        seeds: one run of each method and setting per seed.
        num_train_by_seed: training examples of each seed's split.
        versions: of the packages that the results depend on.
        baseline: the method without privacy, against which costs are measured.
        gap_tolerance: largest gap in privacy cost that counts as equal.
        level: of the confidence intervals.
        command: the command that made the comparison; "" without a command.
        swept: settings of which several values were compared -> those values; columns of the results.
        metric: name of the metric of cost and gap.
        positive: name of the positive class; "" unless there are two.
        threshold: predicted risk from which on the positive class is predicted; None: the most probable
            class is predicted, or each run has its own threshold.
        base_rate_threshold: True where the threshold of each run is the base rate that it counted:
            `threshold` in the results.
        against: the method that others are compared with seed by seed; "" for none.
        search: "best" where baselines are the best of several candidates, "plan" where the only baseline is
            plain SGD by the comparison's plan.
        other_classes: label of each kind of private run whose model or inputs are not those of the baseline
            by the plan -> name of its class.
    """

    data: DataFacts
    training: TrainingFacts
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    num_train_by_seed: tuple[int, ...]
    versions: Mapping[str, str]
    baseline: str = "sgd"
    gap_tolerance: float = 0.05
    level: float = 0.95
    command: str = ""
    swept: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    metric: str = "accuracy"
    positive: str = ""
    threshold: float | None = None
    base_rate_threshold: bool = False
    against: str = ""
    search: str = "plan"
    other_classes: Mapping[str, str] = field(default_factory=dict)

    @property
    def steps_differ(self) -> bool:
        """True where runs of one seed differ in their number of steps or their sample rate."""
        changed = {*self.swept}.union(*self.training.by_method.values())
        return not changed.isdisjoint({"batch_size", "epochs"})

    def to_dict(self) -> dict[str, Any]:
        """All facts as one flat dictionary of plain values; the data's name is called "data"."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        data, training = asdict(facts.pop("data")), facts.pop("training")
        return {"data": data.pop("name"), **data, **training.settings, **facts}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Results of the runs of a comparison; from `equidp.compare`.

    Attributes:
        setup: what was compared and how.
        results: one row per run and group (and "all"): method, setting, seed, group, count, loss, epsilon,
            each swept setting (NaN for a method without it), each metric of the task, mean_predicted and
            observed (of two classes), informative: whether the run is better than one constant prediction by
            the
            metric of the comparison, and baseline: the setting of the baseline method's runs that the run is
            measured against.
        baselines: rows as in `results` of every model without privacy that was tried, most on the first seed
            alone, with chosen: whether it is the baseline of its class, and best: whether it is the best
            model; empty where none were.
        epochs: one row per run, epoch and group: see `equidp.training.record.EpochRecorder`.
        individual: one row per private run and group, if requested: the privacy of its examples. Columns that
            start with "sensitive" follow from raw training data and must not be shared.
        sensitive_diagnosis: where the disparity of the private runs comes from, if requested. It is
            computed from raw training data and must not be shared.
        metric: the metric of costs, gaps and verdicts.
        seconds: sum over all runs; stored runs count with the seconds of their training.
        tuning: how the settings of each method were chosen; None where all trained by the plan.
        tables: what the callbacks of the runs recorded, by name; those called "sensitive_..." must not be
            shared.

    Example:
        >>> import equidp
        >>> plan = equidp.Plan(batch_size=128, epochs=1)
        >>> place = getfixture("tmp_path")
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> comparison.setup.methods
        ('sgd', 'dpsgd')
        >>> list(comparison.table("costs"))
        ['group', 'dpsgd']
        >>> len(comparison.costs()) == 2 * (10 + 1)  # runs, groups and "all"
        True
        >>> comparison.recommendation()[0].chosen is None  # one seed supports no recommendation
        True
    """

    setup: Setup
    results: pd.DataFrame
    epochs: pd.DataFrame
    baselines: pd.DataFrame = field(default_factory=pd.DataFrame)
    individual: pd.DataFrame = field(default_factory=pd.DataFrame)
    sensitive_diagnosis: Diagnosis | None = None
    metric: Metric = METRICS["accuracy"]
    seconds: float = 0.0
    tuning: Tuning | None = None
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    @cached_property
    def _costs(self) -> pd.DataFrame:
        best = None if self.baselines.empty else self.baselines[self.baselines["best"]]
        return privacy_costs(self.results, self.setup.baseline, self.metric, best)

    def costs(self) -> pd.DataFrame:
        """`results` with what was lost in the metric, by run and group.

        privacy_cost and excessive_risk are against the run's baseline: plain SGD's run of the same seed
        and of the same class of models. model_cost is what this baseline lost against the best model without
        privacy, and total_cost the sum of both; where no other models were tried, there are neither.
        """
        return self._costs.copy()

    @cached_property
    def judgements(self) -> tuple[Judgement, ...]:
        """Judgement of each baseline."""
        return tuple(judge_baselines(self._costs, self.setup.gap_tolerance, self.setup.baseline).values())

    @cached_property
    def _recommendations(self) -> tuple[Recommendation, ...]:
        setup = self.setup
        return recommendations(
            self._costs,
            self.metric,
            baseline=setup.baseline,
            gap_tolerance=setup.gap_tolerance,
            level=setup.level,
        )

    @cached_property
    def _differences(self) -> pd.DataFrame:
        setup = self.setup
        return paired_differences(
            self._costs,
            setup.against,
            swept=tuple(setup.swept),
            baseline=setup.baseline,
            metric=self.metric,
            level=setup.level,
        )

    def differences(self) -> pd.DataFrame:
        """Differences of each private method from `Setup.against`, with intervals and corrected p values.

        See `equidp.evaluation.differences.paired_differences`; empty where no such method was named.
        """
        return self._differences.copy()

    def recommendation(self) -> tuple[Recommendation, ...]:
        """Recommended method at each target epsilon, how sure it is, and how the others compare."""
        return self._recommendations

    def table(self, name: str = "methods") -> pd.DataFrame:
        """Means over seeds with intervals, as texts for a paper.

        Args:
            name: of `table_names`: "methods", "overall_costs" and "differences" have a row per method and
                setting, "costs", "model_costs", "total_costs" and "metric" a row per group, and "baselines" a
                row per model without privacy that was tried. Those about other models without privacy are
                there where some were tried, and "differences" where a method to compare with was named.

        Raises:
            SettingError: an unknown table.
        """
        if name not in self.table_names:
            raise unknown_name("table", name, self.table_names)
        if name in _MADE_BY:
            made = _MADE_BY[name](self)
            heads = [column.heading for column in made.columns]
            return pd.DataFrame(made.texts("[{}, {}]"), columns=heads)
        setup = self.setup
        return text_table(name, self._costs, setup.baseline, setup.gap_tolerance, setup.level, self.metric)

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of the tables that the comparison has."""
        needs = {"differences": bool(self.setup.against)}
        needs |= dict.fromkeys(_OF_BASELINES, not self.baselines.empty)
        return tuple(name for name in TABLES if needs.get(name, True))

    def to_markdown(self, name: str = "methods") -> str:
        """A table, as `table` has it, in Markdown."""
        return Table.from_frame(self.table(name)).to_markdown()

    def write_tables(self, path: str | os.PathLike[str]) -> None:
        """Write all tables in Markdown.

        Raises:
            SettingError: another ending than ".md".
        """
        check_ending(path)
        write_whole(
            path, "\n".join(f"{self._caption(name)}\n\n{self.to_markdown(name)}" for name in self.table_names)
        )

    def _caption(self, name: str) -> str:
        setup = self.setup
        seeds = f"{len(setup.seeds)} seed{'s' if len(setup.seeds) > 1 else ''}"
        intervals = f"; {setup.level:.0%} intervals over {seeds}" if len(setup.seeds) > 1 else f"; {seeds}"
        named = setup.against if name == "differences" else self.metric.heading
        about = f"{TABLES[name]} ({named})"
        return f"{about}: {setup.data.name}{intervals}, delta {setup.training.plan.delta:g}."

    def _repr_html_(self) -> str:
        table = Table.from_frame(self.table()).to_html()
        return f"{table}<p>{escape(self._caption('methods'))}</p>"

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write setup, costs, baselines, differences, tuning, recommendations and released privacy as JSON.

        An infinite epsilon becomes null.
        """
        released = self.individual[[name for name in self.individual if not name.startswith("sensitive")]]
        content = {
            "settings": self.setup.to_dict(),
            "results": json.loads(self._costs.to_json(orient="records")),
            "differences": json.loads(self._differences.to_json(orient="records")),
            "baselines": json.loads(self.baselines.to_json(orient="records")),
            "judgements": [each.to_dict() for each in self.judgements],
            "tuning": None if self.tuning is None else self.tuning.to_dict(),
            "recommendation": [each.to_dict() for each in self.recommendation()],
            "individual": json.loads(released.to_json(orient="records")),
        }
        write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def text_table(
    name: str, costs: pd.DataFrame, baseline: str, gap_tolerance: float, level: float, metric: Metric
) -> pd.DataFrame:
    """Table with a row per method and setting, or with a row per group and a column per method and setting.

    Args:
        name: of TABLES.
        costs: from `equidp.evaluation.costs.privacy_costs`.
        baseline: the method without privacy, which has no cost.
        gap_tolerance: largest gap that counts as equal.
        level: of the intervals.
        metric: the metric of costs and gaps.
    """
    rows = summary(costs, level, metric)
    rows.insert(0, "label", [Kind(*key).label for key in zip(rows["method"], rows["setting"], strict=True)])
    if name == "methods":
        return _methods(
            rows, equal_cost(costs, gap_tolerance, level, metric), baseline, gap_tolerance, metric
        )
    column = _BY_GROUP.get(name, metric.name)
    own = rows["method"] == baseline
    shown = {"costs": rows[~own], "total_costs": rows[~own], "model_costs": rows[own]}.get(name, rows)
    texts = shown.assign(text=[_interval(row, column, metric) for row in shown.to_dict("records")])
    table = texts.pivot(index="group", columns="label", values="text")
    groups, labels = (list(dict.fromkeys(shown[key])) for key in ("group", "label"))
    return table.loc[groups, labels].rename_axis(columns=None).reset_index()


def best_label(baselines: pd.DataFrame) -> str:
    """Name of the best model without privacy, such as "boosted trees"."""
    first = baselines[baselines["best"]].iloc[0]
    return str(first["method"]) if not first["chosen"] else Kind(first["method"], first["baseline"]).label


def overall_costs_table(comparison: Comparison) -> Table:
    """Table of the best model without privacy, the same model without privacy and the private one.

    A row per kind of private run, over all test examples, with model cost, privacy cost and their sum.
    """
    setup, metric, baselines = comparison.setup, comparison.metric, comparison.baselines
    rows = summary(comparison.costs(), setup.level, metric)
    rows = rows[rows["group"] == ALL]
    kinds = comparison.results.groupby(["method", "setting"], sort=False)["baseline"].first()
    means = rows.set_index(["method", "setting"])
    of_best = baselines[baselines["best"] & (baselines["group"] == ALL)]
    best = Interval(*mean_interval(of_best[metric.name].dropna(), setup.level, metric.range))
    show = partial(_text, metric=metric)
    columns = [
        Column("method", "label"),
        Column("best without privacy", show=show),
        Column("same model without privacy", show=show),
        Column("private", show=show),
        *(Column(f"{name} cost", show=show) for name in ("model", "privacy", "total")),
    ]
    table: list[list[Cell]] = []
    for kind, baseline in kinds.items():
        if kind[0] == setup.baseline:
            continue
        same, own = means.loc[(setup.baseline, baseline)], means.loc[kind]
        table.append(
            [
                Kind(*kind).label,
                best,
                interval_of(same, metric.name),
                interval_of(own, metric.name),
                *(interval_of(own, name) for name in ("model_cost", "privacy_cost", "total_cost")),
            ]
        )
    title = f"{TABLES['overall_costs']}, {metric.heading}; best: {best_label(baselines)}"
    return Table(columns, table, title)


def baselines_table(comparison: Comparison) -> Table:
    """Table of the models without privacy that were tried, and what each serves as."""
    setup, metric, baselines = comparison.setup, comparison.metric, comparison.baselines
    overall, rows = baselines[baselines["group"] == ALL], list[Sequence[Cell]]()
    for (method, baseline, setting), part in overall.groupby(["method", "baseline", "setting"], sort=False):
        finite = part[metric.name].notna() & ~part["loss"].isin([math.inf, math.nan])
        roles = [name for name, column in (("baseline", "chosen"), ("best", "best")) if part[column].all()]
        lost = int((~finite).sum())
        measured = (
            Interval(*mean_interval(part.loc[finite, name], setup.level, within))
            for name, within in ((metric.name, metric.range), ("loss", (0.0, math.inf)))
        )
        state = [*roles, *([f"diverged in {lost} of {len(part)} seeds"] if lost else [])]
        label = Kind(method, ", ".join(filter(None, (baseline, setting)))).label
        rows.append([label, len(part), *measured, ", ".join(state)])
    columns = [
        Column("model", "name"),
        Column("seeds"),
        Column(metric.heading, show=partial(_text, metric=metric)),
        Column("loss", show=measured_number),
        Column("serves as", "text"),
    ]
    return Table(columns, rows, TABLES["baselines"])


def interval_of(row: pd.Series, name: str) -> Interval:
    """Return the mean and the ends of a column, of a row of `equidp.evaluation.costs.summary`."""
    return Interval(*(row[f"{name}_{end}"] for end in ("mean", "low", "high")))


def differences_table(comparison: Comparison) -> Table:
    """Table of the differences from `Setup.against`: a row for each kind of run and quantity."""
    setup, metric = comparison.setup, comparison.metric
    said = {OVERALL: f"{metric.label}, all", WORST_GROUP: f"{metric.label}, worst group", GAP: "largest gap"}
    rows = []
    for row in comparison.differences().to_dict("records"):
        name, other = Kind(row["method"], row["setting"]).label, row["against_setting"]
        if other not in ("", row["setting"]):
            name = f"{name} - {Kind(setup.against, other).label}"
        ends = Interval(row["mean"], row["low"], row["high"])
        rows.append([name, said[row["quantity"]], ends, row["corrected_p"]])
    in_points = ", points" if metric.percent else ""
    columns = [
        Column("method", "name"),
        Column("of", "name"),
        Column(f"difference{in_points}", show=partial(_text, metric=metric)),
        Column("p", show=_p_text),
    ]
    return Table(columns, rows, f"Differences from {setup.against}")


def _p_text(p: float) -> str:
    """Text of a p value."""
    if math.isnan(p):
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


_MADE_BY = {
    "overall_costs": overall_costs_table,
    "baselines": baselines_table,
    "differences": differences_table,
}
"""Name of a table that is made by a function of its own -> that function."""


def check_ending(path: str | os.PathLike[str]) -> None:
    """Raise a SettingError unless a path ends in ".md"."""
    if (ending := Path(path).suffix.lower()) != ".md":
        raise SettingError(
            f"{os.fspath(path)!r} ends in {ending!r}; tables are written in Markdown, to .md.", field="path"
        )


def _methods(
    rows: pd.DataFrame, gaps: pd.DataFrame, baseline: str, gap_tolerance: float, metric: Metric
) -> pd.DataFrame:
    verdicts, in_points = gaps.set_index(["method", "setting"]), ", points" if metric.percent else ""
    table = []
    for (method, setting), part in rows.groupby(["method", "setting"], sort=False):
        part = part.set_index("group")
        overall = part.loc[ALL]
        row = {
            "method": Kind(method, setting).label,
            "epsilon": "∞" if math.isinf(overall["epsilon"]) else f"{overall['epsilon']:.3g}",
            metric.heading: _interval(overall, metric.name, metric),
        }
        if method != baseline:
            by_group = part["privacy_cost_mean"].drop(ALL)
            gap = verdicts.loc[(method, setting)]
            row |= {
                f"privacy cost{in_points}": _interval(overall, "privacy_cost", metric),
                "largest loss": f"{by_group.idxmax()}: {_text(by_group.max(), metric)}",
                f"largest gap{in_points}": _interval(gap, "gap", metric),
                f"gap at most {_text(gap_tolerance, metric)}": gap["verdict"],
            }
        table.append(row)
    return pd.DataFrame(table).fillna("")


def _interval(row: Mapping[str, float] | pd.Series, name: str, metric: Metric) -> str:
    mean, low, high = (_text(row[f"{name}_{end}"], metric) for end in ("mean", "low", "high"))
    return mean if low == "–" else f"{mean} [{low}, {high}]"


def _text(value: float, metric: Metric) -> str:
    return points(value) if metric.percent or math.isnan(value) else measured_number(value)
