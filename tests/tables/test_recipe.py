"""A recipe is stated once, checked when made, and reads every file in the same way."""

from __future__ import annotations

import tomllib

import numpy as np
import pandas as pd
import pytest

from equidp.data import open_source
from equidp.errors import DataError, SettingError
from equidp.tables.recipe import Column, Recipe, toml_key, toml_value
from support.errors import raises_field

WHOLE = Recipe(
    target="ill",
    group=("sex", "region"),
    drop=("id",),
    missing="category",
    test_share=0.3,
    positive="yes",
    sep=";",
    charset="latin-1",
    na=("none",),
    columns={
        "zip": Column(kind="text"),
        "bmi": Column(kind="number"),
        "admitted": Column(format="%d.%m.%Y"),
        "age": Column(missing=("-999", "999"), range=(0, 110)),
        "pay": Column(thousands=","),
        "lab": Column(decimal=","),
    },
)


def test_a_recipe_survives_plain_values_and_a_file(tmp_path):
    assert Recipe.from_plain(WHOLE.to_plain()) == WHOLE
    (tmp_path / "run.toml").write_text(
        '[table]\ntarget = "ill"\ngroup = "sex"\nsep = "\\t"\nna = [-999, "none"]\ndecimal = ","\n'
        '[column."pay €"]\nthousands = "."\n[column.born]\nkind = "date"\n[column.age]\nrange = [0, 110]\n'
        "[privacy]\nepsilon = 3\n"
    )
    read = Recipe.read(tmp_path / "run.toml")
    assert read.na == ("-999", "none")
    assert (read.sep, read.group, read.decimal_of("x")) == ("\t", ("sex",), ",")
    assert (read.thousands_of("pay €"), read.column("born").format) == (".", "iso")
    assert read.ranges == {"age": (0.0, 110.0)}
    assert Recipe.read(tmp_path / "run.toml") == Recipe.from_plain(read.to_plain())


def test_changes_win_over_the_recipe_and_add_to_it():
    changed = WHOLE.with_changes(
        {"group": ["region"], "columns": {"age": {"missing": "-1"}, "bmi": {"kind": "text"}}}
    )
    assert changed.column("age") == Column(missing=("-1",), range=(0, 110))
    assert (changed.column("bmi").kind, changed.column("zip")) == ("text", WHOLE.column("zip"))
    assert changed.group == ("region",)
    assert WHOLE.with_changes({"drop": ["bmi"]}).drop == ("id", "bmi")
    assert WHOLE.with_changes({"person": "id", "rows_per_person": 4}).drop == ()
    assert WHOLE.with_changes({"columns": {"admitted": {"kind": "text"}}}).column("admitted").format is None
    assert WHOLE.with_changes({}) == WHOLE


@pytest.mark.parametrize(
    ("plain", "field"),
    [
        ({"tarjet": "x"}, "field in [table]"),
        ({"columns": {"a": {"knd": "text"}}}, "field in [column.a]"),
        ({"drop": ["a", "a"]}, "column"),
        ({"target": "a", "drop": ["a"]}, "column"),
        ({"columns": {"a": {"kind": "text", "format": "iso"}}}, "format"),
        ({"weight": "a", "columns": {"a": {"range": [0, 1]}}}, "range"),
        ({"decimal": ",", "columns": {"pay": {"thousands": ","}}}, "thousands"),
        ({"decimal": "dot"}, "decimal"),
        ({"columns": {"a": {"format": "dd.mm"}}}, "format"),
        ({"sep": ";;"}, "sep"),
        ({"charset": "latin-9000"}, "charset"),
        ({"columns": {"a": {"range": [1]}}}, "range"),
        ({"missing": "drop"}, "missing"),
        ({"rows_per_person": 3}, "rows_per_person"),
    ],
)
def test_what_cannot_be_is_refused_when_a_recipe_is_made(plain, field):
    with raises_field(SettingError, field):
        Recipe.from_plain(plain)


def test_a_file_that_holds_no_recipe_is_named(tmp_path):
    (tmp_path / "r.toml").write_text("target = ")
    with raises_field(SettingError, "config", "r.toml", "TOML"):
        Recipe.read(tmp_path / "r.toml")
    with raises_field(SettingError, "config", "nowhere.toml"):
        Recipe.read(tmp_path / "nowhere.toml")


def people(rows: int = 60) -> pd.DataFrame:
    index = np.arange(rows)
    return pd.DataFrame(
        {
            "age": 20.0 + index % 40,
            "born": "2001-02-03",
            "tags": [f"tag {row}" for row in index],
            "sex": np.where(index % 2 == 0, "F", "M"),
            "ill": np.where(index % 5 < 2, "yes", "no"),
        }
    )


@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
def test_all_problems_of_a_table_come_at_once_and_wrong_names_before_them(tmp_path):
    path, table = tmp_path / "people.csv", people(1200).assign(age="1,5", since="03/04/2020")
    table.loc[3, "sex"] = None
    table.to_csv(path, index=False)
    with raises_field(DataError, "table", "for 4 reasons") as raised:
        open_source(str(path), target="ill", group="sex").split(0)
    for part in (
        "'born' holds dates in 1,200 rows; say so",
        '([column.born] kind = "date")',
        '([column.since] format = "%d/%m/%Y")',
        "'tags' holds 1,200",
        "'sex': 1",
    ):
        assert part in str(raised.value)
    with raises_field(DataError, "column in target", "'illl'", "'ill'") as raised:
        open_source(str(path), target="illl", group="sexx", drop="x").split(0)
    assert "Did you mean 'sex'" in str(raised.value)
    assert "in drop 'x'" in str(raised.value)
    assert "dates" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "Hb, g/dL", 'say "no"\n\\', "Größe", "\0\x7f"])
def test_toml_reads_names_and_values_as_they_were(text):
    assert tomllib.loads(f"{toml_key(text)} = {toml_value([text])}") == {text: [text]}
