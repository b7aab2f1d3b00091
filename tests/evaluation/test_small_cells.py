"""No sum or difference of shown figures is about a few people; worked out here by trying all of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from equidp.data.dataset import ALL, GroupedDataset, Grouping
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.evaluation.small_cells import FEWEST, SmallCells


def table(counts: list[list[int]], people: np.ndarray | None = None, seed: int = 0) -> GroupedDataset:
    """A test set with so many examples of each group (down) and class (across)."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(counts)), [sum(row) for row in counts])
    targets = np.concatenate([np.repeat(np.arange(len(row)), row) for row in counts])
    inputs = torch.from_numpy(rng.normal(size=(len(groups), len(counts[0])))).float()
    return GroupedDataset(
        inputs,
        torch.from_numpy(targets),
        torch.from_numpy(groups),
        tuple("abcdefgh")[: len(counts)],
        tuple("xyzuvw")[: len(counts[0])],
        people=None if people is None else torch.from_numpy(people),
    )


def same(classes: int) -> nn.Module:
    """A model whose outputs are its inputs."""
    model = nn.Linear(classes, classes, bias=False)
    model.load_state_dict({"weight": torch.eye(classes)})
    return model


def constant(classes: int) -> nn.Module:
    """A model that predicts everything as the first class, whose accuracy counts that class."""
    model = nn.Linear(classes, classes)
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.arange(classes, 0, -1).float())
    return model


def known_sums(shown: Evaluation, test: GroupedDataset) -> list[np.ndarray]:
    """Which cells (group, class) each published number of examples adds up."""
    names, classes = list(test.group_names), list(test.class_names)

    def cells(group: str, its_class: str | None = None) -> np.ndarray:
        found = np.zeros((len(names), len(classes)))
        kept = [name for name in names if name not in shown.small.groups] if group == ALL else [group]
        of = (
            [name for name in classes if name not in shown.small.classes]
            if its_class is None
            else [its_class]
        )
        found[np.ix_([names.index(name) for name in kept], [classes.index(name) for name in of])] = 1
        return found.ravel()

    if shown.groups.empty:
        return []
    rows = [cells(group) for group in shown.groups["group"]]
    rows += [cells(row["group"], row["class"]) for row in shown.recalls.to_dict("records")]
    if len(classes) == 2:
        for each in (shown.calibration, shown.values):
            rows += [cells(group, name) for group in set(each.get("group", ())) for name in classes]
        # The only class that is predicted: accuracy is its share.
        rows += [cells(group, classes[0]) for group in shown.groups["group"]]
    return rows


def smallest_difference(shown: Evaluation, test: GroupedDataset) -> int:
    """The fewest people, above none, of whom some sum of published numbers is."""
    rows = np.array(known_sums(shown, test))
    if not rows.size:
        return 10**6
    every = np.array(list(itertools.product([0.0, 1.0], repeat=rows.shape[1])))
    basis = np.linalg.svd(rows, full_matrices=False)
    span = basis[2][basis[1] > 1e-9]
    inside = np.abs(every - every @ span.T @ span).max(axis=1) < 1e-9
    people = np.arange(len(test)) if test.people is None else test.people.numpy()
    cell = test.groups.numpy() * test.num_classes + test.targets.numpy()
    sizes = (len(np.unique(people[np.isin(cell, np.flatnonzero(subset))])) for subset in every[inside])
    return min((size for size in sizes if size), default=10**6)


@pytest.mark.soak
@pytest.mark.parametrize(
    "counts",
    [
        [[120, 80], [3, 1], [60, 30]],  # one small group: its difference
        [[120, 80], [38, 2], [60, 30]],  # few of a class in a large group
        [[120, 80], [40, 0], [60, 30]],  # nobody of a class: that of all is known
        [[120, 80], [4, 0], [2, 1], [60, 30]],  # two that are small together
        [[120, 80], [9, 4], [9, 4], [60, 30]],  # two that are not
        [[120, 80], [2, 2]],  # two groups
        [[300, 2], [200, 1]],  # few of a class in all
        [[2, 1], [1, 0]],
        [[50, 50], [0, 0], [50, 50]],
        [[100, 0], [0, 3]],  # classes are groups
    ],
)
def test_no_difference_of_figures_is_about_a_few_people(counts):
    test = table(counts)
    for model in (same(2), constant(2)):
        found = evaluate(model, test)
        assert smallest_difference(found.withholding(), test) >= FEWEST


def test_rows_of_one_person_count_once():
    test = table([[120, 80], [60, 60]])
    alike = np.arange(320)
    alike[200:] = 200 + np.arange(120) % 4
    assert SmallCells.of(test) == SmallCells()
    assert SmallCells.of(replace(test, people=torch.from_numpy(alike))).groups == ("b",)


@pytest.mark.soak
def test_gaps_rest_on_no_group_of_few_people_even_where_all_figures_are_shown():
    """A group of one example is answered wholly or not at all: a difference of 100 points."""
    test = table([[50, 50], [1, 0], [50, 50]])
    alone = test.inputs.clone()
    alone[100] = torch.tensor([-9.0, 9.0])
    test = replace(test, inputs=alone)
    found, without = evaluate(same(2), test), test.subset(torch.nonzero(test.groups != 1).flatten())
    without = replace(without, groups=without.groups // 2, group_names=("a", "c"))
    assert found.gaps == evaluate(same(2), without).gaps
    assert found.gaps["equalized_odds_difference"] < 0.5
    assert evaluate(same(2), table([[50, 50], [1, 1]])).gaps == {}


def test_a_class_with_few_people_in_all_is_in_no_figure():
    found = evaluate(same(4), table([[40, 30, 2, 0], [50, 30, 0, 7]])).withholding()
    assert found.small.classes == ("z",)
    assert set(found.recalls["class"]) == {"x", "y", "u"}
    assert found.groups.set_index("group")["count"].to_dict() == {"a": 70, "b": 87, ALL: 157}


def by_columns(cells: np.ndarray, seed: int = 0, people: np.ndarray | None = None) -> GroupedDataset:
    """A test set with so many examples of each combination of columns' values and each class.

    `cells` has a dimension for each column, and one for the class; combinations without examples are no
    groups.
    """
    *sizes, classes = cells.shape
    there = [at for at in np.ndindex(*sizes) if cells[at].sum()]
    counts = [cells[at] for at in there]
    groups = np.repeat(np.arange(len(there)), [each.sum() for each in counts])
    targets = np.concatenate([np.repeat(np.arange(classes), each) for each in counts])
    inputs = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(groups), classes))).float()
    groupings = (
        Grouping(f"column {column}", tuple(f"{column}.{value}" for value in range(size)), tuple(places))
        for column, (size, places) in enumerate(zip(sizes, zip(*there, strict=True), strict=True))
    )
    return GroupedDataset(
        inputs,
        torch.from_numpy(targets),
        torch.from_numpy(groups),
        tuple(", ".join(f"{column}.{value}" for column, value in enumerate(at)) for at in there),
        tuple("xyz")[:classes],
        people=None if people is None else torch.from_numpy(people),
        groupings=tuple(groupings),
    )


def told_of_few(shown: Evaluation, test: GroupedDataset) -> list[tuple[int, ...]]:
    """Sets of cells (combination and class) of fewer than 5 people whose number follows from what is shown.

    It solves for each set whether some sum of shown numbers, each with any factor, counts these cells alone.
    """
    if shown.groups.empty:
        return []
    labels, classes, small = test.groups.numpy(), test.num_classes, shown.small
    kept = [
        name not in small.combinations
        and not any(
            grouping.groups[grouping.places[at]] in small.by_grouping.get(grouping.name, ())
            for grouping in test.groupings
        )
        for at, name in enumerate(test.group_names)
    ]
    left = np.array([[here and name not in small.classes for name in test.class_names] for here in kept])
    cell = labels * classes + test.targets.numpy()
    sums = []
    for row in shown.groups.itertuples():
        inside = np.ones(len(kept), dtype=bool)
        for grouping in test.groupings:
            if row.grouping == grouping.name:
                inside = np.array([grouping.groups[place] == row.group for place in grouping.places])
        assert row.count == np.isin(cell, np.flatnonzero(left & inside[:, None])).sum()  # and no others
        sums += [(left & inside[:, None] & (np.arange(classes) == code)).ravel() for code in range(classes)]
    matrix = np.array(sums, dtype=float).T
    people = np.arange(len(test)) if test.people is None else test.people.numpy()
    of_cell = {int(at): set(people[cell == at]) for at in np.unique(cell) if left.ravel()[at]}
    few = [at for at, each in of_cell.items() if len(each) < FEWEST]
    exists = np.isin(np.arange(matrix.shape[0]), list(of_cell))  # others are known to be empty
    found = []
    for size in range(1, FEWEST):
        for cells in itertools.combinations(few, size):
            if len(set().union(*(of_cell[at] for at in cells))) < FEWEST:
                wanted = np.isin(np.arange(len(matrix)), cells).astype(float)
                factors = np.linalg.lstsq(matrix[exists], wanted[exists], rcond=None)[0]
                if np.abs(matrix[exists] @ factors - wanted[exists]).max() < 1e-8:
                    found.append(cells)
    return found


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_no_number_of_few_people_follows_from_several_groupings_together(seed):
    rng = np.random.default_rng(seed)
    sizes = [*rng.integers(2, 5 if seed % 4 else 4, 3 if seed % 5 == 0 else 2), 3 if seed % 7 == 0 else 2]
    cells = rng.choice([0, 1, 2, 4, 7, 30], sizes, p=[0.35, 0.1, 0.1, 0.1, 0.15, 0.2])
    cells[0] += 5 * (seed % 2)
    test = by_columns(cells, seed)
    owners = torch.from_numpy(rng.integers(0, len(test) * 3 // 4 + 1, len(test)))
    for each in (test, replace(test, people=owners)):
        assert told_of_few(evaluate(same(each.num_classes), each).withholding(), each) == []


def test_a_combination_that_two_columns_give_away_is_left_out_and_a_column_stays_whole():
    """Women less those who are pregnant: three women who are not."""
    cells = np.array([[[60, 40], [0, 0]], [[9, 3], [50, 30]]])  # men, women; not, pregnant
    test = by_columns(cells)
    found = evaluate(same(2), test)
    assert told_of_few(replace(found, small=SmallCells()), test) == [(3,)]
    assert found.small == SmallCells(combinations=(test.group_names[1],))
    shown = found.withholding()
    assert told_of_few(shown, test) == []
    counts = shown.groups.set_index("group")["count"].to_dict()
    assert counts == {"0.0": 100, "0.1": 80, "1.0": 100, "1.1": 80, ALL: 180}


def test_a_group_of_few_people_is_in_no_number_of_another_column():
    """Nor is it found by what is left of a region without it."""
    cells = np.array([[[60, 40], [50, 30], [1, 1]], [[60, 40], [50, 30], [1, 0]]])
    shown = evaluate(same(2), by_columns(cells)).withholding()
    assert shown.small.by_grouping == {"column 1": ("1.2",)}
    counts = shown.groups.set_index("group")["count"].to_dict()
    assert counts == {"0.0": 180, "0.1": 180, "1.0": 200, "1.1": 160, ALL: 360}
