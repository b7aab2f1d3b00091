"""What a trained model does to each group of a test set: computed once, then shown on terminals and cards."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from equidp.data.dataset import GroupedDataset
from equidp.evaluation.blind_spots import (
    blind_spots,
    calibration_table,
    of_few_people,
    reliability_table,
)
from equidp.evaluation.groups import (
    PeopleCounts,
    answer_rates,
    check_outputs,
    group_figures,
    group_intervals,
    paired_costs,
    people_counts,
    recalls,
)
from equidp.evaluation.intervals import check_level
from equidp.evaluation.metric import Metric
from equidp.evaluation.metrics import METRICS, metric_for, tells_something
from equidp.evaluation.predict import predict
from equidp.evaluation.predictions import Cut, Predictions
from equidp.kernel.processes import ALONE, Processes


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Figures of a model on a test set, with intervals over its examples; tables end with group "all".

    Attributes:
        groups: accuracy and loss by group, or of predicted numbers rmse, mae and r2 (`group_intervals`).
        recalls: recall by group and class; empty where accuracy says it already (`recalls`).
        rates: how often each group is answered with class 1 (`answer_rates`); empty unless there are two
            classes.
        costs: what privacy cost each group (`paired_costs`); None without a reference.
        blind_spots: sentences on what the metric hides.
        level: of the intervals.
        figures: each metric by group: group, count, metric, value, low, high, and why it is not defined.
        calibration: mean predicted risk beside what happened, by group (`calibration_table`).
        reliability: the same by predicted risk (`reliability_table`).
        metric: the one that costs and `useful` are about.
        useful: whether the model is better than one constant answer by that metric (`tells_something`).
        positive: the name of the positive class; "" unless there are two classes.
        threshold: predicted risk from which on it is answered; None: the most probable class is.
        people: how many people the examples are of (`people_counts`); None: each is of another.
    """

    groups: pd.DataFrame
    recalls: pd.DataFrame
    rates: pd.DataFrame
    costs: pd.DataFrame | None
    blind_spots: tuple[str, ...]
    level: float
    figures: pd.DataFrame = field(default_factory=pd.DataFrame)
    calibration: pd.DataFrame = field(default_factory=pd.DataFrame)
    reliability: pd.DataFrame = field(default_factory=pd.DataFrame)
    metric: Metric = METRICS["accuracy"]
    useful: bool = True
    positive: str = ""
    threshold: float | None = None
    people: PeopleCounts | None = None

    @property
    def gaps(self) -> dict[str, float]:
        """Demographic parity and equalised odds differences between groups.

        Empty unless there are two classes, and where each group has examples of one class only.
        """
        rates = self.rates
        if rates.empty or not ((rates["positives"] > 0) & (rates["positives"] < rates["count"])).any():
            return {}
        differences = {
            name: float(rates[name].max() - rates[name].min())
            for name in ("selection_rate", "true_positive_rate", "false_positive_rate")
        }
        return {
            "demographic_parity_difference": differences.pop("selection_rate"),
            "equalized_odds_difference": max(differences.values()),
        }

    def withholding(self, fewest: int) -> Evaluation:
        """Returns the same evaluation without figures of fewer than `fewest` people, to be given away.

        A test example is a person, unless `people` says whose it is. Groups keep their row and count with NaN
        for figures. Rows of other tables are left out, and so is what counts a class of few people: it would
        tell their class.
        """
        few = of_few_people(self.calibration, self.people, fewest)
        of_classes = ~self.figures["metric"].isin(("accuracy", "log_loss", "brier"))
        hidden = (self._people_of(self.figures) < fewest) | (self.figures["group"].isin(few) & of_classes)
        return replace(
            self,
            groups=self._withheld(self.groups, fewest),
            recalls=self._of_enough(self.recalls, fewest),
            rates=self._of_enough(self.rates, fewest),
            costs=None if self.costs is None else self._withheld(self.costs, fewest),
            figures=self.figures[~hidden].assign(reason=""),
            calibration=self.calibration
            if self.calibration.empty
            else self.calibration.query("group not in @few"),
            reliability=pd.DataFrame(),
        )

    def _people_of(self, table: pd.DataFrame) -> pd.Series:
        """How many people each row of a table is about."""
        if self.people is None:
            return table["count"]
        names = [name for name in ("group", "class") if name in table]
        rows = table[names].itertuples(index=False, name=None)
        return pd.Series([self.people[row] for row in rows], table.index, dtype=np.int64)

    def _of_enough(self, table: pd.DataFrame, fewest: int) -> pd.DataFrame:
        return table if table.empty else table[self._people_of(table) >= fewest]

    def _withheld(self, table: pd.DataFrame, fewest: int) -> pd.DataFrame:
        figures = [name for name in table.columns if name not in ("group", "count")]
        shown = table.copy()
        shown.loc[self._people_of(shown) < fewest, figures] = np.nan
        return shown

    def plain(self) -> dict[str, Any]:
        """Returns plain values for JSON: the tables by name, the gaps, and how they were measured."""
        tables = {
            "metrics": self.groups,
            "figures": self.figures,
            "recalls": self.recalls,
            "calibration": self.calibration,
            "reliability": self.reliability,
        }
        if self.costs is not None:
            tables["costs"] = self.costs
        records = {name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}
        measured = {"metric": self.metric.name, "better_than_a_constant_answer": self.useful}
        cut = {"positive": self.positive, "threshold": self.threshold}
        return {**records, "gaps": self.gaps, **measured, **cut, "notes": list(self.blind_spots)}


def evaluate(
    model: nn.Module,
    test: GroupedDataset,
    *,
    level: float = 0.95,
    reference: nn.Module | None = None,
    metric: str | Metric | None = None,
    cut: Cut = Cut(),
    processes: Processes = ALONE,
) -> Evaluation:
    """Evaluates a trained model, which gives one logit per class, or a number.

    Args:
        model: the trained model.
        test: examples that it was not trained on.
        level: of the intervals.
        reference: a model trained without privacy on the same data, to show what privacy cost.
        metric: what cost and the comparison with a constant answer are about (`metric_named`); None:
            accuracy, and of predicted numbers rmse.
        cut: of two classes, which is the positive one, and from which risk on it is answered.
        processes: that predict a part each; all of them call this.

    Raises:
        DataError: outputs of another shape.
        SettingError: a level outside (0, 1), or a metric or positive class that the task has not.

    >>> import torch
    >>> inputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 2.0]])
    >>> targets, groups = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 1, 1])
    >>> test = GroupedDataset(inputs, targets, groups, group_names=("a", "b"), class_names=("no", "yes"))
    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.load_state_dict({"weight": torch.eye(2)})
    >>> found = evaluate(model, test)
    >>> found.groups[["group", "accuracy"]].to_dict("list")
    {'group': ['a', 'b', 'all'], 'accuracy': [1.0, 0.0, 0.5]}
    >>> found.gaps
    {'demographic_parity_difference': 0.0, 'equalized_odds_difference': 1.0}
    """
    check_level(level)
    test.check_single_rows("a test")
    metric = metric_for(metric, test.class_names)
    cut.index(test.class_names)
    test = test.to("cpu")
    outputs = predict(model, test.inputs, processes)
    check_outputs(outputs, test)
    other = None if reference is None else predict(reference, test.inputs, processes)
    found = Predictions.of(outputs, test.targets, test.class_names, cut)
    shown = [each for each in METRICS.values() if found.task in each.tasks]
    grouped = test.groups.numpy(), test.group_names
    calibration, people = calibration_table(found, *grouped, level), people_counts(test)
    return Evaluation(
        groups=group_intervals(outputs, test, level, cut),
        recalls=recalls(outputs, test, level, other, cut),
        rates=answer_rates(outputs, test, cut),
        costs=None if other is None else paired_costs(outputs, other, test, level, metric, cut),
        blind_spots=blind_spots(found, metric, level, calibration, people),
        level=level,
        figures=group_figures(found, *grouped, list(dict.fromkeys([*shown, metric])), level),
        calibration=calibration,
        reliability=reliability_table(found, *grouped, level),
        metric=metric,
        useful=len(found) > 0 and tells_something(metric, found, level),
        positive=found.positive_name,
        threshold=cut.threshold,
        people=people,
    )
