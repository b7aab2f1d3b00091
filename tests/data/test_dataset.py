"""Subsets of a dataset, and bad data that is refused when it is made."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.errors import DataError
from support.errors import raises_field


def dataset(n: int = 6, **changes) -> GroupedDataset:
    given = {
        "inputs": torch.arange(3.0 * n).reshape(n, 3),
        "targets": torch.arange(n) % 2,
        "groups": torch.arange(n) % 3,
        "group_names": ("a", "b", "c"),
        "class_names": ("no", "yes"),
    }
    return GroupedDataset(**{**given, **changes})


def test_subsets_and_sizes():
    part = dataset(people=torch.tensor([7, 7, 7, 8, 8, 9])).subset(torch.tensor([5, 0]))
    assert part.people.tolist() == [9, 7]
    assert part.inputs[:, 0].tolist() == [15.0, 0.0]
    assert part.groups.tolist() == [2, 0]
    assert part.group_sizes().tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("indices", "rows"),
    [
        ([5, 0], [5, 0]),
        (np.array([-1, 0]), [5, 0]),
        (slice(4, None), [4, 5]),
        ([False] * 4 + [True] * 2, [4, 5]),
    ],
)
def test_subsets_take_indices_as_torch_does(indices, rows):
    part = dataset(people=torch.arange(6)).subset(indices)
    assert part.people.tolist() == rows
    assert not part.repeats_rows


@pytest.mark.parametrize("indices", [[1, 1], np.array([0, -6]), torch.tensor([5, 2, -1])])
def test_subsets_that_take_a_row_twice_have_a_mark_of_it(indices):
    part = dataset().subset(indices)
    assert part.repeats_rows
    assert part.subset([0]).repeats_rows


@pytest.mark.soak
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"targets": torch.zeros(5, dtype=torch.int64)}, "targets"),
        ({"groups": torch.zeros(6)}, "groups"),
        ({"groups": torch.full((6,), 3)}, "groups"),
        ({"group_names": ("a", "b", "all")}, "group_names"),
        ({"group_names": ("a", "b", "a")}, "group_names"),
        ({"targets": torch.full((6,), 2)}, "targets"),
        ({"inputs": torch.full((6, 3), torch.nan)}, "inputs"),
        ({"people": torch.zeros(6)}, "people"),
    ],
)
def test_bad_data_is_named(changes, field):
    with raises_field(DataError, field):
        dataset(**changes)


def test_inputs_of_several_tensors_are_held_together():
    ids, mask = torch.arange(12).reshape(4, 3), torch.ones(4, 3)
    few = GroupedDataset(
        {"ids": ids, "mask": mask}, torch.arange(4) % 2, torch.zeros(4).long(), ("a",), ("n", "y")
    )
    assert len(few) == 4
    assert few.subset(torch.tensor([2, 0])).inputs["ids"].tolist() == [[6, 7, 8], [0, 1, 2]]
    assert few.to("cpu").inputs["mask"].shape == (4, 3)
    other = dataclasses.replace(few, inputs={"ids": ids, "mask": 2 * mask})
    digests = [DataSplit(part, part).digest() for part in (few, other)]
    assert digests[0] != digests[1]
    with raises_field(DataError, "inputs"):
        few.one_tensor  # noqa: B018
