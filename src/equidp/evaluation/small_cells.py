"""Cells of few people in a test set: groups and classes whose examples are left out of metrics for others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt
import torch

from equidp.data.dataset import GroupedDataset

FEWEST = 5
"""Fewest people that each metric for others is about."""

Codes = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True)
class SmallCells:
    """Groups and classes of a test set whose examples count in no metric that is given to others.

    Guarantee: of the examples that are left, all together, each group, each class and each class of a group
    are of at least `FEWEST` people, or of nobody; of two classes, each group has as many of both. What is
    left out is in no metric, neither of a group nor of all, so no difference between metrics is about it.

    | case | what is left out |
    | --- | --- |
    | a group of few people, or two classes and few of one of them, also none | the group |
    | more classes, and few of one of them, but not none | the group |
    | each group is of one class, such as where groups are the classes | groups of few people alone |
    | more classes, and few of one of them in all that is left | the class |
    | few people are left, or two classes and few of one of them | everything |

    Attributes:
        tiny: groups of few people.
        groups: those, and others that are left out, in the order of the test set's groups.
        classes: that are left out.
        everything: whether nothing is left.
    """

    tiny: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    everything: bool = False

    @classmethod
    def of(cls, test: GroupedDataset) -> SmallCells:
        """Return those of a test set of single rows; people are counted once, whatever their rows."""
        groups, people = test.groups.numpy(), people_of(test)
        targets = test.targets.numpy()
        pairs = np.unique(np.stack([groups, targets]), axis=1)
        by_class = test.num_classes > 1 and pairs.shape[1] > len(np.unique(pairs[0]))
        least = 0 if test.num_classes == 2 else 1  # people of a class that are few; of two classes also none
        tiny = [code for code in range(test.num_groups) if count_people(people[groups == code]) < FEWEST]
        left = ~np.isin(groups, tiny)
        groups_out, classes_out = set(tiny), set[int]()
        while True:
            before = left.sum()
            if test.num_classes > 2:
                sizes = {
                    code: count_people(people[left & (targets == code)]) for code in range(test.num_classes)
                }
                classes_out |= {code for code, size in sizes.items() if 0 < size < FEWEST}
                left &= ~np.isin(targets, list(classes_out))
            for code in set(range(test.num_groups)) - groups_out:
                members = left & (groups == code)
                sizes = {
                    each: count_people(people[members & (targets == each)])
                    for each in range(test.num_classes)
                }
                few_of_a_class = by_class and any(least <= size < FEWEST for size in sizes.values())
                if count_people(people[members]) < FEWEST or few_of_a_class:
                    groups_out.add(code)
            left &= ~np.isin(groups, list(groups_out))
            if left.sum() == before:
                break
        two = [count_people(people[left & (targets == code)]) for code in range(test.num_classes)]
        return cls(
            tuple(test.group_names[code] for code in tiny),
            tuple(test.group_names[code] for code in sorted(groups_out)),
            tuple(test.class_names[code] for code in sorted(classes_out)),
            count_people(people[left]) < FEWEST or (test.num_classes == 2 and min(two) < FEWEST),
        )

    def left_in(self, test: GroupedDataset) -> torch.Tensor:
        """Return the indices of the examples of the test set that count in metrics for others."""
        kept = ~np.isin(test.groups.numpy(), [test.group_names.index(name) for name in self.groups])
        if self.classes:
            kept &= ~np.isin(test.targets.numpy(), [test.class_names.index(name) for name in self.classes])
        return torch.from_numpy(np.flatnonzero(kept & (not self.everything)))

    def without(self, test: GroupedDataset) -> GroupedDataset:
        """Return the test set with the examples of `left_in` and their groups alone."""
        rest = test.subset(self.left_in(test))
        names = [name for name in test.group_names if name not in self.groups]
        codes = torch.tensor([names.index(name) if name in names else -1 for name in test.group_names])
        return replace(rest, groups=codes[rest.groups], group_names=tuple(names))


def people_of(test: GroupedDataset) -> Codes:
    """Return whose each example is, [n]; each is of another person unless the test set says it."""
    people: Codes = np.arange(len(test)) if test.people is None else test.people.numpy()
    return people


def count_people(people: Codes) -> int:
    """Return how many people there are among these."""
    return len(np.unique(people))
