"""Any table becomes grouped data, or an error that says what to do."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from equidp.data import open_source
from equidp.data.table import split_and_encode
from equidp.errors import DataError, EquidpError, SettingError
from equidp.tables.recipe import Recipe
from equidp.tables.split import draw_rows, rows_by_content
from support.errors import raises_field


def people(n: int = 60) -> pd.DataFrame:
    index = np.arange(n)
    return pd.DataFrame(
        {
            "age": 20.0 + index % 40,
            "job": np.where(index % 3 == 0, "clerk", "cook"),
            "sex": np.where(index % 2 == 0, "F", "M"),
            "race": np.where(index % 4 < 2, "A", "B"),
            "income": np.where(index % 5 < 2, ">50K", "<=50K"),
        }
    )


@pytest.fixture
def save(tmp_path):
    def write(table: pd.DataFrame | str | bytes, name: str = "people.csv") -> str:
        path = tmp_path / name
        if isinstance(table, pd.DataFrame):
            table.to_parquet(path) if name.endswith("parquet") else table.to_csv(path, index=False)
        else:
            path.write_bytes(table if isinstance(table, bytes) else table.encode())
        return str(path)

    return write


def split_of(path: str, **settings):
    return open_source(path, **{"target": "income", "group": ["sex"], **settings}).split(0)


def test_columns_of_groups_are_crossed(save):
    split = split_of(save(people()), group=["sex", "race"])
    assert split.train.group_names == ("F, A", "F, B", "M, A", "M, B")
    assert split.train.inputs.shape[1] == 3


def test_public_bounds_replace_statistics(save):
    split = split_of(save(people()), columns={"age": {"range": (30.0, 50.0)}}, drop=["job", "race"])
    assert split.notes == ()
    assert float(split.train.inputs.min()) == 0.0
    assert float(split.train.inputs.max()) == 1.0


def test_missing_values_are_refused_with_counts_or_kept_as_a_category(save):
    table = people()
    table.loc[[1, 2, 3], "age"] = np.nan
    table.loc[4, "job"] = "?"
    table.loc[5, "sex"] = None
    path = save(table)
    with raises_field(DataError, "table", "5 of 60", "'age': 3, 'job': 1, 'sex': 1"):
        split_of(path)
    table.loc[[7, 8, 9, 10, 11, 12, 13], "sex"] = None
    split = split_of(save(table), missing="category")
    assert split.train.group_names == ("F", "M", "missing")
    assert split.train.inputs.shape[1] in (2 + 2 + 2, 2 + 3 + 2)
    indicators = torch.cat([split.train.inputs[:, 0], split.test.inputs[:, 0]])
    assert int(indicators.sum()) == 3


def test_missing_numbers_become_the_training_mean_or_the_middle_of_their_bounds(save):
    table = people()
    table.loc[::2, "age"] = np.nan
    path = save(table)
    plain = split_of(path, missing="category", drop=["job", "race"]).train.inputs
    bounded = split_of(
        path, missing="category", drop=["job", "race"], columns={"age": {"range": (0, 100)}}
    ).train.inputs
    assert torch.equal(plain[:, 0], bounded[:, 0])
    marked = plain[:, 0] == 1
    assert 0 < int(marked.sum()) < len(plain)
    assert (plain[marked, 1] == 0).all()
    assert plain[~marked, 1].mean().abs() < 1e-6
    assert (bounded[marked, 1] == 0.5).all()


def test_notes_name_what_was_read_off_the_data(save):
    table = people()
    table.loc[0, "age"] = np.nan
    path = save(table)
    notes = split_of(path, missing="category", drop=["race"]).notes
    assert ["age come" in notes[0], "job come" in notes[1], "missing in age" in notes[2]] == [True] * 3
    bounded = split_of(path, missing="category", drop=["race"], columns={"age": {"range": (0, 100)}}).notes
    assert bounded == notes[1:]


@pytest.mark.soak
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), min_size=8, max_size=30),
    extra=st.tuples(st.integers(0, 3), st.sampled_from("ab")),
    share=st.sampled_from([0.05, 0.2, 0.5]),
    seed=st.integers(0, 5),
)
def test_one_more_row_adds_at_most_one_training_row(rows, extra, share, seed):
    """And removes none, for any other rows in its group and any number of equal rows."""
    trained = []
    for each in (rows, [*rows, extra], [extra, *rows]):
        table = pd.DataFrame(each, columns=["x", "g"])
        groups = (table["g"] == "b").to_numpy().astype(np.int64)
        assume(0 < groups.sum() < len(groups))
        try:
            train, test = rows_by_content(draw_rows(table, seed), groups, share)
        except DataError:
            assume(False)
        assert sorted([*train, *test]) == list(range(len(table)))
        assert set(groups[test]) == {0, 1}
        trained.append(Counter(table.iloc[train].itertuples(index=False, name=None)))
    before, after, otherwise = trained
    assert before <= after
    assert after.total() <= before.total() + 1
    assert after == otherwise


def test_rows_that_differ_in_their_last_digits_have_separate_draws():
    """If they counted as copies, removing one row would pass its draw on to the next."""
    values = 1.7e15 + np.arange(200.0)
    groups = np.zeros(200, dtype=np.int64)
    trained = []
    for kept in (values, values[1:]):
        train, _ = rows_by_content(draw_rows(pd.DataFrame({"x": kept}), 0), groups[: len(kept)], 0.2)
        trained.append(set(kept[train]))
    assert trained[1] <= trained[0]
    assert len(trained[0]) <= len(trained[1]) + 1


@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
@pytest.mark.parametrize(
    ("change", "arguments", "field", "given"),
    [
        (lambda t: t, {"target": "incme"}, "column in target", "'income'"),
        (lambda t: t, {"group": ["gender"]}, "column in group", "'gender'"),
        (lambda t: t, {"columns": {"height": {"range": (0, 1)}}}, "column in columns", "'height'"),
        (lambda t: t.assign(income="same"), {}, "target", "one class"),
        (lambda t: t, {"recipe": Recipe(positive="rich")}, "table", "positive class 'rich'"),
        (
            lambda t: pd.concat([t] * 3).assign(income=lambda d: np.arange(len(d))),
            {},
            "target",
            "180 distinct values",
        ),
        (lambda t: t.assign(sex="F"), {}, "table", "one group"),
        (lambda t: t, {"test_share": 1.0}, "test_share", "1.0"),
        (lambda t: t, {"columns": {"age": {"range": (9, 1)}}}, "range", "[column.age] range = [9, 1]"),
        (lambda t: t.assign(age="2020-01-01"), {}, "column", "'age' holds dates"),
        (lambda t: t.assign(age=np.inf), {}, "column", "'age' holds infinite numbers in 60 rows"),
        (
            lambda t: t.assign(income=[None, *t["income"][1:]]),
            {"missing": "category"},
            "target",
            "'income' is missing in 1",
        ),
        (lambda t: t.head(3), {}, "rows", "3 rows"),
        (lambda t: t[["sex", "income"]], {}, "table", "no column is left"),
        (
            lambda t: pd.concat([t] * 20, ignore_index=True).assign(job=lambda d: "id" + d.index.astype(str)),
            {},
            "column",
            "'job' holds 1,200 different texts",
        ),
    ],
)
def test_tables_that_cannot_be_used(save, change, arguments, field, given):
    path = save(change(people()))
    with pytest.raises(EquidpError) as raised:
        split_of(path, **arguments)
    assert raised.value.field == field
    assert given in str(raised.value)


def test_a_file_that_is_not_there_and_settings_that_are_missing(save):
    with raises_field(DataError, "path"):
        open_source("nowhere.csv", target="a", group=["b"])
    with raises_field(SettingError, "target"):
        open_source(save(people()))
    with raises_field(SettingError, "missing"):
        split_of(save(people()), missing="refus")


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
@given(data=st.data())
@settings(max_examples=60)
def test_damaged_tables_give_data_or_an_error_of_ours(tmp_path_factory, data):
    """A few bytes of a good file are overwritten: inputs are finite, or the error is ours."""
    name = data.draw(st.sampled_from(["people.csv", "people.parquet"]))
    path = tmp_path_factory.mktemp("damaged") / name
    people().to_parquet(path) if name.endswith("parquet") else people().to_csv(path, index=False)
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        split = open_source(str(path), target="income", group=["sex"]).split(0)
    except EquidpError:
        return
    assert torch.isfinite(split.train.inputs).all()
    assert torch.isfinite(split.test.inputs).all()


@pytest.mark.soak
@pytest.mark.parametrize("ending", ["gz", "bz2", "zst"])
def test_compressed_files_are_read_as_plain_ones(save, tmp_path, ending):
    plain = split_of(save(people()))
    packed = tmp_path / f"people.csv.{ending}"
    if ending == "zst":
        with pa.CompressedOutputStream(pa.OSFile(str(packed), "wb"), "zstd") as file:
            file.write(people().to_csv(index=False).encode())
    else:
        people().to_csv(packed, index=False)
    assert split_of(str(packed)).digest() == plain.digest()
    assert open_source(str(packed), target="income", group="sex").name == "people"
    packed.write_bytes(packed.read_bytes()[:40])
    with raises_field(DataError, "path", "cannot be read"):
        split_of(str(packed))


def test_a_column_of_weights_is_no_input_and_follows_its_rows(save):
    table = people().assign(w=1.0 + np.arange(60) % 7)
    recipe = Recipe(target="income", group=("sex",), weight="w", columns={"age": {"range": (20, 60)}})
    source = open_source(save(table), recipe=recipe)
    split, encoder = split_and_encode(source, 0)
    assert [column.name for column in encoder.columns] == ["age", "job", "race"]
    ages = (20 + 40 * split.train.inputs[:, 0]).round()
    rows = [int(age) - 20 for age in ages]  # age and index agree up to 40, and weights follow the index
    possible = [{1.0 + row % 7, 1.0 + (row + 40) % 7} for row in rows]
    assert all(float(w) in values for w, values in zip(split.train.weights, possible, strict=True))
    assert Recipe.from_plain(recipe.to_plain()) == recipe
