"""Metrics of one model by group of a test set, with intervals over its examples.

Outputs are logits, [n, classes]. Tables have one row a group and then one for group "all". Intervals, at
`level`, speak of the test examples as a sample, not of what another training run would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from equidp._extras import require_extra
from equidp.data.dataset import ALL, GroupedDataset
from equidp.errors import DataError, shape_text
from equidp.evaluation.intervals import Floats, Interval, mean_interval, paired_interval, wilson
from equidp.evaluation.metrics import (
    METRICS,
    Metric,
    measure_with_interval,
    metric_cost,
)
from equidp.evaluation.predictions import Decision, Predictions

with require_extra("tables"):
    import pandas as pd
    from fairlearn.metrics import false_positive_rate, selection_rate, true_positive_rate

Bools = npt.NDArray[np.bool_]


def group_metrics(
    outputs: Tensor, targets: Tensor, groups: Tensor, group_names: Sequence[str]
) -> pd.DataFrame:
    """Return group, count, accuracy and loss (cross-entropy); NaN for a group without examples.

    Args:
        outputs: [n, classes].
        targets, groups: [n].
        group_names: one per group.

    Raises:
        DataError: outputs of another shape.
    """
    _check_logits(outputs, targets)
    correct = (outputs.argmax(dim=1) == targets).double()
    losses = cross_entropy(outputs.double(), targets, reduction="none")
    rows = []
    for name, members in by_group(groups.numpy(), group_names):
        accuracy, loss = float(correct[members].mean()), float(losses[members].mean())
        rows.append({"group": name, "count": int(members.sum()), "accuracy": accuracy, "loss": loss})
    return pd.DataFrame(rows)


def metrics_of(outputs: Tensor, test: GroupedDataset) -> pd.DataFrame:
    """Return group, count, accuracy and loss of a model's outputs, [n, classes]."""
    return group_metrics(outputs, test.targets, test.groups, test.group_names)


def check_outputs(outputs: Tensor, test: GroupedDataset) -> None:
    """Raise unless outputs have a logit for each class."""
    _check_logits(outputs, test.targets)


def _check_logits(outputs: Tensor, targets: Tensor) -> None:
    classes = max(int(targets.max()) + 1 if len(targets) else 1, 2)
    if outputs.dim() != 2 or outputs.shape[1] < classes:
        raise DataError(
            f"the model's outputs are {shape_text(outputs, 'n')} for {classes} classes; group metrics "
            "need one logit per class, [n, classes]. Have a model of one logit z give the two outputs "
            "(0, z).",
            field="model",
        )


def group_intervals(
    outputs: Tensor, test: GroupedDataset, level: float, decision: Decision = Decision()
) -> pd.DataFrame:
    """Return group, count, accuracy (Wilson's interval) and loss (Student's), each with _low and _high."""
    correct, losses = _correct(outputs, test, decision), _losses(outputs, test)
    rows = []
    for name, members in by_group(test.groups.numpy(), test.group_names):
        accuracy = wilson(int(correct[members].sum()), int(members.sum()), level)
        loss = mean_interval(losses[members], level, (0.0, np.inf))
        rows.append(_row(members, {"accuracy": accuracy, "loss": loss}, group=name))
    return pd.DataFrame(rows)


def group_values(
    found: Predictions,
    groups: npt.NDArray[np.int64],
    group_names: Sequence[str],
    metrics: Sequence[Metric],
    level: float,
) -> pd.DataFrame:
    """Return group, count, metric, value, low, high, and reason: why it is not defined."""
    rows = []
    for name, members in by_group(groups, group_names):
        part = found.take(members)
        for metric in metrics:
            measured = measure_with_interval(metric, part, level)._asdict()
            rows.append({"group": name, "count": len(part), "metric": metric.name, **measured})
    return pd.DataFrame(rows)


def paired_costs(
    outputs: Tensor,
    baseline: Tensor,
    test: GroupedDataset,
    level: float,
    metric: Metric = METRICS["accuracy"],
    decision: Decision = Decision(),
) -> pd.DataFrame:
    """Return what a model loses against `baseline`, the outputs of one trained without privacy.

    Returns:
        group, count, privacy_cost (what the metric loses; of accuracy: Xu et al.) and excessive_risk (loss
        gained, Tran et al.; Student's interval), each with _low and _high, of the differences example by
        example. A metric that no single example has gets percentiles over resamples of the examples.
    """
    ours, theirs = (
        Predictions.of(each, test.targets, test.class_names, decision) for each in (outputs, baseline)
    )
    gained = _losses(outputs, test) - _losses(baseline, test)
    rows = []
    for name, members in by_group(test.groups.numpy(), test.group_names):
        cost = metric_cost(metric, ours.take(members), theirs.take(members), level)
        risk = mean_interval(gained[members], level)
        rows.append(_row(members, {"privacy_cost": cost, "excessive_risk": risk}, group=name))
    return pd.DataFrame(rows)


def recalls(
    outputs: Tensor,
    test: GroupedDataset,
    level: float,
    baseline: Tensor | None = None,
    decision: Decision = Decision(),
) -> pd.DataFrame:
    """Return the share of each class's examples that the model finds: accuracy can hide that it finds none.

    Returns:
        group, class, count, recall (Wilson's interval), and with the outputs of a baseline recall_cost
        (recall lost; Agresti and Min's interval), each with _low and _high, for classes with examples. No
        rows where each group has examples of one class only: its accuracy is that class's recall.
    """
    pairs = torch.stack([test.groups, test.targets]).unique(dim=1)
    if pairs.shape[1] == len(pairs[0].unique()):
        return pd.DataFrame()
    correct, classes = _correct(outputs, test, decision), test.targets.numpy()
    missed = None if baseline is None else _correct(baseline, test, decision) - correct
    rows = []
    for group, of_group in by_group(test.groups.numpy(), test.group_names):
        for index, name in enumerate(test.class_names):
            members = of_group & (classes == index)
            if not members.any():
                continue
            measured = {"recall": wilson(int(correct[members].sum()), int(members.sum()), level)}
            if missed is not None:
                measured["recall_cost"] = paired_interval(missed[members], level)
            rows.append(_row(members, measured, **{"group": group, "class": name}))
    return pd.DataFrame(rows)


def selection_rates(outputs: Tensor, test: GroupedDataset, decision: Decision = Decision()) -> pd.DataFrame:
    """Return how often a model of two classes predicts class 1, by fairlearn.

    Returns:
        group, count, positives (examples of class 1), selection_rate, true_positive_rate and
        false_positive_rate (0 where there is no example), for groups with examples and without "all". No rows
        unless there are two classes.
    """
    if test.num_classes != 2 or not len(test):
        return pd.DataFrame()
    truth = test.targets.numpy()
    predicted = Predictions.of(outputs, test.targets, test.class_names, decision).predicted
    rates = {
        "selection_rate": selection_rate,
        "true_positive_rate": true_positive_rate,
        "false_positive_rate": false_positive_rate,
    }
    rows = []
    for name, members in by_group(test.groups.numpy(), test.group_names):
        if name != ALL and members.any():  # fairlearn's MetricFrame does the same, row by row
            given = truth[members], predicted[members]
            counts = {"group": name, "count": len(given[0]), "positives": int(given[0].sum())}
            rows.append({**counts, **{rate: float(of(*given)) for rate, of in rates.items()}})
    return pd.DataFrame(rows)


def most_frequent(targets: Tensor, class_names: Sequence[str]) -> tuple[str, float]:
    """Return the class of most of these targets, [n], and its share of them."""
    counts = torch.bincount(targets, minlength=len(class_names))
    return class_names[int(counts.argmax())], float(counts.max()) / len(targets)


def _row(members: Bools, measured: dict[str, Interval], **names: str) -> dict[str, Any]:
    ends = {
        f"{name}{end}": value
        for name, values in measured.items()
        for end, value in zip(("", "_low", "_high"), values, strict=True)
    }
    return {**names, "count": int(members.sum()), **ends}


def by_group(groups: npt.NDArray[np.int64], names: Sequence[str]) -> list[tuple[str, Bools]]:
    """Return each group's name and which examples are in it, [n]; then "all"."""
    return [*((name, groups == at) for at, name in enumerate(names)), (ALL, np.ones(len(groups), dtype=bool))]


def _correct(outputs: Tensor, test: GroupedDataset, decision: Decision) -> Floats:
    predicted = Predictions.of(outputs, test.targets, test.class_names, decision).predicted
    correct: Floats = (predicted == test.targets.numpy()).astype(np.float64)
    return correct


def _losses(outputs: Tensor, test: GroupedDataset) -> Floats:
    losses: Floats = cross_entropy(outputs.double(), test.targets, reduction="none").numpy()
    return losses
