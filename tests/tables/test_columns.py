"""A large table, read in batches and kept on disk, is what it would be in memory."""

from __future__ import annotations

import gzip
import shutil
import warnings
from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pytest
import torch

from equidp.data import Recipe, open_source
from equidp.data.table import split_and_encode, with_private_noise
from equidp.errors import DataError, DataWarning, SettingError
from equidp.tables import cache, columns, read as stream
from equidp.tables.read import Cells
from support.errors import raises_field

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
    monkeypatch.setattr(cache, "_BLOCK", 100)


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
            split, encoder = split_and_encode(open_source(str(path), recipe=recipe), seed)
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


WEIGHTED = RECIPE.with_changes({"bounds": {"score": (-3, 3)}, "weight": "twin"})


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "recipe"),
    [*((kind, RECIPE) for kind in KINDS), ("people.csv", WEIGHTED), ("people.parquet", WEIGHTED)],
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


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
def test_a_kept_table_is_not_read_again_until_its_content_or_recipe_changes(tmp_path, monkeypatch):
    path = save(messy(), tmp_path / "people.csv")
    source = open_source(str(path), recipe=RECIPE)
    first = source.split(0)
    read: list[Path] = []
    monkeypatch.setattr(columns, "read_cells", lambda path, *_, **__: read.append(path) or Cells((), 0, []))
    again = source.split(0)
    assert again.digest() == first.digest()
    assert read == []
    chosen = torch.tensor([5, 3, 800])
    assert torch.equal(first.train.subset(chosen).inputs, first.train.inputs[chosen])
    for recipe in (RECIPE.with_changes({"na": ["-1"]}), RECIPE):
        with raises_field(DataError, "rows"):
            open_source(str(path), recipe=recipe).split(0)
        save(messy().iloc[::-1], path)
    assert len(read) == 2


WRONG = [
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
]
"""Changes of columns, each a new column or a function of the table; and of the recipe."""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "changes", "recipe"),
    [(("people.csv", "people.parquet")[place % 2], *case) for place, case in enumerate(WRONG)],
)
def test_what_is_wrong_with_a_table_on_disk_is_said_as_in_memory(
    kind, changes, recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr(stream, "_BATCH_BYTES", 2**15)
    monkeypatch.setattr(stream, "_BATCH_ROWS", 410)
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


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
def test_private_preprocessing_on_disk_gives_the_encoder_of_memory(tmp_path, monkeypatch):
    path, found = save(messy(), tmp_path / "people.csv"), []
    for limit in ("0", "inf"):
        monkeypatch.setenv("EQUIDP_STREAM_ABOVE", limit)
        found.append(split_and_encode(with_private_noise(open_source(str(path), recipe=RECIPE), 2.0), 0))
    assert found[0][1] == found[1][1]
    assert found[0][0].digest() == found[1][0].digest()


@pytest.fixture
def path(tmp_path):
    return save(messy(), tmp_path / "people.csv")


def split(path, recipe=RECIPE):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return open_source(str(path), recipe=recipe).split(0)


def nothing_is_left(tmp_path) -> bool:
    return not [each for each in (tmp_path / "cache" / "tables").rglob("*") if each.suffix != ".lock"]


def test_a_full_disk_is_refused_before_anything_is_written_and_nothing_is_left(path, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with raises_field(DataError, "folder", "0.0 GB"):
        split(path)
    assert nothing_is_left(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_disk_that_fills_up_while_it_is_written_leaves_nothing(path, tmp_path, monkeypatch):
    opened = Path.open
    full = {"0.numbers": "/dev/full"}

    def open_or_fill(self, *given, **options):
        return opened(Path(full.get(self.name, self)), *given, **options)

    monkeypatch.setattr(Path, "open", open_or_fill)
    with raises_field(DataError, "folder", "'people.csv'", "No space left on device"):
        split(path)
    assert nothing_is_left(tmp_path)


def test_a_place_that_cannot_be_written_is_named(path, tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_CACHE", str(path))
    with raises_field(DataError, "folder", "Not a directory", "EQUIDP_CACHE"):
        split(path)


def test_a_file_that_changes_while_it_is_read_is_refused(path, tmp_path, monkeypatch):
    read_cells = columns.read_cells

    def read_and_grow(*given, **options):
        cells = read_cells(*given, **options)
        with path.open("ab") as file:
            file.write(b"1,2\n")
        return cells

    monkeypatch.setattr(columns, "read_cells", read_and_grow)
    with raises_field(DataError, "path"):
        split(path)
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    ("name", "spoil", "field", "given"),
    [
        ("p.csv.gz", lambda content: gzip.compress(content)[:-200], "path", "cannot be read"),
        ("p.csv", lambda content: b"", "path", "empty"),
        ("p.csv", lambda content: content[:200].splitlines()[0] + b"\n", "rows", "0 rows"),
        ("p.csv", lambda content: content + b"1,2,3\xff\n", "path", "UTF-8"),
        ("p.csv", lambda content: content + b"," * 30 + b"\n", "path", "cannot be read"),
        ("p.csv", lambda content: content.replace(b"age,", b"sex,", 1), "sex", "columns"),
        ("p.csv", lambda content: content.replace(b"age,", b"agee,", 1), "column in na", "'agee'"),
    ],
)
def test_a_file_that_is_no_table_is_refused_as_a_small_one_is(
    name, spoil, field, given, path, tmp_path, monkeypatch
):
    other = tmp_path / name
    other.write_bytes(spoil(path.read_bytes()))
    found = []
    for limit in ("inf", "0"):
        monkeypatch.setenv("EQUIDP_STREAM_ABOVE", limit)
        with raises_field(DataError, field, given) as error:
            split(other)
        found.append(str(error.value))
    if "row" not in found[0] and "byte" not in found[0] and "line" not in found[0]:
        assert found[0] == found[1]
    assert nothing_is_left(tmp_path)


def test_a_folder_whose_files_have_other_columns_is_refused(tmp_path, monkeypatch):
    folder = save(messy(), tmp_path / "people")
    messy(60).drop(columns="lab").assign(labb="1").to_parquet(folder / "part-99.parquet", index=False)
    for limit in ("inf", "0"):
        monkeypatch.setenv("EQUIDP_STREAM_ABOVE", limit)
        with raises_field(DataError, "path", "part-99.parquet", "'lab', 'labb'"):
            split(folder)
    (tmp_path / "empty").mkdir()
    with raises_field(DataError, "path", "no Parquet file"):
        split(tmp_path / "empty")


@pytest.mark.soak
def test_numbers_of_other_widths_in_the_files_of_a_folder_are_one_column(tmp_path, monkeypatch):
    folder = save(messy(), tmp_path / "people")
    messy(60).assign(score=0.5).to_parquet(folder / "part-99.parquet", index=False)
    (on_disk, *_), (in_memory, *_) = both(folder, RECIPE, monkeypatch)
    assert on_disk.digest() == in_memory.digest()


@pytest.mark.soak
def test_a_text_late_in_a_column_of_many_numbers_is_named(path, monkeypatch):
    monkeypatch.setattr(columns, "MOST_TEXTS", 200)
    save(messy().assign(lab=lambda t: t["lab"].mask(t.index == 1100, "high")), path)
    with raises_field(DataError, "column", "'lab'", "200", "row 1,101"):
        split(path)


@pytest.mark.soak
def test_what_is_kept_is_its_owners_listed_and_removed(path, tmp_path, capsys):
    first = split(path)
    assert (tmp_path / "cache" / "tables").stat().st_mode & 0o77 == 0
    store = cache.table_store()
    found = store.entries()
    assert sorted(each.what for each in found) == [
        "the inputs of 'people'",
        "the split of 'people' by seed 0",
        "the table 'people.csv'",
    ]
    assert sum(each.size for each in found) > 1200 * 54 * 4
    store.remove(*found)
    assert store.entries() == []
    assert torch.isfinite(first.train.inputs).all()
    assert split(path).digest() == first.digest()


@pytest.mark.soak
def test_a_killed_process_leaves_no_half_written_table(path, tmp_path):
    digest = split(path).digest()
    store = cache.table_store()
    table = next(each for each in store.entries() if "table" in each.what)
    table.place.unlink()
    (table.folder / "0.numbers").write_bytes(b"")
    assert "unfinished" in [each.what for each in store.entries()]
    assert split(path).digest() == digest
    assert "unfinished" not in [each.what for each in store.entries()]


@pytest.mark.parametrize("limit", ["much", "-1", "nan"])
def test_a_limit_that_is_no_number_is_refused(path, limit, monkeypatch):
    monkeypatch.setenv("EQUIDP_STREAM_ABOVE", limit)
    with raises_field(SettingError, "EQUIDP_STREAM_ABOVE", repr(limit)):
        split(path)


@pytest.mark.soak
def test_readers_of_the_same_new_rows_do_not_remove_each_others_files(tmp_path, monkeypatch):
    path, map_array, others = save(messy(), tmp_path / "people.csv"), columns.mapped_array, []

    def read() -> pd.DataFrame:
        return columns.read_table(path, Recipe(), only=["lab", "job"]).table

    def map_slowly(*given):
        if not others:  # another reader begins between writing and mapping
            others.append(Thread(target=lambda: others.append(read()), daemon=True))
            others[0].start()
            others[0].join(timeout=1)
        return map_array(*given)

    monkeypatch.setattr(columns, "mapped_array", map_slowly)
    found = read()
    others[0].join()
    pd.testing.assert_frame_equal(found, others[1])
    assert not cache.table_store().entries()
