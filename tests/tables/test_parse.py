"""Every cell of a column is counted, and what is not read as written is a finding."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
from hypothesis import given, settings, strategies as st

from equidp.data import Recipe
from equidp.tables.findings import Kind, Level, sentence
from equidp.tables.parse import Parsed, parse

NUMBER = Recipe(columns={"x": {"kind": "number"}})


def parsed(column, recipe: Recipe = Recipe()) -> Parsed:
    return parse("x", pa.Table.from_pandas(pd.DataFrame({"x": column}))["x"], recipe)


def test_k_and_m_are_thousands_and_millions():
    values = parsed(["1.5k", "$2M", "300", "7 Mio. €", "5 kg"], NUMBER).values
    assert values.tolist() == [1500, 2e6, 300, 7e6, 5]


def test_zeros_of_either_sign_are_one_number():
    assert parsed(["0.0", "-0.0", "1.5"] * 9).findings == ()


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
