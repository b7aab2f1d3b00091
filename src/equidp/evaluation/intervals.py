"""What a trained model does to each group of a test set, with intervals over its examples."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import cross_entropy

from equidp.data.dataset import ALL
from equidp.evaluation.groups import METRICS, check_level, interval, within_model_gaps

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
        figures = {
            "accuracy": wilson(int(correct[members].sum()), count, level),
            "loss": mean_interval(losses[members], level, METRICS["loss"]),
        }
        rows.append({"group": name, "count": count} | _with_ends(figures))
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
        figures = {
            "privacy_cost": paired_interval(costs["privacy_cost"][members], level),
            "excessive_risk": mean_interval(costs["excessive_risk"][members], level),
        }
        rows.append({"group": name, "count": int(members.sum())} | _with_ends(figures))
    return pd.DataFrame(rows)


def recalls(
    outputs: Tensor,
    targets: Tensor,
    groups: Tensor,
    group_names: Sequence[str],
    class_names: Sequence[str],
    level: float = 0.95,
    reference: Tensor | None = None,
) -> pd.DataFrame:
    """Of each class's examples, the share that the model finds, group by group: accuracy can hide that a class is never found.

    Args:
        outputs, targets, groups, group_names, level: as for `group_intervals`.
        class_names: one per class.
        reference: [n, classes], logits of a non-private model, to tell what privacy cost.

    Returns:
        Rows by group, "all" last, and class, of those that have examples: group, class, count, recall with _low and _high
        (Wilson's interval), and with a reference recall_cost (recall lost) with _low and _high (Agresti and Min's). No rows where
        each group has examples of one class only: its accuracy is that class's recall.
    """
    check_level(level)
    correct, classes = _correct(outputs, targets), targets.numpy()
    lost = None if reference is None else _correct(reference, targets) - correct
    members = _members(groups, group_names)
    if _tell_classes(targets, groups):
        return pd.DataFrame()
    rows = []
    for (group, of_group), (index, name) in itertools.product(members, enumerate(class_names)):
        there = of_group & (classes == index)
        count = int(there.sum())
        if not count:
            continue
        row = {"group": group, "class": name, "count": count}
        figures = {"recall": wilson(int(correct[there].sum()), count, level)}
        if lost is not None:
            figures["recall_cost"] = paired_interval(lost[there], level)
        rows.append(row | _with_ends(figures))
    return pd.DataFrame(rows)


def fairness_gaps(outputs: Tensor, targets: Tensor, groups: Tensor, num_classes: int) -> dict[str, float]:
    """`within_model_gaps` of a model with two classes; none of others, or where classes are the groups."""
    if num_classes != 2 or _tell_classes(targets, groups):
        return {}
    return within_model_gaps(outputs.argmax(dim=1), targets, groups)


def blind_spots(outputs: Tensor, targets: Tensor, class_names: Sequence[str]) -> list[str]:
    """What accuracy hides: what always giving one answer would reach, and classes that the model never gives.

    Args:
        outputs: [n, classes], logits.
        targets: [n].
        class_names: one per class.
    """
    if not len(targets):
        return []
    name, share = most_frequent(targets, class_names)
    sentences = [f"Always answering {name!r} would be right for {100 * share:.1f}% of the test examples."]
    given = set(outputs.argmax(dim=1).tolist())
    never = [repr(name) for at, name in enumerate(class_names) if at not in given]
    if never:
        sentences.append(f"The model answers {', '.join(never)} for none of them.")
    return sentences


def most_frequent(targets: Tensor, class_names: Sequence[str]) -> tuple[str, float]:
    """The class of most of these targets, [n], and its share of them."""
    counts = torch.bincount(targets, minlength=len(class_names))
    return class_names[int(counts.argmax())], float(counts.max()) / len(targets)


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


def _with_ends(figures: dict[str, tuple[float, float, float]]) -> dict[str, float]:
    """Each figure and its interval, as three columns."""
    return {
        f"{name}{end}": value
        for name, values in figures.items()
        for end, value in zip(("", "_low", "_high"), values, strict=True)
    }


def _members(groups: Tensor, names: Sequence[str]) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    codes = groups.numpy()
    return [*((name, codes == index) for index, name in enumerate(names)), (ALL, np.ones(len(codes), bool))]


def _tell_classes(targets: Tensor, groups: Tensor) -> bool:
    """Whether each group has examples of one class only."""
    pairs = torch.stack([groups, targets]).unique(dim=1)
    return bool(pairs.shape[1] == len(pairs[0].unique()))


def _correct(outputs: Tensor, targets: Tensor) -> Floats:
    return (outputs.argmax(dim=1) == targets).to(torch.float64).numpy()


def _losses(outputs: Tensor, targets: Tensor) -> Floats:
    return cross_entropy(outputs.double(), targets, reduction="none").numpy()
