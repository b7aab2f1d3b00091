"""Metrics of one model for each part of a test set: each group, and all of it.

Tables have one row a group and then one for group "all". Intervals, at `level`, speak of the test examples as
a sample, not of what another training run would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn.functional import cross_entropy

from equidp._extras import require_extra
from equidp.data.dataset import ALL, GroupedDataset
from equidp.errors import DataError, shape_text
from equidp.evaluation.intervals import Interval, wilson
from equidp.evaluation.metrics import METRICS, Metric, measure_with_interval, metric_cost
from equidp.evaluation.predictions import Decision, Predictions
from equidp.evaluation.small_cells import SmallCells

with require_extra("tables"):
    import pandas as pd

Bools = npt.NDArray[np.bool_]
RISKS_OFF = 0.2
"""Share of the observed risk, or of its complement, by which a predicted risk may be off."""


def by_group(groups: npt.NDArray[np.int64], names: Sequence[str]) -> list[tuple[str, Bools]]:
    """Return each group's name and which examples are in it, [n]; then "all"."""
    return [*((name, groups == at) for at, name in enumerate(names)), (ALL, np.ones(len(groups), dtype=bool))]


def group_metrics(outputs: Tensor, test: GroupedDataset) -> pd.DataFrame:
    """Return group, count, accuracy and loss (cross-entropy), or NaN for a group without examples.

    Args:
        outputs: logits, [n, classes].
        test: n examples.

    Raises:
        DataError: outputs of another shape.
    """
    check_outputs(outputs, test.targets)
    correct = (outputs.argmax(dim=1) == test.targets).double()
    losses = cross_entropy(outputs.double(), test.targets, reduction="none")
    rows = []
    for name, members in by_group(test.groups.numpy(), test.group_names):
        accuracy, loss = float(correct[members].mean()), float(losses[members].mean())
        rows.append({"group": name, "count": int(members.sum()), "accuracy": accuracy, "loss": loss})
    return pd.DataFrame(rows)


def check_outputs(outputs: Tensor, targets: Tensor) -> None:
    """Raise a DataError unless outputs have a logit for each class."""
    classes = max(int(targets.max()) + 1 if len(targets) else 1, 2)
    if outputs.dim() != 2 or outputs.shape[1] < classes:
        raise DataError(
            f"the model's outputs are {shape_text(outputs, 'n')} for {classes} classes; group metrics "
            "need one logit per class, [n, classes]. Have a model of one logit z give the two outputs "
            "(0, z).",
            field="model",
        )


@dataclass(frozen=True, eq=False)
class Part:
    """Test examples that a row of each table is about, and the predictions of a model and a baseline.

    Attributes:
        grouping: name of the grouping; "" of all.
        group: name of its group, or "all".
        members: their examples, [n].
        model, base: predictions of model and baseline. None: there is no baseline.
    """

    grouping: str
    group: str
    members: Bools
    model: Predictions
    base: Predictions | None = None

    @property
    def head(self) -> dict[str, Any]:
        """The first columns of its row."""
        return {"grouping": self.grouping, "group": self.group, "count": len(self.model)}

    @property
    def classes(self) -> int:
        """Number of classes that occur."""
        return int((self.model.counts > 0).sum())


def parts_of(
    test: GroupedDataset, outputs: Sequence[Tensor], decision: Decision, small: SmallCells
) -> list[Part]:
    """Return the parts of a test set that are shown, without its small cells. All of it is the last.

    `outputs` are the outputs of a model, and of a baseline if there is one.
    """
    shown = small.shown_in(test)
    chosen = [
        (each.name, name, shown & (each.codes(test.groups).numpy() == at))
        for each in test.shown_groupings
        for at, name in enumerate(each.groups)
        if name not in small.by_grouping.get(each.name, ())
    ]
    models = [Predictions.of(each, test.targets, test.class_names, decision) for each in outputs]
    return [
        Part(grouping, group, members, *(each.take(members) for each in models))
        for grouping, group, members in [*chosen, ("", ALL, shown)]
    ]


def measure_values(parts: Sequence[Part], metrics: Sequence[Metric], level: float) -> pd.DataFrame:
    """Return grouping, group, count, metric, value, low, high, and reason: why it is not defined."""
    rows = []
    for part in parts:
        for metric in metrics:
            value = measure_with_interval(metric, part.model, level)
            rows.append({**part.head, "metric": metric.name, **value._asdict()})
    return pd.DataFrame(rows)


def accuracy_table(values: pd.DataFrame) -> pd.DataFrame:
    """Return accuracy and loss of `measure_values` side by side.

    Returns:
        grouping, group, count, accuracy and loss, each with _low and _high.
    """
    keys = ["grouping", "group", "count"]
    table = values.loc[values["metric"] == "accuracy", keys].reset_index(drop=True)
    for name, metric in (("accuracy", "accuracy"), ("loss", "log_loss")):
        ends = values.loc[values["metric"] == metric, ["value", "low", "high"]]
        table[[name, f"{name}_low", f"{name}_high"]] = ends.to_numpy()
    return table


def paired_costs(parts: Sequence[Part], level: float, metric: Metric) -> pd.DataFrame:
    """Return the loss of a model against a baseline that was trained without privacy.

    Returns:
        grouping, group, count, privacy_cost (in the metric; for accuracy as in Xu et al.) and excessive_risk
        (increase in loss, Tran et al.), each with _low and _high, from the differences example by example
        (`metric_cost`).
    """
    return pd.DataFrame(
        [
            {
                **part.head,
                **_ends("privacy_cost", metric_cost(metric, part.model, part.base, level)),
                **_ends("excessive_risk", metric_cost(METRICS["log_loss"], part.model, part.base, level)),
            }
            for part in parts
            if part.base is not None
        ]
    )


def recalls(parts: Sequence[Part], level: float) -> pd.DataFrame:
    """Return the share of each class's examples that the model finds: accuracy can hide that it finds none.

    Returns:
        grouping, group, count, class and recall with recall_low and recall_high (Wilson's), for classes with
        examples. No rows of a grouping whose groups have examples of one class only: accuracy is that class's
        recall.
    """
    telling = {part.grouping for part in parts[:-1] if part.classes > 1}
    rows = []
    for part in parts if telling else ():
        if part.group != ALL and part.grouping not in telling:
            continue
        for index, name in enumerate(part.model.class_names):
            hits = part.model.predicted[part.model.targets == index] == index
            if len(hits):
                recall = _ends("recall", wilson(int(hits.sum()), len(hits), level))
                rows.append({**part.head, "class": name, "count": len(hits), **recall})
    return pd.DataFrame(rows)


def fairness_gaps(parts: Sequence[Part], small: SmallCells) -> dict[str, dict[str, float]]:
    """Return demographic parity and equalised odds differences between the groups of each grouping.

    They are for predictions of class 1, without groups of few people. A grouping is left out unless there are
    two classes and two groups, or if each group has examples of only one class.
    """
    gaps = {}
    for grouping in dict.fromkeys(part.grouping for part in parts[:-1]):
        hidden = small.by_grouping.get(grouping, ())
        shown = [part for part in parts[:-1] if part.grouping == grouping and part.group not in hidden]
        models = [part.model for part in shown if len(part.model)]
        if len(models) < 2 or len(models[0].class_names) != 2 or all(part.classes < 2 for part in shown):
            continue
        selection, *odds = np.ptp([*map(_rates, models)], axis=0).tolist()
        gaps[grouping] = {"demographic_parity_difference": selection, "equalized_odds_difference": max(odds)}
    return gaps


def _rates(predictions: Predictions) -> list[float]:
    """Share predicted to be of class 1: of all, of the examples of class 1, and of the others."""
    truth, predicted = predictions.targets == 1, predictions.predicted == 1
    return [predicted.mean(), *(predicted[of].sum() / max(1, of.sum()) for of in (truth, ~truth))]


def calibration_table(parts: Sequence[Part], level: float) -> pd.DataFrame:
    """Return mean predicted probabilities and observed shares; no rows unless there are two classes.

    Returns:
        grouping, group, count, mean_predicted, observed (share of positives) with observed_low and
        observed_high (Wilson's), and off, for groups with examples and "all". off says whether mean_predicted
        and observed differ by more than a fifth, and by more than chance.
    """
    rows = []
    for part in parts:
        if len(part.model) and part.model.positive is not None:
            predicted = float(part.model.risks.mean())
            observed, low, high = wilson(int(part.model.hits.sum()), len(part.model), level)
            far = abs(predicted - observed) > RISKS_OFF * min(observed, 1 - observed)
            ends = _ends("observed", (observed, low, high))
            off = far and not low <= predicted <= high
            rows.append({**part.head, "mean_predicted": predicted, **ends, "off": off})
    return pd.DataFrame(rows)


def _ends(name: str, interval: Interval) -> dict[str, float]:
    return {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), interval, strict=True)}
