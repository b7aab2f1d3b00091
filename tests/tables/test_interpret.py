"""Evidence counts every cell of a column, of whatever type, and findings follow from it."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from equidp.data import Recipe
from equidp.tables.checks import problems_of, table_findings
from equidp.tables.columns import interpret_cells
from equidp.tables.findings import Kind
from equidp.tables.interpret import ColumnRecipe, Evidence, Meaning, examine, interpret
from equidp.tables.read import Cells

DAYS = pd.Series(pd.to_datetime([None, "2020-01-01", "2020-02-03", None, "2020-03-04"]))


def find(column: pd.Series, recipe: Recipe = Recipe()) -> tuple[Evidence, Meaning]:
    """Evidence of a column, and its meaning."""
    rules = ColumnRecipe.of("x", recipe)
    evidence = examine(column, rules)[1]
    return evidence, interpret(evidence, rules)


@pytest.mark.parametrize("column", [DAYS, DAYS - DAYS[1]])
def test_times_that_are_said_to_be_numbers_are_refused_with_the_count_of_their_values(column):
    evidence, meaning = find(column, Recipe(numeric=("x",)))
    assert (evidence.known, evidence.absent) == (3, {"": 2})
    (found,) = meaning.findings
    assert (found.kind, found.rows, found.of, found.first) == (Kind.UNREADABLE, 3, 3, 1)
    assert meaning.unusable
    (later,) = find(column[1:].reset_index(drop=True), Recipe(numeric=("x",)))[1].findings
    assert later == dataclasses.replace(found, first=0)


@pytest.mark.parametrize("empty", [pd.Series([pd.NaT] * 5), pd.Series(pd.to_timedelta([None] * 5))])
def test_times_without_any_value_are_dates_by_type_or_numbers_as_is_said(empty):
    (found,) = find(empty)[1].findings
    assert found.settles_by("date")
    assert find(empty, Recipe(numeric=("x",)))[1] == Meaning(True, absent={"": 5})
    table = interpret_cells(Cells.of(pd.DataFrame({"x": empty})), Recipe(numeric=("x",))).table
    assert table["x"].dtype == float
    assert table["x"].isna().all()


@pytest.mark.parametrize(
    ("column", "recipe", "known"),
    [
        (pd.Series([None, 1.5, 2.0, None, -9.0]), Recipe(), 3),
        (pd.Series([None, 1.5, 2.0, None, -9.0]), Recipe(na=(("x", "-9"),)), 2),
        (pd.Series([1, 2, 3, 4, 5]), Recipe(), 5),
        (pd.Series([None, 1, 2, None, 3], dtype="Int64"), Recipe(), 3),
        (DAYS, Recipe(date=(("x", "iso"),)), 3),
        (DAYS, Recipe(date=(("x", "iso"),), na=(("x", "2020-02-03"),)), 2),
    ],
)
def test_cells_of_typed_columns_are_counted(column, recipe, known):
    evidence, meaning = find(column, recipe)
    assert evidence.known == known
    assert evidence.absent == ({"": 5 - known} if known < 5 else {})
    assert meaning == Meaning(True, absent=evidence.absent)


@pytest.mark.parametrize(
    ("texts", "further", "row"),
    [
        (("1", "b"), {"bounds": (("x", 0, 1),)}, "in row 2"),
        (("12345678901234567", "12345678901234568"), {"bounds": (("x", 0, 1),)}, ""),
    ],
)
def test_a_refusal_names_the_first_text_only_where_one_is_known(texts, further, row):
    table = pd.DataFrame({"x": texts * 10, "sex": ["F", "M"] * 10, "ill": ["no", "yes"] * 10})
    recipe = Recipe(**{"target": "ill", "group": ("sex",), **further})
    read = interpret_cells(Cells.of(table), recipe)
    problems = problems_of(read, recipe, table_findings(read, recipe))
    (problem,) = [each for each in problems if "'x'" in each]
    assert row in problem
    assert row or "row" not in problem
