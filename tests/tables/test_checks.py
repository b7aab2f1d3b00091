"""A warning names what looks like a slip in a table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from equidp.tables.columns import Columns
from equidp.tables.findings import Level
from equidp.tables.recipe import Recipe

ROWS = np.arange(120)
LABELS = pd.DataFrame({"sex": ["F", "M"] * 60, "ill": ["yes", "no", "no"] * 40})


def of(values, **others) -> list[str]:
    recipe = Recipe(target="ill", group=("sex",))
    return Columns.of(LABELS.assign(lab=values, **others), recipe).sentences(Level.DOUBT)


def test_a_target_of_many_numbers_is_named():
    (found,) = of(ROWS / 7, ill=ROWS % 30 * 1.0)
    assert found.startswith("target 'ill' holds 30 different numbers")


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
