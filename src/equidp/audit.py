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

from equidp.metrics import ALL, METRICS, check_level, interval, within_model_gaps

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
        loss = mean_interval(losses[members], level, METRICS["loss"])
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
        al.), each with _low and _high: intervals of the mean of the differences, example by example; of privacy_cost by Agresti
        and Min (2005), which hold for few examples too.
    """
    check_level(level)
    costs = {
        "privacy_cost": _correct(reference, targets) - _correct(outputs, targets),
        "excessive_risk": _losses(outputs, targets) - _losses(reference, targets),
    }
    rows = []
    for name, members in _members(groups, group_names):
        row = {"group": name, "count": int(members.sum())}
        for metric, interval_of in (("privacy_cost", paired_interval), ("excessive_risk", mean_interval)):
            ends = interval_of(costs[metric][members], level)
            row |= dict(zip((metric, f"{metric}_low", f"{metric}_high"), ends, strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def fairness_gaps(outputs: Tensor, targets: Tensor, groups: Tensor, num_classes: int) -> dict[str, float]:
    """`within_model_gaps` of a model with two classes; none of others."""
    return within_model_gaps(outputs.argmax(dim=1), targets, groups) if num_classes == 2 else {}


def blind_spots(outputs: Tensor, targets: Tensor, class_names: Sequence[str]) -> list[str]:
    """What accuracy hides: what always giving one answer would reach, and classes that the model never gives.

    Args:
        outputs: [n, classes], logits.
        targets: [n].
        class_names: one per class.
    """
    if not len(targets):
        return []
    counts = torch.bincount(targets, minlength=len(class_names))
    largest = int(counts.argmax())
    sentences = [
        f"Always answering {class_names[largest]!r} would be right for {100 * float(counts[largest]) / len(targets):.1f}% of the "
        "test examples."
    ]
    given = set(outputs.argmax(dim=1).tolist())
    never = [repr(name) for at, name in enumerate(class_names) if at not in given]
    if never:
        sentences.append(f"The model answers {', '.join(never)} for none of them.")
    return sentences


def wilson(successes: int, count: int, level: float) -> tuple[float, float, float]:
    """A share and Wilson's interval (1927), which holds for few examples too; NaN of none."""
    if not count:
        return np.nan, np.nan, np.nan
    ends = stats.binomtest(successes, count).proportion_ci(level, method="wilson")
    return successes / count, float(ends.low), float(ends.high)


def mean_interval(
    values: Floats, level: float, within: tuple[float, float] = (-np.inf, np.inf)
) -> tuple[float, float, float]:
    """A mean and Student's interval, within what can be; NaN of none."""
    return interval(values.tolist(), level, within) if len(values) else (np.nan, np.nan, np.nan)


def paired_interval(differences: Floats, level: float) -> tuple[float, float, float]:
    """A mean of differences of -1, 0 and 1 between two models, and Agresti and Min's interval (2005); NaN of none.

    It adds half an example to each of the four ways in which two models can be right or wrong, so that few examples on which
    they agree do not look certain.
    """
    count = len(differences)
    if not count:
        return np.nan, np.nan, np.nan
    better, worse = ((differences == sign).sum() + 0.5 for sign in (1, -1))
    centre = (better - worse) / (count + 2)
    deviation = np.sqrt((better + worse) / (count + 2) - centre**2) / np.sqrt(count + 2)
    half = float(stats.norm.ppf((1 + level) / 2) * deviation)
    return float(differences.mean()), max(centre - half, -1.0), min(centre + half, 1.0)


def _members(groups: Tensor, names: Sequence[str]) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    codes = groups.numpy()
    return [*((name, codes == index) for index, name in enumerate(names)), (ALL, np.ones(len(codes), bool))]


def _correct(outputs: Tensor, targets: Tensor) -> Floats:
    return (outputs.argmax(dim=1) == targets).to(torch.float64).numpy()


def _losses(outputs: Tensor, targets: Tensor) -> Floats:
    return cross_entropy(outputs.double(), targets, reduction="none").numpy()
