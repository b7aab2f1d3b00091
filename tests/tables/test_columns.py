"""Every kind of file gives the same table."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from equidp.data import Recipe, open_source
from equidp.data.table import split_and_encode
from equidp.errors import DataError, DataWarning
from equidp.tables import read as stream, split as split_module
from support.errors import raises_field

RECIPE = Recipe(
    target="ill",
    group=("sex", "region"),
    missing="category",
    columns={
        "zip": {"kind": "text"},
        "pulse": {"kind": "number"},
        "admitted": {"format": "%d.%m.%Y"},
        "age": {"missing": ["-999"]},
        "income": {"thousands": ","},
    },
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Every file has several batches."""
    monkeypatch.setattr(stream, "_BLOCK", 5000)
    monkeypatch.setattr(split_module, "_BLOCK", 100)


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


def read(path: Path, recipe: Recipe):
    """Split, encoder and warnings of a file."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        split, encoder = split_and_encode(open_source(str(path), recipe=recipe), 0)
    return split, encoder, [str(each.message) for each in said]


KINDS = (
    "people.csv.gz",
    "people",
    "people.tab",
)


WEIGHTED = RECIPE.with_changes({"columns": {"score": {"range": (-3, 3)}}, "weight": "twin"})


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "recipe"), [*((kind, RECIPE) for kind in KINDS), ("people.parquet", WEIGHTED)]
)
def test_every_kind_of_file_gives_the_split_encoder_and_warnings_of_a_csv_file(kind, recipe, tmp_path):
    table = pd.concat([messy(), messy(300)])
    split, encoder, said = read(save(table, tmp_path / kind), recipe)
    (tmp_path / "plain").mkdir()
    other, known, expected = read(save(table, tmp_path / "plain" / "people.csv"), recipe)
    assert encoder == known
    assert split.digest() == other.digest()
    assert split.notes == other.notes
    assert said == expected
    assert len(said) >= 2


WRONG = [
    ({"born": lambda t: [f"2001-02-{1 + at % 28:02d}" for at in range(len(t))]}, {}),
    ({"big": lambda t: np.where(np.arange(len(t)) == 900, np.inf, 1.5)}, {}),
    ({"pulse": lambda t: np.where(np.arange(len(t)) % 3 > 0, "n.d.", "70")}, {}),
    ({"ill": lambda t: t["ill"].mask(np.arange(len(t)) == 1000)}, {}),
    ({"twin": lambda t: np.where(np.arange(len(t)) == 900, -1, 1)}, {"weight": "twin"}),
    ({"job": 1, "zip": 2}, {"columns": {"job": {"range": (0, 1)}}, "target": "age"}),
]
"""Changes of columns, each a new column or a function of the table; and of the recipe."""


@pytest.mark.soak
@pytest.mark.parametrize(("changes", "recipe"), WRONG)
def test_what_is_wrong_with_a_table_is_said_alike_of_every_kind_of_file(changes, recipe, tmp_path):
    table = messy().assign(**changes)
    messages = []
    for kind in ("people.csv", "people.parquet"):
        path = save(table.astype(object).where(table.notna(), None), tmp_path / kind)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                open_source(str(path), recipe=RECIPE.with_changes(recipe)).split(0)
                messages.append(("", [str(w.message) for w in said]))
            except DataError as error:
                messages.append((str(error).replace(kind, ""), [str(w.message) for w in said]))
    assert messages[0] == messages[1]
    assert messages[0][0] or messages[0][1]


def split(path, recipe=RECIPE):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return open_source(str(path), recipe=recipe).split(0)


def test_a_folder_whose_files_have_other_columns_is_refused(tmp_path):
    folder = save(messy(), tmp_path / "people")
    messy(60).drop(columns="lab").assign(labb="1").to_parquet(folder / "part-99.parquet", index=False)
    with raises_field(DataError, "path", "part-99.parquet", "'lab', 'labb'"):
        split(folder)
    (tmp_path / "empty").mkdir()
    with raises_field(DataError, "path", "no Parquet file"):
        split(tmp_path / "empty")


@pytest.mark.soak
def test_numbers_of_other_widths_in_the_files_of_a_folder_are_one_column(tmp_path):
    folder = save(messy(), tmp_path / "people")
    messy(60).assign(score=0.5).to_parquet(folder / "part-99.parquet", index=False)
    one = save(pd.concat([messy(), messy(60).assign(score=0.5)]), tmp_path / "people.csv")
    assert read(folder, RECIPE)[1] == read(one, RECIPE)[1]
    assert split(folder).digest() == split(one).digest()
