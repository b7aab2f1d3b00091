"""A recipe is stated once, checked when made, and reads every file in the same way."""

from __future__ import annotations

import tomllib

import numpy as np
import pandas as pd
import pytest

from equidp.data import open_source
from equidp.errors import DataError, SettingError
from equidp.tables.columns import Columns
from equidp.tables.findings import Level
from equidp.tables.read import read
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
        ({"columns": {"a": {"kind": "text", "range": [0, 1]}}}, "range"),
        ({"columns": {"a": {"kind": "number", "fold": True}}}, "fold"),
        ({"target": "a", "columns": {"a": {"kind": "date"}}}, "kind"),
        ({"weight": "a", "columns": {"a": {"range": [0, 1]}}}, "range"),
        ({"decimal": ",", "columns": {"pay": {"thousands": ","}}}, "thousands"),
        ({"decimal": "dot"}, "decimal"),
        ({"columns": {"a": {"format": "dd.mm"}}}, "format"),
        ({"columns": {"a": {"format": "%d.%m.%Y|day"}}}, "format"),
        ({"sep": ";;"}, "sep"),
        ({"charset": "latin-9000"}, "charset"),
        ({"columns": {"a": {"range": [1]}}}, "range"),
        ({"columns": {"a": {"range": [2, 1]}}}, "range"),
        ({"columns": [1]}, "columns"),
        ({"columns": {"a": "text"}}, "[column.a]"),
        ({"drop": [True]}, "drop"),
        ({"target": 1}, "target"),
        ({"missing": "drop"}, "missing"),
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


RAW = pd.DataFrame(
    {
        "zip": ["01067", " 99084"],
        "pay": ["28,746.52", "1,234"],
        "lab": ["1,5", "-2"],
        "age": ["44", "-999.0"],
        "bmi": ["27.1", "n/a "],
        "admitted": ["02.01.2000", "31.12.1999"],
        "notes": ["müde, blass", "none"],
    }
)


def interpreted(raw: pd.DataFrame, recipe: Recipe) -> Columns:
    return Columns.of(raw, recipe)


def test_each_column_is_understood_as_stated():
    table = interpreted(RAW, WHOLE).table
    assert table["zip"].tolist() == ["01067", "99084"]
    assert table["pay"].tolist() == [28746.52, 1234.0]
    assert table["lab"].tolist() == [1.5, -2.0]
    assert table["admitted"].tolist() == [1.0, -1.0]
    assert table["age"].tolist()[0] == 44.0
    assert all(table[name].isna()[1] for name in ("age", "bmi", "notes"))


def test_without_a_recipe_marks_and_codes_are_texts_and_numbers():
    table = interpreted(RAW.drop(columns="admitted"), Recipe()).table
    assert table["zip"].tolist() == [1067.0, 99084.0]
    notes = interpreted(RAW[["zip", "lab"]], Recipe()).sentences(Level.DOUBT)
    assert len(notes) == 2
    assert "'zip' holds numbers with leading zeros" in notes[0]
    assert "'lab' holds numbers with decimal commas" in notes[1]
    assert table["pay"].tolist() == ["28,746.52", "1,234"]
    assert table["age"].tolist() == [44.0, -999.0]


@pytest.mark.parametrize("text", ["1,23", "12,34.5", "1,2345", ",123", "1.234,5", "0,1", "1,234,56"])
def test_marks_between_thousands_stand_between_groups_of_three_digits(text):
    table = interpreted(pd.DataFrame({"x": [text]}), Recipe(thousands=",")).table
    assert table["x"].tolist() == [text]


def test_some_unreadable_cells_count_as_missing_and_are_counted_and_many_are_refused():
    raw = pd.DataFrame(
        {"bmi": ["27.1"] * 8 + ["tall", "wide"], "day": ["2020-13-01"] * 6 + ["2020-01-01"] * 4}
    )
    read = interpreted(raw, Recipe(columns={"bmi": {"kind": "number"}, "day": {"kind": "date"}}))
    assert read.table["bmi"].isna().sum() == 2
    assert (
        "'bmi' is to hold numbers, but 2 of its 10 values are not and count as missing, the first in row 9"
        in read.sentences(Level.DOUBT)[0]
    )
    assert (
        "'day' is to hold dates (iso), but 6 of its 10 values are not, the first in row 1"
        in read.sentences(Level.PROBLEM)[0]
    )


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


def test_a_recipe_that_does_not_fit_the_file_names_its_columns(tmp_path):
    people().to_csv(tmp_path / "people.csv", index=False)
    recipe = Recipe(
        target="ill", group=("sex",), columns={"agee": {"missing": "1"}, "bron": {"kind": "date"}}
    )
    with raises_field(DataError, "column in columns", "'bron'", "'born'", "'agee'", "'age'"):
        open_source(str(tmp_path / "people.csv"), recipe=recipe).split(0)


@pytest.mark.parametrize(("sep", "charset"), [(";", "latin-1"), ("\t", "utf-8"), ("|", "utf-16")])
def test_other_separators_and_charsets_are_read(tmp_path, sep, charset):
    table = people().assign(größe="süß")
    table.to_csv(tmp_path / "p.csv", index=False, sep=sep, encoding=charset)
    found = read(tmp_path / "p.csv", Recipe(sep=sep, charset=charset))
    assert found.column_names == list(table.columns)
    assert set(found["größe"].to_pylist()) == {"süß"}


@pytest.mark.parametrize("text", ["", "Hb, g/dL", 'say "no"\n\\', "Größe", "\0\x7f"])
def test_toml_reads_names_and_values_as_they_were(text):
    assert tomllib.loads(f"{toml_key(text)} = {toml_value([text])}") == {text: [text]}
