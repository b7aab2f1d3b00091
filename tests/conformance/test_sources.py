"""Conformance of sources: a seed gives one split, facts are public; a new source needs a line in CASES."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from equidp.data import SOURCES, open_source
from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
from equidp.data.origins import ORIGINS

OWN = """
from dataclasses import dataclass
from pathlib import Path

import torch
from equidp import DataSplit, GroupedDataset
from equidp.errors import DataError


@dataclass(frozen=True)
class OwnPoints:
    name: str = "points"

    def split(self, seed):
        if not Path("points.txt").exists():
            raise DataError("points.txt is not there; make it with as many numbers as you like.")
        generator = torch.Generator().manual_seed(seed)
        values = torch.tensor([float(each) for each in Path("points.txt").read_text().split()])
        order = torch.randperm(len(values), generator=generator)
        groups = torch.arange(len(values)) % 2
        data = GroupedDataset(
            values[:, None], (values > 20).long(), groups, ("even", "odd"), ("no", "yes")
        )
        return DataSplit(data.subset(order[10:].sort().values), data.subset(order[:10].sort().values))
"""


def open_table() -> DataSource:
    rows = [f"{20 + i % 37},{'FM'[i % 2]},{'no' if i % 5 < 2 else 'yes'}" for i in range(80)]
    Path("people.csv").write_text("\n".join(["age,sex,answer", *rows]))
    return open_source("people.csv", target="answer", group="sex")


def open_own() -> DataSource:
    Path("own_points.py").write_text(OWN)
    Path("points.txt").write_text(" ".join(map(str, range(40))))
    return open_source("own_points:OwnPoints")


class Case(NamedTuple):
    """A source, and what its data need.

    Attributes:
        make: opens it in the current folder, which is empty.
        origin: the folder of its files below EQUIDP_DATA; "": it needs none.
        one_split: all seeds give one split.
        heavy: takes long.
    """

    make: Callable[[], DataSource]
    origin: str = ""
    one_split: bool = False
    heavy: bool = False


def named(name: str, origin: str, *, one_split: bool = False, heavy: bool = False) -> Case:
    return Case(lambda: open_source(name), origin, one_split=one_split, heavy=heavy)


CASES = {
    "digits": named("digits", ""),
    "mnist": named("mnist", "mnist", heavy=True),
    "mnist-unit": named("mnist-unit", "mnist", heavy=True),
    "mnist-esipova": named("mnist-esipova", "mnist", heavy=True),
    "mnist-whole": named("mnist-whole", "mnist", one_split=True, heavy=True),
    "adult": named("adult", "adult", heavy=True),
    "adult-esipova": named("adult-esipova", "adult", heavy=True),
    "dutch": named("dutch", "dutch", heavy=True),
    "dutch-esipova": named("dutch-esipova", "dutch", heavy=True),
    "cifar10": named("cifar10", "cifar10", one_split=True, heavy=True),
    "a table": Case(open_table),
    "own_points:OwnPoints": Case(open_own),
}
HEAVY = [pytest.param(name, marks=[pytest.mark.soak] * case.heavy) for name, case in CASES.items()]
LIKE_OTHERS = "mnist", "mnist-unit", "adult-esipova", "dutch", "cifar10"
"""Sources that are split by the code of others here, or in files."""


class Seen(NamedTuple):
    """What a test remembers of a split, whose examples may take a gigabyte."""

    digest: str
    facts: tuple[object, ...]


def seen(split: DataSplit) -> Seen:
    train = split.train
    facts = (train.group_names, train.class_names, train.input_shape)
    return Seen(split.digest(), facts)


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch) -> Iterator[None]:
    """The current folder, from which a module of the user's own is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    yield
    for name in {"own_points"} & (set(sys.modules) - before):
        del sys.modules[name]


def test_every_named_source_has_a_case():
    assert set(SOURCES) <= set(CASES)
    assert {case.origin for case in CASES.values()} - {""} == set(ORIGINS)


def open_with_data(name: str, request: pytest.FixtureRequest) -> DataSource:
    """Open a source; skip the test where its files are not there."""
    case = CASES[name]
    if case.origin and not (request.getfixturevalue("real_data") / case.origin).is_dir():
        pytest.skip(f"EQUIDP_DATA holds no {case.origin}/")
    return case.make()


@pytest.mark.parametrize("name", [each for each in HEAVY if each.values[0] not in LIKE_OTHERS])
def test_splits_follow_from_the_seed_and_facts_from_none(name, request):
    source = open_with_data(name, request)
    first, again = seen(source.split(1)), seen(pickle.loads(pickle.dumps(source)).split(1))
    other = seen(source.split(2))
    assert first == again
    assert first.facts == other.facts
    assert (first.digest == other.digest) == CASES[name].one_split


@pytest.mark.parametrize("name", HEAVY)
def test_both_parts_share_names_and_have_examples_of_each_group(name, request):
    source = open_with_data(name, request)
    split = source.split(0)
    for part in (split.train, split.test):
        assert isinstance(part, GroupedDataset)
        sizes = part.group_sizes()
        assert len(sizes) == len(part.group_names) >= 2
        assert sizes.min() >= 1
        assert int(sizes.sum()) == len(part)
        assert part.group_names == split.train.group_names
        assert part.class_names == split.train.class_names
        assert part.inputs.dtype == torch.float32
    assert len(split.train.targets.unique()) == split.train.num_classes
    assert set(source.highlighted_groups or ()) <= set(split.train.group_names)
    assert all(isinstance(note, str) and note for note in split.notes)


@pytest.mark.parametrize("name", CASES)
def test_it_is_small_and_hashable(name):
    source = CASES[name].make()
    again = pickle.loads(pickle.dumps(source))
    assert (again, hash(again), again.name) == (source, hash(source), source.name)
    assert name not in SOURCES or source.name == name
    assert len(pickle.dumps(source)) < 4000
