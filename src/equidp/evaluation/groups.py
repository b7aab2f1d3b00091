"""Metrics of one model for each part of a test set: each group, and all of it.

Tables have one row a group and then one for group "all". Intervals, at `level`, speak of the test examples as
a sample, not of what another training run would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn.functional import cross_entropy

from equidp._extras import require_extra
from equidp.data.dataset import ALL, GroupedDataset
from equidp.errors import DataError, shape_text
from equidp.evaluation.intervals import Floats, Interval, mean_interval, paired_interval, wilson
from equidp.evaluation.metrics import Metric, measure_with_interval, metric_cost
from equidp.evaluation.predictions import Decision, Predictions
from equidp.evaluation.small_cells import SmallCells

with require_extra("tables"):
    import pandas as pd

Bools = npt.NDArray[np.bool_]


def by_group(groups: npt.NDArray[np.int64], names: Sequence[str]) -> list[tuple[str, Bools]]:
    """Return each group's name and which examples are in it, [n]; then "all"."""
    return [*((name, groups == at) for at, name in enumerate(names)), (ALL, np.ones(len(groups), dtype=bool))]


def group_metrics(
    outputs: Tensor, targets: Tensor, groups: Tensor, group_names: Sequence[str]
) -> pd.DataFrame:
    """Return group, count, accuracy and loss (cross-entropy); NaN for a group without examples.

    Args:
        outputs: logits, [n, classes].
        targets, groups: [n].
        group_names: one per group.

    Raises:
        DataError: outputs of another shape.
    """
    check_outputs(outputs, targets)
    correct, losses = (outputs.argmax(dim=1) == targets).double(), losses_of(outputs, targets)
    rows = []
    for name, members in by_group(groups.numpy(), group_names):
        accuracy, loss = float(correct[members].mean()), float(losses[members].mean())
        rows.append({"group": name, "count": int(members.sum()), "accuracy": accuracy, "loss": loss})
    return pd.DataFrame(rows)


def metrics_of(outputs: Tensor, test: GroupedDataset) -> pd.DataFrame:
    """Return group, count, accuracy and loss of a model's logits, [n, classes]."""
    return group_metrics(outputs, test.targets, test.groups, test.group_names)


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


def losses_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each example, [n] float64."""
    return cross_entropy(outputs.double(), targets, reduction="none")


class Predicted(NamedTuple):
    """What a model predicts of some examples, and the cross-entropy of each."""

    found: Predictions
    losses: Floats


@dataclass(frozen=True, eq=False)
class Part:
    """Test examples that a row of each table is about, and what a model and a baseline predict of them.

    Attributes:
        grouping: name of the grouping; "" of all.
        group: name of its group, or "all".
        members: which examples they are, [n].
        model, base: what either predicts; None: there is no baseline.
    """

    grouping: str
    group: str
    members: Bools
    model: Predicted
    base: Predicted | None = None

    @property
    def found(self) -> Predictions:
        """Return what the model predicts."""
        return self.model.found

    @property
    def head(self) -> dict[str, Any]:
        """Return the first columns of its row."""
        return {"grouping": self.grouping, "group": self.group, "count": len(self.found)}

    @property
    def classes(self) -> int:
        """Return how many classes occur."""
        return int((self.found.counts > 0).sum())


def parts_of(
    test: GroupedDataset, outputs: Tensor, base: Tensor | None, decision: Decision, small: SmallCells
) -> list[Part]:
    """Return the parts of a test set that are shown, without its small cells; all of it is the last.

    `base` are the outputs of a baseline.
    """
    left, labels = small.left_in(test), test.groups
    chosen = [
        (each.name, name, left & (each.codes(labels).numpy() == at))
        for each in test.shown_groupings
        for at, name in enumerate(each.groups)
        if not small.hides(each.name, name)
    ]
    models = [
        (
            Predictions.of(each, test.targets, test.class_names, decision),
            losses_of(each, test.targets).numpy(),
        )
        for each in (outputs, base)
        if each is not None
    ]
    parts = []
    for grouping, group, members in [*chosen, ("", ALL, left)]:
        predicted = [Predicted(found.take(members), losses[members]) for found, losses in models]
        parts.append(Part(grouping, group, members, *predicted))
    return parts


def measure_values(parts: Sequence[Part], metrics: Sequence[Metric], level: float) -> pd.DataFrame:
    """Return grouping, group, count, metric, value, low, high, and reason: why it is not defined."""
    return pd.DataFrame(
        [
            {
                **part.head,
                "metric": metric.name,
                **measure_with_interval(metric, part.found, level)._asdict(),
            }
            for part in parts
            for metric in metrics
        ]
    )


def accuracy_table(parts: Sequence[Part], values: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return grouping, group, count, accuracy, as in `values`, and loss (Student's interval), each with _low
    and _high."""
    accuracies = values[values["metric"] == "accuracy"][["value", "low", "high"]].to_numpy()
    return pd.DataFrame(
        [
            {
                **part.head,
                **_ends("accuracy", tuple(accuracy)),
                **_ends("loss", mean_interval(part.model.losses, level, (0.0, np.inf))),
            }
            for part, accuracy in zip(parts, accuracies, strict=True)
        ]
    )


def paired_costs(parts: Sequence[Part], level: float, metric: Metric) -> pd.DataFrame:
    """Return what a model loses against a baseline that was trained without privacy.

    Returns:
        grouping, group, count, privacy_cost (what the metric loses; of accuracy: Xu et al.) and
        excessive_risk (loss gained, Tran et al.; Student's interval), each with _low and _high, of the
        differences example by example. A metric that no single example has gets percentiles over resamples of
        the examples.
    """
    return pd.DataFrame(
        [
            {
                **part.head,
                **_ends("privacy_cost", metric_cost(metric, part.found, part.base.found, level)),
                **_ends("excessive_risk", mean_interval(part.model.losses - part.base.losses, level)),
            }
            for part in parts
            if part.base is not None
        ]
    )


def recalls(parts: Sequence[Part], level: float) -> pd.DataFrame:
    """Return the share of each class's examples that the model finds: accuracy can hide that it finds none.

    Returns:
        grouping, group, count, class, recall (Wilson's interval), and with a baseline recall_cost (recall
        lost; Agresti and Min's interval), each with _low and _high, for classes with examples. No rows of a
        grouping whose groups have examples of one class only: accuracy is that class's recall.
    """
    telling = {part.grouping for part in parts[:-1] if part.classes > 1}
    rows = []
    for part in parts:
        if not telling or part.grouping not in {*telling, ""}:
            continue
        correct = _correct(part.found)
        for index, name in enumerate(part.found.class_names):
            members = part.found.targets == index
            if not members.any():
                continue
            row = {**part.head, "class": name, "count": int(members.sum())}
            row |= _ends("recall", wilson(int(correct[members].sum()), int(members.sum()), level))
            if part.base is not None:
                missed = _correct(part.base.found)[members] - correct[members]
                row |= _ends("recall_cost", paired_interval(missed, level))
            rows.append(row)
    return pd.DataFrame(rows)


def fairness_gaps(parts: Sequence[Part], small: SmallCells) -> dict[str, dict[str, float]]:
    """Return demographic parity and equalised odds differences between the groups of each grouping.

    They are of predictions of class 1, without groups of few people. A grouping is left out unless there are
    two classes and two groups, and where each group has examples of one class only.
    """
    rates: dict[str, list[list[float]]] = {}
    telling = set()
    for part in parts[:-1]:
        found = part.found
        if len(found) and len(found.class_names) == 2 and not small.hides(part.grouping, part.group):
            truth, predicted = found.targets == 1, found.predicted == 1
            odds = [predicted[of].sum() / max(1, of.sum()) for of in (truth, ~truth)]
            rates.setdefault(part.grouping, []).append([predicted.mean(), *odds])
            telling |= {part.grouping} if part.classes == 2 else set()
    gaps = {}
    for grouping, of_groups in rates.items():
        if grouping in telling and len(of_groups) > 1:
            selection, *odds = np.ptp(of_groups, axis=0).tolist()
            gaps[grouping] = {
                "demographic_parity_difference": selection,
                "equalized_odds_difference": max(odds),
            }
    return gaps


def _ends(name: str, interval: Interval) -> dict[str, float]:
    return {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), interval, strict=True)}


def _correct(found: Predictions) -> Floats:
    correct: Floats = (found.predicted == found.targets).astype(np.float64)
    return correct
