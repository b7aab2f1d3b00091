"""Counts of the training examples of each class, released or exact, and weights of classes by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from equidp.data.dataset import GroupedDataset
from equidp.data.people import first_rows
from equidp.errors import SettingError
from equidp.kernel.noise import Randomness
from equidp.tables.release import private_counts


def count_classes(
    train: GroupedDataset, noise_multiplier: float = 0.0, randomness: Randomness | None = None
) -> dict[str, float]:
    """Return the number of training examples of each class by name. A person counts by the first row.

    Args:
        train: training part of a split.
        noise_multiplier: noise multiplier of the release, which is to be charged before. 0: exact counts,
            which epsilon does not cover.
        randomness: source of the noise; needed for a release.
    """
    targets = first_rows(train).targets.cpu().numpy()
    counts = np.bincount(targets, minlength=train.num_classes).astype(float)
    if noise_multiplier:
        assert randomness is not None
        counts = private_counts(
            targets, train.num_classes, noise_multiplier=noise_multiplier, randomness=randomness
        )
    return dict(zip(train.class_names, counts.tolist(), strict=True))


def balanced_class_weights(counts: Mapping[str, float], noise_multiplier: float) -> dict[str, float]:
    """Return weights that give each class the same part in the loss: n / (K count).

    A count below the deviation of its noise is raised to it, so that noise makes no weight huge.

    Args:
        counts: counts from `count_classes`.
        noise_multiplier: noise multiplier of these counts. 0: they are exact.

    >>> balanced_class_weights({"no": 75.0, "yes": 25.0}, 0.0)
    {'no': 0.6666666666666666, 'yes': 2.0}
    """
    known = {name: max(count, noise_multiplier or 1.0) for name, count in counts.items()}
    total = sum(known.values())
    return {name: total / (len(known) * count) for name, count in known.items()}


def check_balanced(balanced: bool, class_weight: Any) -> None:
    """Raise a SettingError if class weights are given and are also to follow from counts."""
    if balanced and class_weight is not None:
        raise SettingError(
            "balanced weights of classes replace class_weight; leave one of the two out.",
            field="class_weight",
        )
