"""Every cell of a column is counted, of whatever type, and what is not read as written is a finding."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from equidp.data import Recipe
from equidp.tables.findings import Kind, Level, sentence
from equidp.tables.parse import Parsed, parse

DAYS = pd.Series(pd.to_datetime([None, "2020-01-01", "2020-02-03", None, "2020-03-04"]))
NUMBER = Recipe(columns={"x": {"kind": "number"}})
ROWS = np.arange(600)


def parsed(column, recipe: Recipe = Recipe()) -> Parsed:
    return parse("x", pa.Table.from_pandas(pd.DataFrame({"x": column}))["x"], recipe)


@pytest.mark.parametrize("column", [DAYS, DAYS - DAYS[1]])
def test_times_that_are_said_to_be_numbers_are_refused_with_the_count_of_their_values(column):
    found = parsed(column, NUMBER)
    assert found.absent == {"": 2}
    assert found.values is None
    (finding,) = found.findings
    assert (finding.kind, finding.rows, finding.of, finding.first) == (Kind.UNREADABLE, 3, 3, 1)
    (later,) = parsed(column[1:].reset_index(drop=True), NUMBER).findings
    assert later == dataclasses.replace(finding, first=0)


@pytest.mark.parametrize(
    ("column", "recipe", "known"),
    [
        (pd.Series([None, 1.5, 2.0, None, -9.0]), Recipe(), 3),
        (pd.Series([None, 1.5, 2.0, None, -9.0]), Recipe(columns={"x": {"missing": "-9"}}), 2),
        (pd.Series([1, 2, 3, 4, 5]), Recipe(), 5),
        (pd.Series([None, 1, 2, None, 3], dtype="Int64"), Recipe(), 3),
        (DAYS, Recipe(columns={"x": {"kind": "date"}}), 3),
        (DAYS, Recipe(columns={"x": {"kind": "date", "missing": "2020-02-03"}}), 2),
    ],
)
def test_cells_of_typed_columns_are_counted(column, recipe, known):
    found = parsed(column, recipe)
    assert found.numeric
    assert found.values.notna().sum() == known
    assert found.absent == ({"": 5 - known} if known < 5 else {})


def turns(*cells):
    return [cells[row % len(cells)] for row in ROWS]


DRAW = np.random.default_rng(0)
MEASURED = DRAW.normal(9, 1.2, 600).clip(5.5, 13).round(1)
PIECES = np.array(["pain", "cough", "fever\nrest", '"quoted"', "follow-up", "rest; sleep"])
NOTES = [", ".join(DRAW.choice(PIECES, 6)) for _ in ROWS]
LATER = [f"{1 + row % 28:02d}/{1 + row % 12:02d}/{2019 + row % 3}" for row in ROWS]
NAMED = {
    "k": ([f"{row / 10:.1f}k" for row in ROWS], Kind.MARKS, (("kind", "number"),)),
    "k and M": (turns("1.5k", "2M", "300"), Kind.MARKS, (("kind", "number"),)),
    "ids beyond floats": ([f"{row:07d}E{590000 + row}" for row in ROWS], Kind.ROW_NAMES, (("drop", ""),)),
    "free text": (NOTES, Kind.MANY_TEXTS, (("drop", ""),)),
    "a cell of 200,000 signs": (["x" * 200_000, *NOTES[1:]], Kind.MANY_TEXTS, (("drop", ""),)),
    "zero days": (
        turns("00/00/0000", *LATER[:80]),
        Kind.DATES,
        (("format", "%d/%m/%Y"), ("missing", "00/00/0000")),
    ),
    "days and months": (turns("03/04/2020", "05/06/2021"), Kind.DATES, (("format", "%d/%m/%Y"),)),
    "-1 among measured values": (np.where(ROWS % 30, MEASURED, -1), Kind.STAND_IN, (("missing", "-1"),)),
    "-1 below wide values": (np.where(ROWS % 30, MEASURED**3, -1), Kind.STAND_IN, (("missing", "-1"),)),
    "999998": (np.where(ROWS % 9, ROWS * 150, 999998), Kind.STAND_IN, (("missing", "999998"),)),
    "decimal commas": ([f"{value}".replace(".", ",") for value in MEASURED], Kind.MARKS, (("decimal", ","),)),
    "leading zeros": (turns("007", "012", "123"), Kind.CODES, (("kind", "text"),)),
    "spellings": (turns("north", "North ", "south"), Kind.SPELLINGS, (("fold", ""),)),
    "names of rows": ([f"p{row}" for row in ROWS], Kind.ROW_NAMES, (("drop", ""),)),
}


@pytest.mark.parametrize("what", NAMED)
def test_what_may_mean_something_else_is_named_with_column_count_and_lines(what):
    cells, kind, options = NAMED[what]
    (found,) = [each for each in parsed(cells).findings if each.kind is kind]
    assert found.options == options
    said = sentence(found, "x")
    assert "'x'" in said
    assert found.lines("x") in said
    assert any(character.isdigit() for character in said)


def test_k_and_m_are_thousands_and_millions():
    values = parsed(["1.5k", "$2M", "300", "7 Mio. €", "5 kg"], NUMBER).values
    assert values.tolist() == [1500, 2e6, 300, 7e6, 5]


def test_zeros_of_either_sign_are_one_number():
    assert parsed(turns("0.0", "-0.0", "1.5")).findings == ()


def test_a_class_in_one_row_is_said_and_not_named():
    (found,) = parse(
        "x", pa.chunked_array([["no"] * 30 + ["yes"] * 30 + ["yess"]]), Recipe(target="x")
    ).findings
    assert found.level is Level.DOUBT
    assert "target 'x' has 1 class of fewer than 20 rows each, in 1 row" in sentence(found, "x")
    assert "yess" not in sentence(found, "x")


odd_cells = st.sampled_from(
    [
        *(
            "",
            "?",
            "NA",
            "1",
            "007",
            "2.5",
            "2,5",
            "-3e300",
            "1e999",
            "inf",
            "nan",
            "é",
            '"',
            "k",
            "1k",
            "5 %",
        ),
        *("2020-01-01", "00/00/0000", "1.234,5", " ", "-999", "x\ny", "3E2", "+49", "12345678901234567"),
    ]
)


@given(
    cells=st.lists(odd_cells, min_size=1, max_size=12),
    kind=st.sampled_from([None, "number", "text", "date"]),
)
@settings(max_examples=60, deadline=None)
def test_no_cell_is_lost_without_a_finding(cells, kind):
    """A cell is its number, its text or missing; of a cell that is read as missing, something is said."""
    recipe = Recipe(columns={"x": {"kind": kind}})
    found = parse("x", pa.chunked_array([cells]), recipe)
    if found.values is None:
        assert any(each.level is Level.PROBLEM for each in found.findings)
        return
    missing = found.values.isna().to_numpy()
    counted = sum(found.absent.values())
    unreadable = sum(each.rows for each in found.findings if each.kind is Kind.UNREADABLE and kind)
    assert missing.sum() == counted + unreadable
    for cell, value, gone in zip(cells, found.values, missing, strict=True):
        if not gone and isinstance(value, str):
            assert value == cell.strip()
