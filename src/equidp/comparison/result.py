"""Comparison: one table of cells, and what follows from it: costs, gaps, verdicts, a recommendation."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from equidp._extras import require_extra
from equidp._files import write_whole
from equidp.advice.chosen_plan import SettingRow
from equidp.comparison.recommend import Recommendation, recommend_methods
from equidp.comparison.tune import Tuning
from equidp.diagnostics import Diagnosis, Diagnostics
from equidp.evaluation.baselines import Judgement, baseline_names, judge_baselines
from equidp.evaluation.costs import COSTS, NO_VERDICT, TOTAL_COSTS, equal_cost, privacy_costs
from equidp.evaluation.differences import paired_differences
from equidp.evaluation.intervals import LEVEL
from equidp.evaluation.metrics import METRICS, Metric
from equidp.policies.table import BASELINE
from equidp.training.resolved import ResolvedPlan

with require_extra("tables"):
    import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Setup:
    """Setup of a comparison: data, training, methods, seeds and metric.

    Attributes:
        data: name of the source.
        group_names, class_names: group names and class names of the data.
        num_train_by_seed: training examples of each seed's split.
        train_group_sizes, test_group_sizes: examples of each group in the split of the first seed.
        most_frequent_class: class of most test examples, and its share of them.
        notes: sentences on how the data was prepared, above all what epsilon does not cover.
        plan: plan of the reference, worked out for the split of the first seed.
        settings: requested settings of the runs, with their origins.
        methods: their names, the reference first.
        seeds: one run of each method and setting per seed.
        versions: versions of the packages that the results depend on.
        gap_tolerance: largest gap in privacy cost that counts as equal.
        command: command that made the comparison, or "" without a command.
        swept: settings of which several values were compared -> those values; columns of the results.
        positive: name of the positive class, or "" unless there are two.
        against: method that others are compared with seed by seed, or "" for none.
        auto_takes: method that "auto" was compared as. "": it was not, or has its own row.
    """

    data: str
    group_names: tuple[str, ...]
    class_names: tuple[str, ...]
    num_train_by_seed: tuple[int, ...]
    train_group_sizes: tuple[int, ...]
    test_group_sizes: tuple[int, ...]
    most_frequent_class: tuple[str, float]
    plan: ResolvedPlan
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()
    settings: tuple[SettingRow, ...] = ()
    gap_tolerance: float = 0.05
    command: str = ""
    swept: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    positive: str = ""
    against: str = ""
    auto_takes: str = ""

    @property
    def num_train(self) -> int:
        """Training examples of the first seed's split."""
        return self.num_train_by_seed[0]

    @property
    def steps_differ(self) -> bool:
        """True if runs of one seed differ in their number of steps or their sampling rate."""
        return any(each.name in ("batch_size", "epochs", "steps") and each.methods for each in self.settings)

    def to_dict(self) -> dict[str, Any]:
        """All facts as one flat dictionary of plain values."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plan = plain.pop("plan").settings
        rows = [each._asdict() for each in self.settings]
        return {
            **{name: plan[name] for name in ("model", "delta", "steps", "sample_rate")},
            **plain,
            "settings": rows,
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """Results of `equidp.compare`.

    Attributes:
        setup: what was compared and how.
        results: one row per run and group (and "all"), with method, setting, seed, group, count, loss,
            epsilon, each swept setting (NaN for a method without it), each metric of the task, mean_predicted
            and observed (for two classes), informative and baseline. informative says whether the run is
            better than one constant prediction by the metric of the comparison. baseline is the setting of
            the run's reference, plain SGD.
        references: rows as in `results` for every non-private model that was tried, with chosen (whether it
            is the reference of its kind) and best (whether it is the best of all). Empty if only plain SGD by
            the plan was tried.
        tables: tables that callbacks of the runs recorded, by name, with method, setting and seed. Tables
            whose names begin with "sensitive" are computed from raw training data and must not be shared.
        metric: metric of costs, gaps and verdicts.
        seconds: training time of all runs, including stored runs.
        tuning: how the settings of each method were chosen. None: all methods trained by the plan.

    Example:
        >>> import equidp
        >>> plan = equidp.Plan(batch_size=128, epochs=1)
        >>> place = getfixture("tmp_path")
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> comparison.setup.methods
        ('sgd', 'dpsgd')
        >>> len(comparison.costs()) == 2 * (10 + 1)  # runs, groups and "all"
        True
        >>> comparison.recommendation()[0].chosen is None  # one seed supports no recommendation
        True
        >>> comparison.write_report(place / "report.html")
        >>> comparison.to_markdown("costs").splitlines()[0]
        '| group | in training | dpsgd |'
        >>> comparison.plot("costs").axes[0].get_xlabel()
        'privacy cost, points of accuracy'
    """

    setup: Setup
    results: pd.DataFrame
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    references: pd.DataFrame = field(default_factory=pd.DataFrame)
    metric: Metric = METRICS["accuracy"]
    seconds: float = 0.0
    tuning: Tuning | None = None

    @cached_property
    def _costs(self) -> pd.DataFrame:
        best = None if self.references.empty else self.references[self.references["best"]]
        return privacy_costs(self.results, BASELINE, self.metric, best)

    def costs(self) -> pd.DataFrame:
        """`results` with costs in the metric, by run and group.

        privacy_cost and excessive_risk are relative to the run's reference, plain SGD with the same seed,
        model and inputs. model_cost is what this reference loses against the best non-private model, and
        total_cost is the sum of privacy_cost and model_cost. Both are missing if no other models were tried.
        """
        return self._costs.copy()

    @cached_property
    def judgements(self) -> dict[str, Judgement]:
        """Judgement of each reference, by its setting: whether costs against it are meaningful."""
        return judge_baselines(self._costs, self.setup.gap_tolerance, BASELINE)

    def verdicts(self) -> pd.DataFrame:
        """Largest gap in cost of each kind of run, with interval, and whether costs count as equal.

        See `equidp.evaluation.costs.equal_cost`. Gaps against a reference that is not meaningful are NaN.
        """
        table = equal_cost(self._costs, self.setup.gap_tolerance, LEVEL, self.metric, BASELINE)
        gaps = ["gap_mean", "gap_low", "gap_high"]
        table.loc[table["verdict"] == NO_VERDICT, gaps] = np.nan
        return table

    @cached_property
    def served_costs(self) -> pd.DataFrame:
        """`costs`, with NaN for costs against a reference that is not meaningful."""
        costs = self._costs.copy()
        serves = baseline_names(costs).map(lambda name: self.judgements[name].serves)
        columns = [name for name in (*COSTS, *TOTAL_COSTS) if name in costs]
        costs.loc[~serves, columns] = np.nan
        return costs

    def differences(self) -> pd.DataFrame:
        """Differences of each private method from `Setup.against`, with intervals and corrected p values.

        See `equidp.evaluation.differences.paired_differences`. Empty if no such method was named.
        """
        swept = tuple(self.setup.swept)
        return paired_differences(
            self._costs, self.setup.against, swept=swept, baseline=BASELINE, metric=self.metric, level=LEVEL
        )

    @cached_property
    def _recommendations(self) -> tuple[Recommendation, ...]:
        return recommend_methods(self._costs, self.metric, self.setup.gap_tolerance)

    def recommendation(self) -> tuple[Recommendation, ...]:
        """Recommended method at each target epsilon, how certain it is, and how the others compare."""
        return self._recommendations

    @property
    def epochs(self) -> pd.DataFrame:
        """Metrics of the test set by run, epoch and group: see `equidp.training.record.EpochRecorder`."""
        return self.tables.get("epochs", pd.DataFrame())

    @property
    def sensitive_diagnosis(self) -> Diagnosis | None:
        """Diagnosis of the private runs, from callbacks=[Diagnostics()], or None without it.

        It is computed from raw training data and must not be shared.
        """
        table = self.tables.get(Diagnostics.name)
        return None if table is None or table.empty else Diagnosis.of_table(table)

    def findings(self) -> list[str]:
        """Return findings and the recommended method in sentences, by rules from the table of results."""
        found: list[str] = _pages().findings(self)
        return found

    def table(self, name: str = "methods") -> pd.DataFrame:
        """Return means over seeds with intervals, as text for a paper. `table_names` has the names."""
        table = _pages().table(self, name)
        return pd.DataFrame(table.texts("[{}, {}]"), columns=[column.heading for column in table.columns])

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of the tables that the comparison has."""
        names: tuple[str, ...] = _pages().table_names(self)
        return names

    def to_markdown(self, name: str = "methods") -> str:
        """Return a table, as from `table`, in Markdown."""
        text: str = _pages().table(self, name).to_markdown()
        return text

    def write_report(self, path: str | os.PathLike[str]) -> None:
        """Write the report atomically as one self-contained HTML file.

        Raises:
            SettingError: the path cannot be written.
        """
        _pages().write_report(self, path)

    def plot(self, name: str = "costs", *, width: float = 5.2) -> Figure:
        """Draw a plot of the report as a matplotlib figure.

        Args:
            name: "costs", "accuracy", or "trade_off" (with several epsilons).
            width: width of the figure in inches; 3.4 fits a column of a paper.

        Raises:
            SettingError: the name is unknown, the width is not a positive number, or there is nothing to
                show.
        """
        figure: Figure = import_module("equidp.report.figures").plot(self, name, width=width)
        return figure

    def print(self) -> None:
        """Print findings, one row per method, and the recommended method."""
        _pages().print_comparison(self)

    def _repr_html_(self) -> str:
        return str(_pages().table(self, "methods").to_html())

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write setup, costs, references, differences, tuning, recommendations and findings as JSON.

        An infinite epsilon becomes null."""

        def records(table: pd.DataFrame) -> Any:
            return json.loads(table.to_json(orient="records"))

        tuning = self.tuning
        content = {
            "settings": {**self.setup.to_dict(), "metric": self.metric.name},
            "results": records(self._costs),
            "differences": records(self.differences()) if self.setup.against else [],
            "references": records(self.references),
            "judgements": [asdict(each) for each in self.judgements.values()],
            "tuning": None if tuning is None else {
                "draws": tuning.draws,
                "seeds": tuning.seeds,
                "trials": records(tuning.trials),
                "ranges": tuning.ranges,
            },
            "recommendation": [each.to_dict() for each in self.recommendation()],
            "findings": self.findings(),
        }  # fmt: skip
        write_whole(path, (json.dumps(content, indent=2, default=str) + "\n").encode())


def _pages() -> Any:
    """The module of sentences, tables and pages, which imports this one."""
    return import_module("equidp.report.comparison")
