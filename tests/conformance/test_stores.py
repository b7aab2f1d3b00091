"""Conformance of users of a store: results are whole, right, made once; a new user needs a line in CASES."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from comparison.test_compare import Toy
from equidp.comparison.cells import Cell, Curves, run_cells
from equidp.data.features import WithFeatures
from equidp.errors import CacheWarning
from equidp.store import Store, key_of
from equidp.training.plan import Plan
from support.toy import RandomImages

PLAN = Plan(model="logistic", batch_size=40, epochs=1, delta=1e-4)


class Case(NamedTuple):
    """A user of a store.

    Attributes:
        make: computes a result, or reads it, where entries lie below a folder; equal results compare equal.
        others: change of one part that the result follows from -> the same with this change.
        large: entries are checked by sizes alone.
    """

    make: Callable[[Path], Any]
    others: Mapping[str, Callable[[Path], Any]]
    large: bool = False


def squares(folder: Path, numbers: tuple[int, ...] = (1, 2, 3), power: int = 2) -> list[int]:
    """A study of the user's own, as docs/extending.md shows it."""
    store, key = Store(folder), key_of("powers", list(numbers), power)
    entry = store.get(key)
    if entry is None:
        entry = store.put(key, {"powers": np.array(numbers) ** power})
    return entry.array("powers").tolist()


def compared(folder: Path, *, plan: Plan = PLAN, n: int = 240, curves: bool = True) -> Any:
    """Figures and outputs of a cell of a comparison."""
    watches = (Curves(),) if curves else ()
    one = Cell(Toy(n=n), plan.with_usual_noise().resolve(160), 0, "ghost", callbacks=watches)
    (result,) = run_cells([one], folder, 1)
    return result.results.to_dict("list"), len(result.tables), result.outputs.tolist()


def featured(folder: Path, *, seed: int = 0) -> Any:
    """Features of images, which are mapped into memory."""
    os.environ["EQUIDP_CACHE"] = str(folder)
    split = WithFeatures(RandomImages(), "scattering").split(seed)
    return [part.inputs.tolist() for part in (split.train, split.test)]


CASES = {
    "features": Case(
        featured,
        {"data": lambda folder: featured(folder, seed=1)},
        large=True,
    ),
    "a comparison": Case(
        compared,
        {
            "data": lambda folder: compared(folder, n=250),
            "a setting": lambda folder: compared(folder, plan=PLAN.with_changes({"clipping_bound": 0.6})),
            "what is asked": lambda folder: compared(folder, curves=False),
        },
    ),
    "a study": Case(
        squares,
        {
            "data": lambda folder: squares(folder, (1, 2, 4)),
            "a setting": lambda folder: squares(folder, power=3),
        },
    ),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Let a case name the folder of caches, which is what it was after each test."""
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path))


@pytest.fixture(params=["features", "a study", pytest.param("a comparison", marks=pytest.mark.soak)])
def case(request) -> Case:
    return CASES[request.param]


@pytest.fixture
def written(monkeypatch) -> list[str]:
    """Entries, in the order in which they were written."""
    keys, write = [], Store._write

    def note(store, key, *args, **kwargs):
        keys.append(f"{store.folder}/{key}")
        return write(store, key, *args, **kwargs)

    monkeypatch.setattr(Store, "_write", note)
    return keys


def kept(folder: Path) -> list[Path]:
    """All files of entries, which are named by their facts."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    assert all((each.parent / "facts.json").is_file() and "." not in each.parent.name for each in files)
    return files


def test_a_result_is_made_once_and_read_afterwards(case, tmp_path, written):
    first = case.make(tmp_path)
    assert written
    made = list(written)
    assert case.make(tmp_path) == first
    assert written == made
    kept(tmp_path)


def test_each_part_that_a_result_follows_from_changes_the_key(case, tmp_path, written):
    case.make(tmp_path)
    for change, make in case.others.items():
        before = list(written)
        make(tmp_path)
        assert set(written) - set(before), change
    before = list(written)
    for make in (case.make, *case.others.values()):
        make(tmp_path)
    assert written == before


def test_a_damaged_file_is_said_and_the_result_made_again(case, tmp_path):
    expected = case.make(tmp_path)
    for number in range(len(kept(tmp_path))):
        damaged = kept(tmp_path)[number]
        content = damaged.read_bytes()
        cut = case.large or number % 2
        middle = len(content) // 2
        other = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        damaged.write_bytes(content[:-1] if cut else other)
        with pytest.warns(CacheWarning):
            assert case.make(tmp_path) == expected
    assert case.make(tmp_path) == expected
