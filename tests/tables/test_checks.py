"""A warning names what looks like a slip in a table; plain tables give none."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from equidp.tables.checks import problems_of
from equidp.tables.columns import Columns
from equidp.tables.findings import Level
from equidp.tables.recipe import Recipe

ROWS = np.arange(120)
LABELS = pd.DataFrame({"sex": ["F", "M"] * 60, "ill": ["yes", "no", "no"] * 40})


def of(values, **others) -> list[str]:
    recipe = Recipe(target="ill", group=("sex",))
    return Columns.of(LABELS.assign(lab=values, **others), recipe).sentences(Level.DOUBT)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            ROWS + 7000.0,
            "'lab' holds another whole number in each of its 120 rows; if it names",
        ),
        (
            np.where(ROWS % 9 == 0, -999.0, ROWS / 7),
            "'lab' holds -999 in 14 rows, apart from the others; if it stands",
        ),
        (
            ["1,87" if row == 3 else f"{row / 7:.2f}" for row in ROWS],
            "but 1 of its 120 values are not, so all become categories, the first in row 4; say",
        ),
    ],
    ids=["names of rows", "codes for missing", "a slip among numbers"],
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


PEOPLE = ROWS % 50 * 1.0


@pytest.mark.parametrize(
    ("name", "values", "seems"),
    [
        ("patient", PEOPLE, True),
        ("id", PEOPLE, True),
        ("customerId", [f"C{row % 50}" for row in ROWS], True),
        ("patient", ROWS * 1.0, False),  # another in each row: named as such
        ("patient", ROWS % 2 * 1.0, False),
        ("visit", PEOPLE, False),
        ("zip_code", PEOPLE, False),
    ],
)
def test_an_input_that_seems_to_name_people_with_several_rows_is_named(name, values, seems):
    """Epsilon would hold for one row of a person, and the model would read who it is."""
    table = LABELS.assign(lab=ROWS % 7.0, **{name: values})

    def doubts_of(**settings):
        recipe = Recipe(target="ill", group=("sex",), **settings)
        read = Columns.of(table.drop(columns=[*settings.get("drop", ())]), recipe)
        return [each for each in read.sentences(Level.DOUBT) if "rows_per_person = 4" in each]

    assert len(doubts_of()) == seems
    if seems:
        assert f"{name!r} seems to name people, 50 of them in 120 rows, and is an input" in doubts_of()[0]
    assert doubts_of(person=name, rows_per_person=2) == []
    assert doubts_of(drop=(name,)) == []


@pytest.mark.parametrize(
    ("values", "span", "sentence"),
    [
        (ROWS * 1.0, (0, 59), "holds numbers outside of its public range, 0 to 59, in 60 of 120 rows, which"),
        (ROWS * 1.0, (0, 115), None),
        (np.where(ROWS % 2, np.nan, ROWS), (30, 200), "in 15 of 60 rows"),
    ],
    ids=["half", "a few", "beside missing ones"],
)
def test_many_numbers_that_a_public_range_clips_are_named(values, span, sentence):
    recipe = Recipe(target="ill", group=("sex",), columns={"lab": {"range": span}})
    said = Columns.of(LABELS.assign(lab=values), recipe).sentences(Level.DOUBT)
    found = [each for each in said if "range" in each]
    assert len(found) == (sentence is not None)
    if sentence is not None:
        assert sentence in found[0]
        assert "([column.lab] range = [LOW, HIGH])" in found[0]


def test_a_target_of_too_many_classes_is_told_what_to_do():
    recipe = Recipe(target="ill", group=("sex",))
    (found,) = problems_of(Columns.of(LABELS.assign(lab=1.0, ill=ROWS / 7), recipe), recipe)
    assert "120 distinct values" in found
    assert "Bin it into classes" in found


@pytest.mark.parametrize(("kept", "settles"), [(1_001, "drop"), (900, "fold")])
def test_spellings_are_proposed_where_they_leave_few_enough_texts(kept, settles):
    texts = [f"ward {at}" for at in range(kept)] + [f"WARD {at}" for at in range(300)]
    table = pd.DataFrame({"lab": texts})
    ((_, found),) = Columns.of(table, Recipe(target="ill")).findings(Level.PROBLEM)
    assert found.settles_by(settles)


def test_a_missing_target_is_named_once_and_not_to_be_made_a_category():
    recipe = Recipe(target="ill", group=("sex",))
    table = LABELS.assign(lab=1.0, ill=["yes", "no", None] * 40)
    (found,) = problems_of(Columns.of(table, recipe), recipe)
    assert "missing in 40 of 120 rows" in found
    assert "--missing" not in found
