"""Cells of few people in a test set: groups and classes whose examples are left out of metrics for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt
from scipy import optimize

from equidp.data.dataset import GroupedDataset

FEWEST = 5
"""Fewest people that each metric for others is about."""

Codes = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True)
class SmallCells:
    """Groups and classes of a test set whose examples count in no metric that is given to others.

    Guarantee: consider the examples that are left. All of them together, each group of each grouping, each
    class and each class of a group come from at least `FEWEST` people, or from nobody. With two classes, each
    group has at least as many of both. No sum or difference of these numbers is about fewer people. Examples
    that are left out count in no metric, neither of a group nor of all, so no difference between metrics is
    about them.

    | case | what is left out |
    | --- | --- |
    | a group of few people, or two classes and few of one of them, also none | the group |
    | more classes, and few of one of them, but not none | the group |
    | each group of a grouping has one class, for example if groups are classes | only groups of few people |
    | several groupings, whose numbers give a combination of few people | the combination |
    | more classes, and few of one of them in all that is left | the class |
    | few people are left, or two classes and few of one of them | everything |

    Attributes:
        by_grouping: names of the groups that are left out, in order, by their grouping's name.
        combinations: names of groups of the test set that combine groups, and are left out.
        classes: classes that are left out.
        everything: whether nothing is left.
    """

    by_grouping: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    combinations: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    everything: bool = False

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups that are left out, of all groupings."""
        return tuple(name for names in self.by_grouping.values() for name in names)

    @classmethod
    def of(cls, test: GroupedDataset) -> SmallCells:
        """Return the small cells of a test set of single rows; people count once, with any number of rows."""
        targets, people = test.targets.numpy(), people_of(test)
        shown = [_Shown(each.codes(test.groups).numpy(), len(each.groups)) for each in test.shown_groupings]
        tellings = [each.tells_classes(targets) for each in shown]
        hidden = [set(np.flatnonzero(each.count(people) < FEWEST).tolist()) for each in shown]
        classes, combinations = set[int](), set[int]()
        left = np.ones(len(test), dtype=bool)
        two = test.num_classes == 2
        while True:
            for each, out in zip(shown, hidden, strict=True):
                left &= ~np.isin(each.codes, list(out))
            before = left.sum()
            if not two:
                sizes = _count_people(targets[left], people[left], test.num_classes)
                classes |= {code for code, size in enumerate(sizes) if 0 < size < FEWEST}
                left &= ~np.isin(targets, list(classes))
            for each, out, telling in zip(shown, hidden, tellings, strict=True):
                few = each.count(people, left) < FEWEST
                for code in range(test.num_classes) if telling else ():
                    of_class = each.count(people, left & (targets == code))
                    few |= (of_class < FEWEST) & ((of_class > 0) | two)
                out |= set(np.flatnonzero(few).tolist())
            if left.sum() == before and not any(
                np.isin(each.codes[left], list(out)).any() for each, out in zip(shown, hidden, strict=True)
            ):
                told = _given_away(shown, test.groups.numpy(), targets, people, left)
                if not told:
                    break
                combinations |= told
                left &= ~np.isin(test.groups.numpy(), list(told))
        of_classes = _count_people(targets[left], people[left], test.num_classes)
        return cls(
            {
                each.name: tuple(each.groups[code] for code in sorted(out))
                for each, out in zip(test.shown_groupings, hidden, strict=True)
                if out
            },
            tuple(test.group_names[code] for code in sorted(combinations)),
            tuple(test.class_names[code] for code in sorted(classes)),
            count_people(people[left]) < FEWEST or (two and min(of_classes) < FEWEST),
        )

    def shown_in(self, test: GroupedDataset) -> Bools:
        """Return which examples of the test set count in metrics for others, [n]."""
        left = np.full(len(test), not self.everything)
        for each in test.shown_groupings:
            hidden = [each.groups.index(name) for name in self.by_grouping.get(each.name, ())]
            left &= ~np.isin(each.codes(test.groups).numpy(), hidden)
        left &= ~np.isin(test.groups.numpy(), [test.group_names.index(name) for name in self.combinations])
        left &= ~np.isin(test.targets.numpy(), [test.class_names.index(name) for name in self.classes])
        return left


@dataclass(frozen=True)
class _Shown:
    """A grouping of test examples: the code of each one's group, [n], and the number of groups."""

    codes: Codes
    size: int

    def count(self, people: Codes, among: Bools | slice = slice(None)) -> Codes:
        """Return the number of people of each group among some examples."""
        return _count_people(self.codes[among], people[among], self.size)

    def tells_classes(self, targets: Codes) -> bool:
        """Return whether some group has several classes, so that its classes say more than the group."""
        pairs = np.unique(np.stack([self.codes, targets]), axis=1)
        return bool(pairs.shape[1] > len(np.unique(pairs[0])))


def _given_away(
    shown: Sequence[_Shown], labels: Codes, targets: Codes, people: Codes, left: Bools
) -> set[int]:
    """Return combinations of few people whose number follows from the groups' numbers; none for one grouping.

    By class, it looks for sums and differences of the groups' numbers that are only about combinations of few
    people. They must count some of these once and others not at all, and count fewer than `FEWEST` people
    together.
    """
    told = set[int]()
    for code in np.unique(targets[left]) if len(shown) > 1 else ():
        rows = np.flatnonzero(left & (targets == code))
        occurring, first, place = np.unique(labels[rows], return_index=True, return_inverse=True)
        few = _count_people(place, people[rows], len(occurring)) < FEWEST
        if not few.any():
            continue
        sums = np.concatenate([each.codes[rows[first]] == np.arange(each.size)[:, None] for each in shown])
        pairs = np.unique(np.stack([place, people[rows]]), axis=1)
        _, person, times = np.unique(pairs[1], return_inverse=True, return_counts=True)
        sizes = np.bincount(pairs[0], 1 / times[person])  # of each one's combinations together, a person is 1
        chosen, weights = (np.append(each, np.zeros(len(sums))) for each in (np.ones(len(sizes)), sizes))
        equal = np.hstack([-np.eye(len(sizes)), sums.T])  # a combination is chosen as often as sums count it
        result = optimize.milp(
            weights,
            integrality=chosen,
            bounds=optimize.Bounds(np.where(chosen, 0, -np.inf), np.append(few, np.full(len(sums), np.inf))),
            constraints=[
                optimize.LinearConstraint(equal, 0, 0),
                optimize.LinearConstraint(chosen, 1, np.inf),
                optimize.LinearConstraint(weights, 0, FEWEST - 1e-6),
            ],
        )
        if result.x is not None:
            told |= set(occurring[result.x[: len(sizes)] > 0.5].tolist())
    return told


def few_people_groups(test: GroupedDataset) -> set[str]:
    """Return the names of a test set's groups of few people."""
    sizes = _count_people(test.groups.numpy(), people_of(test), test.num_groups)
    return {name for name, size in zip(test.group_names, sizes, strict=True) if size < FEWEST}


def people_of(test: GroupedDataset) -> Codes:
    """Return the person of each example, [n]. Each is a different person unless the test set has people."""
    people: Codes = np.arange(len(test)) if test.people is None else test.people.numpy()
    return people


def count_people(people: Codes) -> int:
    """Return how many people there are among these."""
    return len(np.unique(people))


def _count_people(codes: Codes, people: Codes, size: int) -> Codes:
    """Return the number of people of each code, [size]."""
    pairs = np.unique(np.stack([codes, people]), axis=1)
    return np.bincount(pairs[0], minlength=size)
