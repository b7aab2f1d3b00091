"""Odd files are read as they are, or refused for the reason that they have.

They have something before the header or between quotes, or stand under another name.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from equidp.data import Recipe, open_source
from equidp.data.table import split_and_encode
from equidp.errors import DataError, DataWarning
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.saved import FinishedRun
from equidp.tables import read as stream, split as split_module
from equidp.tables.inspect import inspect_table
from equidp.training.plan import Plan
from support.errors import raises_field

N = 60
LONG = ("12345678901234567", "12345678901234568", "7")
RECIPE = Recipe(target="ill", group=("sex",))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(stream, "_BLOCK", 500)
    monkeypatch.setattr(split_module, "_BLOCK", 13)


def people(rows: int = N) -> pd.DataFrame:
    row = np.arange(rows)
    return pd.DataFrame(
        {
            "age": 20 + row % 37,
            "job": np.array(["cook", "clerk", "nurse"])[row // 2 % 3],
            "sex": np.where(row // 4 % 2, "M", "F"),
            "ill": np.where(row % 7 < 3, "yes", "no"),
        }
    )


TEXT = people().to_csv(index=False)
LINES = TEXT.splitlines()


def read(path: Path, recipe: Recipe = RECIPE):
    """Split, encoder and warnings, or the error's text."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            split, encoder = split_and_encode(open_source(str(path), recipe=recipe), 0)
        except DataError as error:
            return str(error)
    return split.digest(), encoder, [str(each.message) for each in said]


@pytest.mark.soak
@pytest.mark.parametrize(
    "content",
    [
        "\n\n" + TEXT,
        "\ufeff" + TEXT,
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("\n", "\r"),
        TEXT.replace("cook", '"cook"'),
        TEXT.replace(",cook", ', "cook"').replace(",job", ', "job"'),
        TEXT.replace("\n", "\n\n"),
    ],
)
def test_what_stands_before_and_between_rows_changes_nothing(content, tmp_path):
    (tmp_path / "plain.csv").write_text(TEXT)
    path = tmp_path / "odd.csv"
    path.write_text(content, encoding="utf-8", newline="")
    assert read(path) == read(tmp_path / "plain.csv")
    assert inspect_table(path, RECIPE).rows == N


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        (
            "p.csv",
            "# exported in May\n" + TEXT,
            ("row 1 has 4 columns", "'# exported in May'", "before the header"),
        ),
        (
            "p.csv",
            "\n".join([LINES[0], *(f"{line}," for line in LINES[1:])]),
            ("row 1 has 5 columns", "header 4", "ends of rows"),
        ),
        (
            "p.csv",
            "\n".join([*LINES[:5], "1,2,3", *LINES[5:], "1,2,3"]),
            ("row 5 has 3 columns, and the header 4, as have 1 more rows",),
        ),
        ("p.csv", TEXT.replace("cook,F", '"cook,F', 1), ("a double quote in row", "never closed")),
        ("p.csv.gz", TEXT.encode(), ("cannot be read",)),
        ("p.csv", TEXT.replace(",", "^"), ("unknown column", "the only column", "sep")),
        ("p.csv", TEXT.encode("utf-16"), ("byte 1 is not UTF-8", "charset in [table], such as utf-16")),
        ("p.csv", "\n".join(LINES[1:]), ("unknown column", "Put one with the names")),
        ("p.csv", "", ("it is empty",)),
    ],
)
def test_a_file_is_refused_for_the_reason_that_it_has(name, content, parts, tmp_path):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = read(path)
    assert all(part in found for part in parts), found


@pytest.mark.parametrize("mark", ["", '"'])
def test_row_names_without_a_name_are_left_out_and_said(mark, tmp_path):
    path = tmp_path / "odd.csv"
    rows = [f"{mark}{at or ''}{mark},{line}" for at, line in enumerate(LINES)]
    path.write_text("\n".join(rows) + "\n")
    (tmp_path / "plain.csv").write_text(TEXT)
    plain, odd = read(tmp_path / "plain.csv"), read(path)
    assert odd[:2] == plain[:2]
    (said,) = odd[2]
    assert "column 1 has no name" in said
    assert stream.names_of(path, RECIPE) == LINES[0].split(",")
    with pytest.warns(DataWarning, match="column 1 has no name"):
        assert "" not in [each.name for each in inspect_table(path, RECIPE).columns]


def test_chosen_columns_of_a_wide_file_with_quotes_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_BLOCK", 2**17)
    rows, width = 300, 4_000
    path = tmp_path / "wide.csv"
    names = [f"c{place}" for place in range(width)]
    lines = (f'"{row}"' + ",7" * (width - 1) for row in range(rows))
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    cells = stream.read(path, choose=lambda names: [names[-1], names[0]])
    assert cells.to_pydict() == {names[-1]: ["7"] * rows, "c0": [str(row) for row in range(rows)]}


@pytest.mark.soak
@pytest.mark.parametrize("dropped", [(), ("job",)])
def test_rows_between_stray_quotes_are_refused(dropped, tmp_path):
    path, recipe = tmp_path / "p.csv", RECIPE.with_changes({"drop": dropped})
    rows = LINES[1:]
    rows[10], rows[30] = '30,"cook,F,yes', '40,clerk",M,no'
    path.write_text("\n".join([LINES[0], *rows]) + "\n")
    assert "column 'job' holds in row 11 a cell of 21 lines" in read(path, recipe)


@pytest.mark.soak
def test_notes_with_line_ends_are_read_as_they_are_without_a_word(tmp_path):
    path = tmp_path / "p.csv"
    notes = ["one\ntwo, three" if row % 3 else "none" for row in range(N)]
    people().assign(note=notes).to_csv(path, index=False)
    assert read(path)[2] == []
    assert stream.read(path)["note"].to_pylist()[:2] == ["none", "one\ntwo, three"]


@pytest.mark.soak
def test_folders_by_a_code_hold_it_as_a_text_as_one_file_does(tmp_path):
    table = people().assign(department=[("01", "02", None)[row % 3] for row in range(N)])
    for code, rows in table.groupby("department", dropna=False):
        folder = tmp_path / "folder" / f"department={'__HIVE_DEFAULT_PARTITION__' if code != code else code}"
        folder.mkdir(parents=True)
        rows.drop(columns="department").to_parquet(folder / "part-0.parquet", index=False)
    recipe = Recipe(target="ill", group=("department",), missing="category", drop=("sex",))
    for changes, names, says in (
        ({}, ("1", "2", "missing"), 1),
        ({"columns": {"department": {"kind": "text"}}}, ("01", "02", "missing"), 0),
    ):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            train = open_source(str(tmp_path / "folder"), recipe=recipe.with_changes(changes)).split(0).train
        assert train.group_names == names
        assert len(said) == says
        assert all("leading zeros" in str(each.message) for each in said)


def kept_run(path: Path, recipe: Recipe, folder: Path) -> FinishedRun:
    """A run as `open_run` reads it, without its model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        split, encoder = split_and_encode(open_source(str(path), recipe=recipe), 0)
    facts = {"class_names": list(split.train.class_names), "group_names": list(split.train.group_names)}
    facts["groupings"] = [vars(each) for each in split.train.groupings]
    facts["sensitive_data_sha256"] = ""  # new files are not compared with its training rows
    config = TrainConfig(RunData(str(path), recipe), Plan().with_changes(method="sgd"))
    return FinishedRun(folder, config, facts, encoder, None, [], {})  # type: ignore[arg-type]


@pytest.mark.parametrize(("role", "kind"), [("group", ".csv"), ("target", ".parquet")])
@pytest.mark.parametrize(
    ("codes", "fewer", "known_as"),
    [
        (("01", "02", "2A"), ("01", "02"), ("01", "02")),
        (("1", "2", "A"), ("2",), ("2",)),
        (LONG, LONG[1:], LONG[1:]),
        (("1", "2"), ("01", "2.0"), ("1", "2")),
        (("True", "False"), ("True",), ("True",)),
    ],
)
def test_codes_of_new_files_are_read_as_those_of_the_trained_table(
    role, codes, fewer, known_as, kind, tmp_path
):
    def save(name, values):
        cells = [values[row % len(values)] for row in range(N)]
        table = people().assign(x=cells)
        path = tmp_path / f"{name}{kind}"
        table.to_csv(path, index=False) if kind == ".csv" else table.to_parquet(path, index=False)
        return path

    roles = {"group": ("x",), "target": "ill"} if role == "group" else {"group": ("sex",), "target": "x"}
    recipe = Recipe(**roles, drop=("sex",) if role == "group" else ("ill",))
    kept = kept_run(save("all", codes), recipe, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        new = kept.read_grouped(save("new", fewer))
    found = new.groups if role == "group" else new.targets
    names = kept.facts["group_names" if role == "group" else "class_names"]
    assert [names[code] for code in found[: len(fewer)].tolist()] == list(known_as)


def test_a_lacking_column_is_missing_where_that_is_said_and_the_model_has_a_mark_for_it(tmp_path):
    table = people().assign(weight=[None if row % 9 == 0 else 50 + row % 30 for row in range(N)])
    table.loc[::8, "job"] = None
    table.to_csv(tmp_path / "all.csv", index=False)
    kept = kept_run(tmp_path / "all.csv", RECIPE.with_changes({"missing": "category"}), tmp_path)
    table.assign(weight=None, job=None).to_csv(tmp_path / "empty.csv", index=False)
    table.drop(columns=["weight", "job"]).to_csv(tmp_path / "lacking.csv", index=False)
    for name, field in (("lacking.csv", "job, weight"), ("empty.csv", "job")):
        with raises_field(DataError, field, "--lacking job"):
            kept.inputs(tmp_path / name)
    meant = ("job", "weight")
    found = kept.inputs(tmp_path / "lacking.csv", meant)
    assert torch.equal(found, kept.inputs(tmp_path / "empty.csv", meant))
    table.drop(columns="age").to_csv(tmp_path / "without.csv", index=False)
    for lacking in ((), ("age",)):
        with raises_field(DataError, "age", "lacks"):
            kept.inputs(tmp_path / "without.csv", lacking)
