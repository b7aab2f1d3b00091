"""Odd tables are read alike from CSV and Parquet, and by every command.

Nothing is merged, left out or turned into another type without a word that names column and option.
"""

from __future__ import annotations

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
from equidp.training.plan import Plan
from support.odd_tables import ODD, save, stated

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
