"""What a trained model does to each group of a test set, with intervals over its examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import cross_entropy

from equidp.metrics import ALL, check_level, interval, within_model_gaps

Floats = npt.NDArray[np.float64]


def group_intervals(
    outputs: Tensor, targets: Tensor, groups: Tensor, group_names: Sequence[str], level: float = 0.95
) -> pd.DataFrame:
    """Accuracy with Wilson's interval, and cross-entropy with Student's, of each group and of all examples.

    Args:
        outputs: [n, classes], logits.
        targets, groups: [n].
        group_names: one per group.
        level: of the intervals, which speak of the test examples as a sample, not of what training would give next time.

    Returns:
        Rows in the order of the groups, then "all": group, count, and accuracy and loss, each with _low and _high.
    """
    check_level(level)
    correct, losses = _correct(outputs, targets), _losses(outputs, targets)
    rows = []
    for name, members in _members(groups, group_names):
        count = int(members.sum())
        row = {"group": name, "count": count}
        accuracy = wilson(int(correct[members].sum()), count, level)
        loss = mean_interval(losses[members], level)
        for metric, values in (("accuracy", accuracy), ("loss", loss)):
            row |= dict(zip((metric, f"{metric}_low", f"{metric}_high"), values, strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def paired_costs(
    outputs: Tensor,
    reference: Tensor,
    targets: Tensor,
    groups: Tensor,
    group_names: Sequence[str],
    level: float = 0.95,
) -> pd.DataFrame:
    """What a private model loses against a non-private one on the same examples, group by group.

    Args:
        outputs, reference: [n, classes], logits of the private and of the non-private model.
        targets, groups, group_names, level: as for `group_intervals`.

    Returns:
        Rows as `group_intervals`: group, count, privacy_cost (accuracy lost, Xu et al.) and excessive_risk (loss gained, Tran et
        al.), each with _low and _high: intervals of the mean of the differences, example by example.
    """
    check_level(level)
    costs = {
        "privacy_cost": _correct(reference, targets) - _correct(outputs, targets),
        "excessive_risk": _losses(outputs, targets) - _losses(reference, targets),
    }
    rows = []
    for name, members in _members(groups, group_names):
        row = {"group": name, "count": int(members.sum())}
        for metric, values in costs.items():
            ends = mean_interval(values[members], level)
            row |= dict(zip((metric, f"{metric}_low", f"{metric}_high"), ends, strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def fairness_gaps(outputs: Tensor, targets: Tensor, groups: Tensor, num_classes: int) -> dict[str, float]:
    """`within_model_gaps` of a model with two classes; none of others."""
    return within_model_gaps(outputs.argmax(dim=1), targets, groups) if num_classes == 2 else {}


def wilson(successes: int, count: int, level: float) -> tuple[float, float, float]:
    """A share and Wilson's interval (1927), which holds for few examples too; NaN of none."""
    if not count:
        return np.nan, np.nan, np.nan
    ends = stats.binomtest(successes, count).proportion_ci(level, method="wilson")
    return successes / count, float(ends.low), float(ends.high)


def mean_interval(values: Floats, level: float) -> tuple[float, float, float]:
    """A mean and Student's interval; NaN of none."""
    return interval(values.tolist(), level) if len(values) else (np.nan, np.nan, np.nan)


def _members(groups: Tensor, names: Sequence[str]) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    codes = groups.numpy()
    return [*((name, codes == index) for index, name in enumerate(names)), (ALL, np.ones(len(codes), bool))]


def _correct(outputs: Tensor, targets: Tensor) -> Floats:
    return (outputs.argmax(dim=1) == targets).to(torch.float64).numpy()


def _losses(outputs: Tensor, targets: Tensor) -> Floats:
    return cross_entropy(outputs.double(), targets, reduction="none").numpy()
