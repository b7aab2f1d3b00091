"""A large table, read in batches and kept on disk, is what it would be in memory."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from equidp.data import Recipe, open_source, stored, stream
from equidp.data.unencoded import prepared
from equidp.errors import DataError

RECIPE = Recipe(
    target="ill",
    group=("sex", "region"),
    categorical=("zip",),
    numeric=("pulse",),
    date=(("admitted", "%d.%m.%Y"),),
    na=(("age", "-999"),),
    thousands=(("income", ","),),
    missing="category",
)


@pytest.fixture(autouse=True)
def small_batches(tmp_path, monkeypatch):
    """Every file is large, and has several batches."""
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EQUIDP_STREAM_ABOVE", "0")
    monkeypatch.setattr(stream, "_BATCH_BYTES", 2**14)
    monkeypatch.setattr(stream, "_BATCH_ROWS", 150)
    monkeypatch.setattr(stored, "_BLOCK", 100)


def messy(n: int = 1200) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    row = np.arange(n)
    return pd.DataFrame(
        {
            "age": np.where(row % 50 == 3, "-999", (20 + row % 60).astype(str)),
            "income": [f"{value:,.2f}" for value in draw.lognormal(10, 1, n)],
            "lab": [f"{value!r}" for value in draw.normal(size=n).tolist()],
            "score": draw.integers(-3, 3, n),
            "pulse": np.where(row % 40 == 1, "n.d.", draw.integers(50, 100, n).astype(str)),
            "late": np.where(row == n - 2, "unknown", (row % 9).astype(str)),
            "zip": [f"{value:05d}" for value in draw.integers(0, 30, n)],
            "admitted": pd.Timestamp("2020-01-01") + pd.to_timedelta(row % 300, unit="D"),
            "job": np.where(row % 17 == 0, "?", draw.choice(["cook", " clerk ", "it's me", "Ärztin"], n)),
            "twin": row // 600 * 0 + 7,
            "sex": draw.choice(["F", "M"], n),
            "region": draw.choice(["north", "south", None], n, p=[0.6, 0.35, 0.05]),
            "ill": draw.choice(["no", "yes"], n, p=[0.8, 0.2]),
        }
    ).assign(admitted=lambda table: table["admitted"].dt.strftime("%d.%m.%Y"))


def save(table: pd.DataFrame, path: Path) -> Path:
    if path.name.endswith("parquet"):
        table.to_parquet(path)
    elif path.suffix == "":
        path.mkdir()
        for at in range(0, len(table), 500):
            table.iloc[at : at + 500].to_parquet(path / f"part-{at:05d}.parquet", index=False)
    elif path.suffix == ".tab":  # every cell in quotes
        table.to_csv(path, index=False, quoting=1)
    else:
        table.to_csv(path, index=False)
    return path


def both(path: Path, recipe: Recipe, monkeypatch, seed: int = 0):
    """What a source gives on disk, and in memory: split, encoder and warnings."""
    found = []
    for limit in ("0", "inf"):
        monkeypatch.setenv("EQUIDP_STREAM_ABOVE", limit)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            split, encoder = prepared(open_source(str(path), recipe=recipe), seed)
        found.append((split, encoder, [str(each.message) for each in said]))
    return found


KINDS = (
    "people.csv",
    "people.csv.gz",
    "people.csv.zip",
    "people.csv.xz",
    "people.parquet",
    "people",
    "people.tab",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "recipe", [RECIPE, RECIPE.with_changes({"bounds": {"score": (-3, 3)}, "weight": "twin"})]
)
def test_a_table_on_disk_gives_the_split_encoder_inputs_and_warnings_of_memory(
    kind, recipe, tmp_path, monkeypatch
):
    path = save(pd.concat([messy(), messy(300)]), tmp_path / kind)
    (split, encoder, said), (other, known, expected) = both(path, recipe, monkeypatch)
    assert encoder == known
    assert split.digest() == other.digest()
    assert (split.train.group_names, split.train.class_names) == (
        other.train.group_names,
        other.train.class_names,
    )
    assert split.notes == other.notes
    assert said == expected
    assert len(said) >= 2
    if (maps := Path("/proc/self/maps")).exists():
        assert "/train.inputs" in maps.read_text()


@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
def test_a_kept_table_is_not_read_again_until_its_content_or_recipe_changes(tmp_path, monkeypatch):
    path = save(messy(), tmp_path / "people.csv")
    source = open_source(str(path), recipe=RECIPE)
    first = source.split(0)
    read: list[Path] = []
    monkeypatch.setattr(stored, "batches", lambda path, *_, **__: read.append(path) or iter(()))
    again = source.split(0)
    assert again.digest() == first.digest()
    assert read == []
    chosen = torch.tensor([5, 3, 800])
    assert torch.equal(first.train.subset(chosen).inputs, first.train.inputs[chosen])
    for recipe in (RECIPE.with_changes({"na": ["-1"]}), RECIPE):
        with pytest.raises(DataError, match="0 rows"):
            open_source(str(path), recipe=recipe).split(0)
        save(messy().iloc[::-1], path)
    assert len(read) == 2


@pytest.mark.parametrize("kind", ["people.csv", "people.parquet"])
@pytest.mark.parametrize(
    ("changes", "recipe"),
    [
        ({"born": lambda t: [f"2001-02-{1 + at % 28:02d}" for at in range(len(t))]}, {}),
        ({"code": lambda t: [f"{at % 40:03d}" for at in range(len(t))]}, {}),
        ({"name": lambda t: [f"person {at}" for at in range(len(t))]}, {}),
        ({"big": lambda t: np.where(np.arange(len(t)) == 900, np.inf, 1.5)}, {}),
        ({"pulse": lambda t: np.where(np.arange(len(t)) % 3 > 0, "n.d.", "70")}, {}),
        ({"ill": "no"}, {}),
        ({"ill": lambda t: t["ill"].mask(np.arange(len(t)) == 1000)}, {}),
        ({"sex": lambda t: np.where(np.arange(len(t)) == 700, "X", t["sex"])}, {}),
        ({"twin": lambda t: np.where(np.arange(len(t)) == 900, -1, 1)}, {"weight": "twin"}),
        ({}, {"missing": "refuse"}),
        ({"job": 1, "zip": 2}, {"bounds": {"job": (0, 1)}, "target": "age"}),
    ],
)
def test_what_is_wrong_with_a_table_on_disk_is_said_as_in_memory(
    kind, changes, recipe, tmp_path, monkeypatch
):
    path = save(messy().assign(**changes), tmp_path / kind)
    messages = []
    for limit in ("0", "inf"):
        monkeypatch.setenv("EQUIDP_STREAM_ABOVE", limit)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                open_source(str(path), recipe=RECIPE.with_changes(recipe)).split(0)
                messages.append(("", [str(w.message) for w in said]))
            except DataError as error:
                messages.append((str(error), [str(w.message) for w in said]))
    assert messages[0] == messages[1]
    assert messages[0][0] or messages[0][1]
