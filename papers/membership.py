"""Membership inference by group: does a model show who was in its training data?

The attack takes an example for a member if its loss is low (Yeom et al. 2018; by group as in Yu et al.,
Appendix D). Figures come from raw data: for research on public data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_curve

from equidp.evaluation.groups import by_group

Floats = npt.NDArray[np.float64]


def sensitive_success_rates(
    scores: Floats,
    members: npt.NDArray[np.bool_],
    groups: npt.NDArray[np.int64],
    group_names: Sequence[str],
    seed: int = 0,
) -> dict[str, float]:
    """Return the success of an attack in each group and in all: 0.5 is guessing.

    It is the mean share of members and of others classified right on one half of the examples, by the best
    threshold of the other half; NaN for a group with fewer than 4 members or others.

    Args:
        scores: [n]; a higher score means that the attack takes the example for a member.
        members, groups: [n].
        group_names: one per group.
        seed: of the halves.

    >>> members = np.arange(16) >= 8
    >>> sensitive_success_rates(members.astype(float), members, np.zeros(16, dtype=int), ["a"])
    {'a': 1.0, 'all': 1.0}
    """
    return {
        name: _success_rate(scores[chosen & members], scores[chosen & ~members], seed)
        for name, chosen in by_group(groups, group_names)
    }


def _success_rate(inside: Floats, outside: Floats, seed: int) -> float:
    if min(len(inside), len(outside)) < 4:
        return float("nan")
    generator = np.random.default_rng(seed)
    (one, other), (first, second) = (
        np.array_split(generator.permutation(values), 2) for values in (inside, outside)
    )
    truth = np.repeat([True, False], [len(one), len(first)])
    false_rate, true_rate, thresholds = roc_curve(truth, np.concatenate([one, first]))
    threshold = thresholds[np.argmax(true_rate - false_rate)]
    return float(((other >= threshold).mean() + (second < threshold).mean()) / 2)
