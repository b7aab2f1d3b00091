"""Odd tables are read alike from CSV and Parquet, and by every command.

Nothing is merged, left out or turned into another type without a word that names column and option.
"""

from __future__ import annotations

import re
import tomllib
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from equidp.data import Recipe, open_source
from equidp.data.table import split_and_encode
from equidp.errors import DataWarning, EquidpError
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.saved import FinishedRun
from equidp.tables import read as stream, split as split_module
from equidp.tables.columns import read_table
from equidp.tables.encode import Numbers
from equidp.tables.findings import Kind, Level, sentence
from equidp.tables.inspect import inspect_table, recipe_toml
from equidp.training.plan import Plan
from support.odd_tables import CATEGORY, DAYS, LONGER, ODD, N, Odd, people, save, stated, turns

ROLES = Recipe(target="ill", group=("sex",))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(stream, "_BLOCK", 1000)
    monkeypatch.setattr(split_module, "_BLOCK", 13)


PEOPLE = {  # how many there are, worked out apart
    "a person in three spellings": 120,
    "a person in three spellings, the same": 30,
    "persons of 17 digits": 40,
    "persons of 17 digits by type": 40,
}


def quiet(call, *given, **options):
    """Return the result of a call, and its warnings; or the error's text, and none."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = call(*given, **options)
        except EquidpError as error:
            return str(error), []
    return found, [str(each.message) for each in said if issubclass(each.category, DataWarning)]


SOAK = (pytest.mark.soak,)
CASES = [
    (what, kind)
    for what, odd in ODD.items()
    for kind in ((".csv", ".parquet") if odd.type is None else (".parquet",))
]
ONCE = [
    (what, ".csv" if odd.type is None and place % 2 == 0 else ".parquet")
    for place, (what, odd) in enumerate(ODD.items())
]
"""Each column in one kind of file, alternately: both are read alike, as the test of all cases holds."""


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        pytest.param(what, kind, id=f"{what}{kind}", marks=SOAK[: place % 12 > 0])
        for place, (what, kind) in enumerate(CASES)
    ],
)
def test_a_column_is_read_as_it_says_or_with_a_word(what, kind, tmp_path):
    odd = ODD[what]
    path, recipe = save(odd, tmp_path / f"odd{kind}"), ROLES.with_changes(stated(odd.recipe))
    found, said = quiet(split_and_encode, open_source(str(path), recipe=recipe), 0)
    if odd.refused:
        assert all(part in found for part in odd.refused), found
        return
    assert not isinstance(found, str), found
    assert len(said) == (1 if odd.says else 0), said
    assert all(part in said[0] for part in odd.says), said
    split, encoder = found
    if odd.names is not None:
        assert (split.train.group_names if "x" in recipe.group else split.train.class_names) == odd.names
    if odd.inputs is not None:
        (x,) = (each for each in encoder.columns if each.name == "x")
        assert x.encode(pd.Series([np.nan if isinstance(x, Numbers) else None])).shape[1] == odd.inputs
    if odd.numbers is not None:
        column = quiet(read_table, path, recipe)[0].table["x"].to_numpy()
        assert np.array_equal(column[: len(odd.numbers)], odd.numbers, equal_nan=True)
    if what in PEOPLE:
        assert len(split.train) + len(torch.unique(split.test.people)) == PEOPLE[what]


@pytest.mark.soak
@pytest.mark.parametrize(("what", "kind"), ONCE, ids=[f"{what}{kind}" for what, kind in ONCE])
def test_a_trained_run_reads_the_same_table_as_it_was_trained_on(what, kind, tmp_path):
    odd = ODD[what]
    path, recipe = save(odd, tmp_path / f"odd{kind}"), ROLES.with_changes(stated(odd.recipe))
    source = open_source(str(path), recipe=recipe)
    found, _ = quiet(split_and_encode, source, 0)
    if isinstance(found, str):
        return
    split, encoder = found
    facts = {"class_names": list(split.train.class_names), "group_names": list(split.train.group_names)}
    facts |= {"groupings": [vars(each) for each in split.train.groupings], "num_train": len(split.train)}
    config = TrainConfig(RunData(str(path), recipe), Plan().with_changes(method="sgd"))
    kept = FinishedRun(tmp_path, config, facts, type(encoder).from_json(encoder.to_json()), None, [], {})
    read, _ = quiet(kept.read_grouped, path)
    rows = quiet(source.split_rows, 0)[0]
    assert torch.equal(read.inputs, encoder.encode(rows.features))
    assert np.array_equal(read.groups.numpy(), rows.examples.groups.numpy())
    assert np.array_equal(read.targets.numpy(), rows.examples.targets.numpy())
    inputs, _ = quiet(kept.inputs, path)
    assert torch.equal(inputs, read.inputs)


@pytest.mark.soak
@pytest.mark.parametrize(("what", "kind"), ONCE, ids=[f"{what}{kind}" for what, kind in ONCE])
def test_inspect_proposes_a_recipe_that_reads_the_table(what, kind, tmp_path):
    odd = ODD[what]
    path = save(odd, tmp_path / f"odd{kind}")
    report, _ = quiet(inspect_table, path, ROLES.with_changes(stated(odd.recipe)))
    assert not isinstance(report, str), report
    (tmp_path / "recipe.toml").write_text(recipe_toml(report), encoding="utf-8")
    recipe = Recipe.read(tmp_path / "recipe.toml")
    assert recipe == report.recipe
    found, _ = quiet(split_and_encode, open_source(str(path), recipe=recipe), 0)
    assert bool(report.problems) == isinstance(found, str)


@pytest.mark.soak
@pytest.mark.parametrize("what", ODD)
def test_reading_by_the_proposed_recipe_says_nothing_that_inspect_does_not_show(what, tmp_path):
    path = save(ODD[what], tmp_path / "odd.parquet")
    report, _ = quiet(inspect_table, path, ROLES.with_changes(stated(ODD[what].recipe)))
    shown = {
        sentence(found, column.name)
        for column in report.columns
        for found in column.findings
        if not (found.sure and found.options)
    }
    read, _ = quiet(read_table, path, report.recipe)
    kinds = {(column.name, found.kind) for column in report.columns for found in column.findings}
    counted = {  # cells that inspect has shown as no numbers, and that count as missing by its recipe
        sentence(found, name)
        for name, parsed in read.parsed.items()
        for found in parsed.findings
        if found.kind is Kind.UNREADABLE and (name, found.kind) in kinds
    }
    said = {*read.notes, *read.sentences(Level.DOUBT)}
    assert said <= shown | counted


PROPOSED = {
    "codes of 17 digits are categories": {"categorical": ["x"]},
    "codes such as 3E2": {"categorical": ["x"]},
    "dates in two orders": {"date": {"x": "iso|%d.%m.%Y"}},
    "dates of the month first": {"date": {"x": "%m/%d/%Y"}},
    "dates of two digits, not stated": {"date": {"x": "%d.%m.%y"}},
    "a date for none": {"na": {"x": "9999-12-31"}, **CATEGORY},
    "durations as texts": {"date": {"x": "duration"}},
    "durations by type": {"date": {"x": "duration"}},
    "dollars": {"numeric": ["x"], "thousands": {"x": ","}},
    "percent": {"numeric": ["x"]},
    "units": {"numeric": ["x"]},
    "times of day": {"date": {"x": "%H:%M"}},
    "brackets": {"numeric": ["x"]},
    "errors of a spreadsheet": {"na": {"x": "#DIV/0!"}, **CATEGORY},
}


@pytest.mark.parametrize("what", PROPOSED)
def test_inspect_proposes_what_settles_the_column(what, tmp_path):
    path = save(ODD[what], tmp_path / "odd.parquet")
    report, _ = quiet(inspect_table, path, ROLES.with_changes(stated(ODD[what].recipe)))
    assert report.recipe == ROLES.with_changes(stated({**ODD[what].recipe, **PROPOSED[what]}))
    (found, said) = quiet(split_and_encode, open_source(str(path), recipe=report.recipe), 0)
    assert not isinstance(found, str), found
    assert said == []


NAME = """it's "{0}" $HOME"""
NAMED = {
    "leading zeros": Odd(turns("01", "02", "11")),
    "1 and 1.0": Odd(turns("1", "2", "1.0")),
    "dates": Odd(DAYS),
    "dollars": Odd([f"${row},5" for row in range(N)]),
    "decimal commas": Odd(turns("1,5", "2,5")),
    "slips": Odd([*map(str, range(N - 1)), "n.d."]),
    "long codes": Odd(turns(*LONGER)),
}


@pytest.mark.parametrize("what", NAMED)
def test_what_a_message_says_of_a_column_of_any_name_is_toml(what, tmp_path):
    path = tmp_path / "odd.csv"
    pd.DataFrame({**people(), NAME: NAMED[what].cells}).to_csv(path, index=False)
    found, said = quiet(split_and_encode, open_source(str(path), recipe=ROLES), 0)
    (message,) = said or [found]
    lines = re.findall(r'\((\[.*?\]) (\w+ = (?:"(?:[^"\\]|\\.)*"|\[.*?\]|true)[^()]*)\)', message)
    assert lines
    for section, line in lines:
        read = tomllib.loads("\n".join([section, *line.split(", ")]))
        assert [*read.get("column", {}), *read.get("table", {}).get("drop", ())] == [NAME]
