"""Outputs of each run of a comparison on its test set, kept so that any metric can be computed later."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equidp._files import write_whole
from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError, SettingError
from equidp.evaluation.blind_spots import calibration_table
from equidp.evaluation.groups import by_group
from equidp.evaluation.metric import Metric, measure_metric
from equidp.evaluation.metrics import METRICS, check_task, tells_something
from equidp.evaluation.predictions import Cut, Predictions
from equidp.evaluation.small_cells import SmallCells


def outputs_path(record: Path) -> Path:
    """Path of a run's outputs, beside its record."""
    return record.with_suffix(".npy")


def keep_outputs(record: Path, outputs: np.ndarray) -> None:
    """Write a run's outputs on its test set, whole or not at all."""
    buffer = io.BytesIO()
    np.save(buffer, outputs, allow_pickle=False)
    write_whole(outputs_path(record), buffer.getvalue())


def kept_predictions(record: Path, test: GroupedDataset, cut: Cut) -> Predictions:
    """Predictions of a run on its test set.

    Raises:
        DataError: the file of its outputs is damaged.
    """
    path = outputs_path(record)
    try:
        outputs = torch.from_numpy(np.load(path, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it, and the run is trained again.") from error
    return Predictions.of(outputs, test.targets, test.class_names, cut)


def with_metrics(
    rows: Sequence[dict[str, Any]], found: Predictions, test: GroupedDataset, metric: Metric, level: float
) -> list[dict[str, Any]]:
    """Return the result rows of one run with every metric of the task and two flags: `informative`, and
    `few_people` for a group of too few people to base a cost or gap on.

    Args:
        rows: one per group and one for "all", with the key "group".
        found: the run's predictions.
        test: the run's test set.
        metric: the metric of `informative` (`tells_something`); it may be user-defined.
        level: of the interval that decides `informative`.
    """
    metrics = list(dict.fromkeys([*(each for each in METRICS.values() if found.task in each.tasks), metric]))
    parts = dict(by_group(test.groups.numpy(), test.group_names))
    risks = calibration_table(found, test.groups.numpy(), test.group_names, level)
    risks = risks if risks.empty else risks.set_index("group")[["mean_predicted", "observed"]]
    informative, tiny = tells_something(metric, found, level), SmallCells.of(test).tiny
    filled = []
    for row in rows:
        part = found.take(parts[row["group"]])
        values = {each.name: measure_metric(each, part)[0] for each in metrics}
        shares = risks.loc[row["group"]].to_dict() if row["group"] in risks.index else {}
        few = {"few_people": row["group"] in tiny}
        filled.append({**row, **values, **shares, "informative": informative, **few})
    return filled


def check_metric(metric: Metric, cut: Cut, test: GroupedDataset) -> None:
    """Check before anything is trained that a metric can compare the groups of a test set.

    Raises:
        SettingError: the task has no such metric or positive class, the metric fails, or it is not defined in
            two groups.
    """
    check_task(metric, test.class_names)
    shares = np.random.default_rng(0).dirichlet(np.ones(test.num_classes), len(test))
    outputs = torch.from_numpy(np.log(shares))  # of a made-up model
    found = Predictions.of(outputs, test.targets, test.class_names, Cut(cut.positive))
    groups = by_group(test.groups.numpy(), test.group_names)[:-1]
    reasons = {name: measure_metric(metric, found.take(members))[1] for name, members in groups}
    if sum(not reason for reason in reasons.values()) < 2:
        name, reason = next((name, reason) for name, reason in reasons.items() if reason)
        raise SettingError(
            f"metric {metric.name!r} is defined in fewer than two groups of the test set (group {name}: "
            f"{reason}), so no gap can be taken; choose another metric, such as accuracy, or other groups."
        )
