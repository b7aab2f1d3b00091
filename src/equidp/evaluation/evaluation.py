"""Evaluation of a trained model on each group of a test set: computed once, shown on terminals and cards."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from equidp._extras import require_extra
from equidp._provenance import values_digest
from equidp.data.dataset import ALL, GroupedDataset
from equidp.data.shared_rows import RowDigests
from equidp.evaluation.blind_spots import (
    BlindSpots,
    RiskOff,
    calibration_table,
    reliability_table,
    risks_off,
)
from equidp.evaluation.groups import (
    check_outputs,
    group_intervals,
    group_values,
    paired_costs,
    recalls,
    selection_rates,
)
from equidp.evaluation.intervals import check_level
from equidp.evaluation.metrics import METRICS, Metric, metric_for
from equidp.evaluation.predictions import Decision, Predictions, predict
from equidp.evaluation.small_cells import SmallCells, count_people, people_of
from equidp.kernel.processes import ALONE, Processes

with require_extra("tables"):
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of a model on a test set, with intervals over its examples; tables end with group "all".

    Attributes:
        groups: accuracy and loss by group (`group_intervals`).
        recalls: recall by group and class; empty where accuracy says it already (`recalls`).
        rates: how often each group is predicted class 1 (`selection_rates`); empty unless there are two
            classes.
        costs: what privacy cost each group (`paired_costs`); None without a baseline.
        blind_spots: findings on what the metric hides; None without examples.
        level: of the intervals.
        values: each metric by group: group, count, metric, value, low, high, and why it is not defined.
        calibration: mean predicted risk beside what happened, by group (`calibration_table`).
        reliability: the same by predicted risk (`reliability_table`), without groups of few people.
        risks_off: where mean predicted risks are off (`risks_off`), without groups of few people.
        metric: the metric of costs and blind spots.
        positive: the name of the positive class; "" unless there are two classes.
        threshold: predicted risk from which on it is predicted; None: the most probable class is.
        people: how many people the examples are of; None: each is of another.
        small: groups and classes of few people.
        rest: the same without their examples; None: there are none.
        weights, rows: digests of the model's values and of the test rows, by which a card knows them.
    """

    groups: pd.DataFrame
    recalls: pd.DataFrame
    rates: pd.DataFrame
    costs: pd.DataFrame | None
    blind_spots: BlindSpots | None
    level: float
    values: pd.DataFrame = field(default_factory=pd.DataFrame)
    calibration: pd.DataFrame = field(default_factory=pd.DataFrame)
    reliability: pd.DataFrame = field(default_factory=pd.DataFrame)
    risks_off: tuple[RiskOff, ...] = ()
    metric: Metric = METRICS["accuracy"]
    positive: str = ""
    threshold: float | None = None
    people: int | None = None
    small: SmallCells = field(default_factory=SmallCells)
    rest: Evaluation | None = None
    weights: str = ""
    rows: RowDigests | None = None

    @property
    def useful(self) -> bool:
        """True where the model is better than one constant prediction by the metric (`tells_something`)."""
        return self.blind_spots is None or not self.blind_spots.uninformative

    @property
    def gaps(self) -> dict[str, float]:
        """Demographic parity and equalised odds differences between groups, without groups of few people.

        Empty unless there are two classes and two groups left, and where each group has examples of one class
        only.
        """
        if self.rates.empty:
            return {}
        rates = self.rates[~self.rates["group"].isin(self.small.groups)]
        if len(rates) < 2 or not ((rates["positives"] > 0) & (rates["positives"] < rates["count"])).any():
            return {}
        differences = {
            name: float(rates[name].max() - rates[name].min())
            for name in ("selection_rate", "true_positive_rate", "false_positive_rate")
        }
        return {
            "demographic_parity_difference": differences.pop("selection_rate"),
            "equalized_odds_difference": max(differences.values()),
        }

    def withholding(self) -> Evaluation:
        """Return the evaluation without the examples of groups and classes of few people, to be given away.

        They count in no metric, not in those of all either, so that no difference between metrics shows them
        (`SmallCells`). A test example is a person, unless the test set says whose it is.
        """
        return self if self.rest is None else self.rest

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON: the tables by name, the gaps, and how they were measured."""
        tables = {
            "metrics": self.groups,
            "values": self.values,
            "recalls": self.recalls,
            "calibration": self.calibration,
            "reliability": self.reliability,
        }
        if self.costs is not None:
            tables["costs"] = self.costs
        records = {name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}
        measured = {"metric": self.metric.name, "better_than_a_constant_prediction": self.useful}
        spots = {"blind_spots": None if self.blind_spots is None else asdict(self.blind_spots)}
        decision = {"positive": self.positive, "threshold": self.threshold}
        not_shown = {"not_shown": list(self.small.groups), "classes_not_shown": list(self.small.classes)}
        return {**records, "gaps": self.gaps, **measured, **decision, **not_shown, **spots}


def evaluate(
    model: nn.Module,
    test: GroupedDataset,
    *,
    level: float = 0.95,
    baseline: nn.Module | None = None,
    metric: str | Metric | None = None,
    decision: Decision = Decision(),
    processes: Processes = ALONE,
) -> Evaluation:
    """Evaluate a trained model, which gives one logit per class.

    Args:
        model: the trained model.
        test: examples that it was not trained on.
        level: of the intervals.
        baseline: a model trained without privacy on the same data, to show what privacy cost.
        metric: what cost and the comparison with a constant prediction are about (`metric_named`); None:
            accuracy.
        decision: of two classes, which is the positive one, and from which risk on it is predicted.
        processes: that predict a part each; all of them call this.

    Raises:
        DataError: outputs of another shape.
        SettingError: a level outside (0, 1), or a metric or positive class that the task has not.

    >>> import torch
    >>> inputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 2.0]]).repeat(5, 1)
    >>> targets, groups = torch.tensor([0, 1, 1, 0] * 5), torch.tensor([0, 0, 1, 1] * 5)
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
    decision.index(test.class_names)
    test = test.to("cpu")
    outputs = predict(model, test.inputs, processes)
    check_outputs(outputs, test)
    other = None if baseline is None else predict(baseline, test.inputs, processes)
    small = SmallCells.of(test)
    found = replace(
        _evaluate_outputs(outputs, other, test, level, metric, decision, small),
        weights=values_digest(model),
        rows=test.row_digests,
    )
    if small == SmallCells():
        return found
    left, rest = small.left_in(test), small.without(test)
    theirs = None if other is None else other[left]
    return replace(found, rest=_evaluate_outputs(outputs[left], theirs, rest, level, metric, decision, small))


def _evaluate_outputs(
    outputs: Tensor,
    other: Tensor | None,
    test: GroupedDataset,
    level: float,
    metric: Metric,
    decision: Decision,
    small: SmallCells,
) -> Evaluation:
    """Evaluate outputs, and the outputs of a baseline, on a test set."""
    if not len(test):
        nothing = pd.DataFrame()
        return Evaluation(nothing, nothing, nothing, None, None, level, metric=metric, small=small)
    found = Predictions.of(outputs, test.targets, test.class_names, decision)
    shown = [each for each in METRICS.values() if found.task in each.tasks]
    grouped, people = (test.groups.numpy(), test.group_names), people_of(test)
    calibration = calibration_table(found, *grouped, level)
    named = [name for name in test.group_names if name not in small.groups]
    return Evaluation(
        groups=group_intervals(outputs, test, level, decision),
        recalls=recalls(outputs, test, level, other, decision),
        rates=selection_rates(outputs, test, decision),
        costs=None if other is None else paired_costs(outputs, other, test, level, metric, decision),
        blind_spots=BlindSpots.of(found, metric, level),
        level=level,
        values=group_values(found, *grouped, list(dict.fromkeys([*shown, metric])), level),
        calibration=calibration,
        reliability=reliability_table(found, *grouped, level, people, named),
        risks_off=risks_off(calibration, [*named, ALL]),
        metric=metric,
        positive=found.positive_name,
        threshold=decision.threshold,
        people=None if test.people is None else count_people(people),
        small=small,
    )
