"""What looks like a slip in a table is said, and what is plain is not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from equidp.tables.checks import doubts, table_findings
from equidp.tables.columns import Columns
from equidp.tables.recipe import Recipe

ROWS = np.arange(120)
LABELS = pd.DataFrame({"sex": ["F", "M"] * 60, "ill": ["yes", "no", "no"] * 40})


def of(values, **others) -> list[str]:
    table = Columns(LABELS.assign(lab=values, **others))
    return doubts(table_findings(table, Recipe(target="ill", group=("sex",))))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (ROWS + 7000.0, "'lab' holds another whole number in each row; if it names the rows, drop it"),
        (
            np.where(ROWS % 9 == 0, -999.0, ROWS / 7),
            "'lab' holds -999 in 14 rows, far from the others; if it stands",
        ),
        ([f"{row % 7},{row % 5}" for row in ROWS], "'lab' holds numbers with decimal commas"),
        ([f"{row + 1},{row % 5}00.5" for row in ROWS], "commas between thousands, taken as categories"),
        (
            ["1,87" if row == 3 else f"{row / 7:.2f}" for row in ROWS],
            "'lab' holds numbers, but 1 of its 120 values are not, the first in row 4: all",
        ),
    ],
    ids=["names of rows", "codes for missing", "decimal commas", "thousands", "a slip among numbers"],
)
def test_a_slip_is_named_with_what_to_do(values, sentence):
    (found,) = of(values)
    assert sentence in found


def test_a_target_of_many_numbers_is_named():
    (found,) = of(ROWS / 7, ill=ROWS % 30 * 1.0)
    assert found.startswith("target 'ill' holds 30 different numbers")


@pytest.mark.parametrize(
    "values",
    [
        ROWS % 5.0,
        ROWS / 7,
        np.where(ROWS % 2, 999.0, 1.0),
        np.where(ROWS % 3, ROWS / 7, np.nan),
        ["a", "b", None] * 40,
        ["1", "b"] * 60,
        ["1 a,b"] * 120,
    ],
    ids=["counts", "measurements", "two numbers", "missing", "texts", "half texts", "commas in texts"],
)
def test_plain_columns_raise_no_doubt(values):
    assert of(values) == []
