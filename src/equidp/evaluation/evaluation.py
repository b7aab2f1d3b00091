"""Evaluation of a trained model on each group of a test set: computed once, shown on terminals and cards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from equidp._extras import require_extra
from equidp._provenance import values_digest
from equidp.data.dataset import GroupedDataset
from equidp.data.shared_rows import RowDigests
from equidp.evaluation.groups import (
    accuracy_table,
    calibration_table,
    check_outputs,
    fairness_gaps,
    measure_values,
    paired_costs,
    parts_of,
    recalls,
)
from equidp.evaluation.intervals import check_level
from equidp.evaluation.metrics import METRICS, Metric, metric_for, tells_something
from equidp.evaluation.predictions import Decision, Predictions, predict
from equidp.evaluation.small_cells import SmallCells, count_people, people_of

with require_extra("tables"):
    import pandas as pd

RARE = 0.1
"""Share of examples below which a class is rare."""
_TABLES = ("groups", "values", "recalls", "costs", "calibration")


@dataclass(frozen=True)
class BlindSpots:
    """Facts that a model's main metric hides.

    Attributes:
        constant_class: the most frequent class.
        constant_value: accuracy of always predicting that class.
        never_predicted: classes that the model predicts for no example.
        uninformative: whether the model is no better than one constant prediction by the metric.
        ranking_auc: AUC of an uninformative model of two classes whose ranking is better than chance.
    """

    constant_class: str
    constant_value: float
    never_predicted: tuple[str, ...] = ()
    uninformative: bool = False
    ranking_auc: float | None = None

    @classmethod
    def of(cls, predictions: Predictions, metric: Metric, level: float) -> BlindSpots:
        """Return the metrics of predictions on one or more examples; `level` is for the intervals."""
        uninformative, area, auc = not tells_something(metric, predictions, level), None, METRICS["auc"]
        if uninformative and metric != auc and predictions.task == "binary":
            area = auc.function(predictions) if tells_something(auc, predictions, level) else None
        predicted = set(predictions.predicted.tolist())
        names, counts = predictions.class_names, predictions.counts
        never = tuple(name for at, name in enumerate(names) if at not in predicted)
        share = float(counts.max() / counts.sum())
        return cls(names[int(counts.argmax())], share, never, uninformative, area)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of a model on a test set, with intervals over its examples.

    Tables have a row for each group, with the name of its grouping, and end with group "all" of grouping "".

    Attributes:
        level: level of the intervals.
        metric: metric of costs and blind spots.
        groupings: names of the groupings, such as columns that are shown one by one. "": not known.
        groups: accuracy and loss by group (`accuracy_table`).
        values: each metric by group (`measure_values`).
        recalls: recall by group and class, or empty if accuracy is the same (`recalls`).
        costs: privacy cost of each group (`paired_costs`), or None without a baseline.
        calibration: mean predicted probability and observed share, by group (`calibration_table`).
        all_gaps: parity and odds differences by grouping (`fairness_gaps`).
        blind_spots: facts that the metric hides, or None without examples.
        positive: name of the positive class, or "" unless there are two classes.
        threshold: predicted probability from which it is predicted. None: the most probable class is
            predicted.
        people: number of people behind the examples. None: each is a different person.
        small: groups and classes of few people.
        rest: the same without their examples. None: there are none.
        weights, rows: digests of the model's values and of the test rows, by which a card knows them.
    """

    level: float
    metric: Metric = METRICS["accuracy"]
    groupings: tuple[str, ...] = ("",)
    groups: pd.DataFrame = field(default_factory=pd.DataFrame)
    values: pd.DataFrame = field(default_factory=pd.DataFrame)
    recalls: pd.DataFrame = field(default_factory=pd.DataFrame)
    costs: pd.DataFrame | None = None
    calibration: pd.DataFrame = field(default_factory=pd.DataFrame)
    all_gaps: dict[str, dict[str, float]] = field(default_factory=dict)
    blind_spots: BlindSpots | None = None
    positive: str = ""
    threshold: float | None = None
    people: int | None = None
    small: SmallCells = field(default_factory=SmallCells)
    rest: Evaluation | None = None
    weights: str = ""
    rows: RowDigests | None = None

    @property
    def useful(self) -> bool:
        """True if the model is better than one constant prediction by the metric (`tells_something`)."""
        return self.blind_spots is None or not self.blind_spots.uninformative

    @property
    def has_rare_class(self) -> bool:
        """True if one of two classes has less than a tenth of the examples.

        Accuracy says little then: see AUC and recall in `values`, and `calibration`.
        """
        spots = self.blind_spots
        return bool(self.positive) and spots is not None and 1 - spots.constant_value < RARE

    @property
    def gaps(self) -> dict[str, float]:
        """Demographic parity and equalised odds differences between groups, without groups of few people.

        Empty unless there are two classes and two groups, or if each group has examples of only one class.
        Also empty for several groupings, each of which has its own (`by_grouping`).
        """
        return self.all_gaps.get(self.groupings[0], {}) if len(self.groupings) == 1 else {}

    def by_grouping(self) -> tuple[Evaluation, ...]:
        """Return the evaluation of each grouping by itself, whose tables have its groups and "all"."""
        return tuple(map(self._within, self.groupings)) if len(self.groupings) > 1 else (self,)

    def _within(self, name: str) -> Evaluation:
        tables = {each: table for each in _TABLES if (table := getattr(self, each)) is not None}
        rows = {
            each: table if table.empty else table[table["grouping"].isin(("", name))].reset_index(drop=True)
            for each, table in tables.items()
        }
        return replace(self, groupings=(name,), **rows)

    def withholding(self) -> Evaluation:
        """Return the evaluation without the examples of groups and classes of few people, to be given away.

        They count in no metric, not even over all examples, so that no difference between metrics shows them
        (`SmallCells`). A test example is a person, unless the test set has people.
        """
        return self if self.rest is None else self.rest

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON: the tables by name, the gaps, and how they were measured."""
        tables = {"metrics": self.groups, "values": self.values, "recalls": self.recalls}
        tables |= {"calibration": self.calibration} | ({} if self.costs is None else {"costs": self.costs})
        return {
            **{name: json.loads(table.to_json(orient="records")) for name, table in tables.items()},
            "gaps": self.all_gaps if len(self.groupings) > 1 else self.gaps,
            "metric": self.metric.name,
            "better_than_a_constant_prediction": self.useful,
            "positive": self.positive,
            "threshold": self.threshold,
            "not_shown": list(self.small.groups),
            "combinations_not_shown": list(self.small.combinations),
            "classes_not_shown": list(self.small.classes),
            "blind_spots": None if self.blind_spots is None else asdict(self.blind_spots),
        }


def evaluate(
    model: nn.Module,
    test: GroupedDataset,
    *,
    level: float = 0.95,
    baseline: nn.Module | None = None,
    metric: str | Metric | None = None,
    decision: Decision = Decision(),
) -> Evaluation:
    """Evaluate a trained model, which gives one logit per class.

    Args:
        model: trained model.
        test: examples that it was not trained on.
        level: level of the intervals.
        baseline: model trained without privacy on the same data, to show what privacy cost.
        metric: metric of the cost and of the comparison with a constant prediction. None: accuracy.
        decision: for two classes, the positive one and the threshold on its probability.

    Raises:
        DataError: outputs of another shape.
        SettingError: a level outside (0, 1), or a metric or positive class that the task has not.

    >>> import torch
    >>> inputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 2.0]]).repeat(5, 1)
    >>> targets, groups = torch.tensor([0, 1, 1, 0] * 5), torch.tensor([0, 0, 1, 1] * 5)
    >>> test = GroupedDataset(inputs, targets, groups, group_names=("a", "b"), class_names=("no", "yes"))
    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.load_state_dict({"weight": torch.eye(2)})
    >>> evaluation = evaluate(model, test)
    >>> evaluation.groups[["group", "accuracy"]].to_dict("list")
    {'group': ['a', 'b', 'all'], 'accuracy': [1.0, 0.0, 0.5]}
    >>> evaluation.gaps
    {'demographic_parity_difference': 0.0, 'equalized_odds_difference': 1.0}
    """
    check_level(level)
    test.check_single_rows("a test")
    metric = metric_for(metric, test.class_names)
    decision.index(test.class_names)
    test = test.to("cpu")
    outputs = [predict(each, test.inputs) for each in (model, baseline) if each is not None]
    check_outputs(outputs[0], test.targets)
    small = SmallCells.of(test)
    whole = Evaluation(
        level,
        metric,
        groupings=tuple(each.name for each in test.shown_groupings),
        positive=Predictions.of(outputs[0], test.targets, test.class_names, decision).positive_name,
        threshold=decision.threshold,
        small=small,
    )
    rest = None if small == SmallCells() else _measured(whole, test, outputs, decision, small)
    return replace(
        _measured(whole, test, outputs, decision, SmallCells()),
        rest=rest,
        weights=values_digest(model),
        rows=test.row_digests,
    )


def _measured(
    evaluation: Evaluation,
    test: GroupedDataset,
    outputs: Sequence[Tensor],
    decision: Decision,
    hidden: SmallCells,
) -> Evaluation:
    """Evaluation with its tables, of a test set without its hidden cells."""
    level, metric = evaluation.level, evaluation.metric
    parts = parts_of(test, outputs, decision, hidden)
    predictions, members = parts[-1].model, parts[-1].members
    if not len(predictions):
        return evaluation
    known = [each for each in METRICS.values() if predictions.task in each.tasks]
    values = measure_values(parts, list(dict.fromkeys([*known, metric])), level)
    return replace(
        evaluation,
        groups=accuracy_table(values),
        values=values,
        recalls=recalls(parts, level),
        costs=None if len(outputs) == 1 else paired_costs(parts, level, metric),
        calibration=calibration_table(parts, level),
        all_gaps=fairness_gaps(parts, evaluation.small),
        blind_spots=BlindSpots.of(predictions, metric, level),
        people=None if test.people is None else count_people(people_of(test)[members]),
    )
