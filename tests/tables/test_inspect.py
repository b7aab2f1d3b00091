"""`inspect_table` finds what would go wrong, settles it by a recipe, and tells no cell of a row."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings, strategies as st

from equidp.data import Recipe, open_source
from equidp.errors import DataError
from equidp.tables.cells import MISSING_TEXTS
from equidp.tables.findings import Kind
from equidp.tables.inspect import inspect_table, recipe_toml
from equidp.tables.parse import MISSING_NUMBERS, RARE_ROWS
from equidp.tables.read import with_format
from support.errors import raises_field

ROWS = 240


def patients(rows: int = ROWS) -> pd.DataFrame:
    index, rng = np.arange(rows), np.random.default_rng(0)
    days = pd.Timestamp("2021-01-01") + pd.to_timedelta(index % 90, unit="D")
    return pd.DataFrame(
        {
            "patient_id": [f"P{1000 + row}" for row in index],
            "admitted": days.strftime("%d.%m.%Y"),
            "Alter": np.where(index % 60 == 7, -999, 18 + index % 70),
            "zip": [f"{1067 + 37 * (row % 30):05d}" for row in index],
            "Einkommen €": [f"{value:,.2f}" for value in rng.lognormal(10, 0.5, rows)],
            "bmi": np.where(index % 80 == 3, "n/a ", np.round(rng.normal(27, 5, rows), 1).astype(str)),
            "pain": np.where(index % 100 == 9, "Unknown", (index % 11).astype(str)),
            "country": "DE",
            "sex": np.where(index % 2, "weiblich", "männlich"),
            "ill": np.where(rng.random(rows) < 0.3, "yes", "no"),
        }
    )


def settled(folder, values, stated=(), **recipe) -> set[tuple[str, str]]:
    pd.DataFrame({"x": values}).to_parquet(folder / "x.parquet")
    report = inspect_table(folder / "x.parquet", Recipe(**recipe, columns={"x": dict(stated)}))
    return {each for found in report.columns[0].findings if found.sure for each in found.options}


DAYS = pd.Series(pd.date_range("2020-01-28", periods=ROWS, freq="D"))


@pytest.mark.parametrize(
    ("values", "option", "value"),
    [
        ([f"id {row}" for row in range(ROWS)], "drop", ""),
        (range(7000, 7000 + ROWS), "drop", ""),
        (["DE"] * ROWS, "drop", ""),
        ([""] * ROWS, "drop", ""),
        (["1,234.5", "12.5", "7"] * 9, "thousands", ","),
        (["1.234,5", "12,5", "7"] * 9, "decimal", ","),
        ([-999.0, *range(20, 60)] * 3, "missing", "-999"),
        ([-1, *range(60)] * 3, "missing", "-1"),
        (["k.A.", *map(str, range(20, 60))] * 3, "missing", "k.A."),
        (["30 kg", *map(str, range(20, 60))] * 3, "kind", "number"),
        (DAYS.dt.strftime("%m/%d/%Y"), "format", "%m/%d/%Y"),
        (DAYS.dt.strftime("%Y%m%d"), "format", "%Y%m%d"),
        (DAYS, "format", "iso"),
        ([float("inf"), 1.0, 2.0] * 9, "missing", "inf"),
        ([[1, 2]] * 9, "drop", ""),
    ],
)
def test_what_would_go_wrong_is_found_with_the_option_that_settles_it(tmp_path, values, option, value):
    assert (option, value) in settled(tmp_path, values)


@pytest.mark.parametrize(
    "values",
    [
        [0, 1] * 20,
        [1.5, 2.5, None] * 20,
        [*range(18, 100)] * 3,
        ["0", "1"] * 20,
        ["a", "b", "unknown"] * 30,
        ["müde, blass", "o.B."] * 20,
        ["1.5", "2,5 oder 3"] * 20,
    ],
)
def test_plain_columns_need_no_option(tmp_path, values):
    assert settled(tmp_path, values) == set()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["p.csv.gz", "p.parquet", "semicolons.csv"])
def test_the_recipe_makes_every_writing_of_a_table_usable_as_it_is(tmp_path, name):
    table, path = patients(), tmp_path / name
    if name.endswith("parquet"):
        table["admitted"] = pd.to_datetime(table["admitted"], dayfirst=True)
        table.to_parquet(path)
    else:
        german = {"sep": ";", "decimal": ",", "encoding": "cp1252"} if name == "semicolons.csv" else {}
        table.to_csv(path, index=False, **german)
    report = inspect_table(path, Recipe(target="ill", group=("sex",)))
    assert report.problems == ()
    (tmp_path / "recipe.toml").write_text(recipe_toml(report), encoding="utf-8")
    recipe = Recipe.read(tmp_path / "recipe.toml")
    assert recipe == report.recipe
    assert set(recipe.drop) == {"patient_id", "country"}
    assert recipe.column("zip").kind == "text"
    split = open_source(str(path), recipe=recipe).split(0)
    # Days, ages, incomes, bmi and pain are one input each, three of them beside a mark of missing values.
    assert split.train.inputs.shape[1] == 2 + 1 + 30 + 1 + 2 + 2


@pytest.mark.soak
def test_people_with_several_rows_are_proposed_as_the_examples(tmp_path):
    table = patients()
    table["patient_id"] = table["patient_id"].to_numpy()[np.arange(ROWS) // 3]
    table.to_csv(tmp_path / "p.csv", index=False)
    report = inspect_table(tmp_path / "p.csv")
    assert (report.recipe.person, report.recipe.rows_per_person) == ("patient_id", 4)
    assert "patient_id" not in report.recipe.drop
    table.insert(0, "visit_id", np.arange(ROWS))  # names rows, and comes first
    table.to_csv(tmp_path / "visits.csv", index=False)
    assert inspect_table(tmp_path / "visits.csv").recipe.person == "patient_id"
    with raises_field(DataError, "column in person", "'zp'", "'zip'"):
        inspect_table(tmp_path / "p.csv", Recipe(person="zp", rows_per_person=1))


@pytest.mark.parametrize(
    ("sep", "charset"),
    [(",", "utf-8"), (";", "latin-1"), ("\t", "cp1252"), ("|", "utf-16"), (" ", "utf-8"), ("^", "cp1252")],
)
def test_separator_and_charset_are_found(tmp_path, sep, charset):
    text = "größe,note,x\n" + '1,"a, b; c",ü\n' * 5 + ("2,„x“,ß\n" if charset == "cp1252" else "")
    table = pd.read_csv(io.StringIO(text))
    table.to_csv(tmp_path / "t.csv", index=False, sep=sep, encoding=charset)
    found = with_format(tmp_path / "t.csv", Recipe())
    assert (found.sep, found.charset) == (sep, charset)


KNOWN = MISSING_TEXTS | {str(code) for code in MISSING_NUMBERS}
secrets = st.one_of(
    st.text("abcdefXYZüß-.,/ ", min_size=4, max_size=12).map(lambda text: f"{text.strip()}q7"),
    st.integers(10_000, 10**9).map(lambda number: str(10 * number + 3)),
    st.floats(1, 1e6).map(lambda number: f"{number:.4f}"),
    st.dates().map(lambda day: day.strftime("%d.%m.%Y")),
)


@pytest.mark.soak
@given(
    rare=st.lists(secrets, min_size=7, max_size=7, unique=True),
    count=st.integers(1, RARE_ROWS - 1),
    data=st.data(),
)
@settings(max_examples=6, deadline=None, phases=[Phase.generate])  # shrinking would take minutes
def test_no_cell_of_a_rare_row_is_told(tmp_path_factory, rare, count, data):
    """Whatever stands in fewer than 20 rows, of inputs, target or group, is in no output."""
    folder, table = tmp_path_factory.mktemp("rare"), patients().astype(object)
    names = list(table.columns[1:])
    for cell in rare:
        name = data.draw(st.sampled_from(names))
        start = data.draw(st.integers(0, ROWS - count))
        table.loc[start : start + count - 1, name] = cell
    kept = table.astype(str).apply(lambda column: column.isin(rare)).to_numpy().any()
    assert kept
    table.to_csv(folder / "p.csv", index=False)
    report = inspect_table(folder / "p.csv", Recipe(target="ill", group=("sex",)))
    said = json.dumps([report.to_plain(), recipe_toml(report)], ensure_ascii=False)
    told = [cell for cell in rare if cell not in KNOWN and cell in said]
    assert told == []
    frequent = pd.read_csv(folder / "p.csv", dtype=str)["ill"].value_counts()
    assert all(name in said for name in frequent[frequent >= RARE_ROWS].index)


def churn(**columns) -> pd.DataFrame:
    """A table whose target the columns may say."""
    index = np.arange(ROWS)
    return pd.DataFrame(
        {
            "age": 20 + index % 47,
            "sex": np.where(index % 2, "F", "M"),
            "ill": np.where(index % 3, "no", "yes"),
        }
    ).assign(**columns)


def findings_of(tmp_path, table, **recipe) -> tuple[set[tuple[str, Kind]], list[str], Recipe]:
    table.to_csv(tmp_path / "p.csv", index=False)
    report = inspect_table(tmp_path / "p.csv", Recipe(target="ill", group=("sex",), **recipe))
    found = {(column.name, each.kind) for column in report.columns for each in column.findings}
    return found, list(report.problems), report.recipe


@pytest.mark.parametrize(
    ("names", "positive"),
    [(("yes", "no"), None), (("0", "1"), None), (("well", "ill"), "ill"), (("ill", "well"), "well")],
)
def test_the_rarer_class_is_proposed_only_where_no_name_says_yes(tmp_path, names, positive):
    """Names that say which class is positive decide it, whatever the shares of the classes."""
    often, rare = names
    table = churn(ill=np.where(np.arange(ROWS) % 3, often, rare))
    assert findings_of(tmp_path, table)[2].positive == positive


def test_a_target_in_several_spellings_is_not_trained_on_until_the_recipe_settles_it(tmp_path):
    table = churn(ill=np.resize(["yes", "no", "Yes", "YES ", "No"], ROWS))
    found, problems, recipe = findings_of(tmp_path, table)
    assert ("ill", Kind.SPELLINGS) in found
    assert (problems, recipe.column("ill").fold) == ([], True)
    with raises_field(DataError, "target"):
        open_source(str(tmp_path / "p.csv"), target="ill", group="sex").split(0)
    for settles in ({"fold": True}, {"kind": "text"}):
        stated = Recipe(target="ill", group=("sex",), columns={"ill": settles})
        classes = open_source(str(tmp_path / "p.csv"), recipe=stated).split(0).train.class_names
        assert len(classes) == (2 if "fold" in settles else 5)
