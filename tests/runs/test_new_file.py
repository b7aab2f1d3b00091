"""A new file is read as the table of the run was, or refused where a column tells the model nothing."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.cli.app import app
from equidp.errors import DataError, DataWarning, SettingError
from equidp.runs.saved import FinishedRun
from support.errors import raises_field

pytestmark = pytest.mark.soak
ROWS = 300


def patients() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    crp = draw.gamma(2, 10, ROWS).round(1)
    return pd.DataFrame(
        {
            "age": draw.integers(18, 95, ROWS),
            "CRP": np.where(draw.random(ROWS) < 0.2, np.nan, crp),
            "Notfall": draw.choice(["j", "n"], ROWS),
            "smokes": np.resize(["1", "2", "9", "x"], ROWS),
            "ward": np.where(draw.random(ROWS) < 0.1, None, draw.choice(["north", "south"], ROWS)),
            "sex": np.resize(["1", "2", "x"], ROWS),
            "ill": draw.choice(["no", "yes"], ROWS),
        }
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> FinishedRun:
    place = tmp_path_factory.mktemp("new-file")
    patients().to_csv(place / "all.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return equidp.train(
            place / "all.csv",
            out=place / "run",
            target="ill",
            group="sex",
            missing="category",
            method="dpsgd",
            noise_multiplier=2.0,
            model="logistic",
            batch_size=50,
            epochs=1,
            accountant="rdp",
        )


@pytest.fixture
def save(tmp_path):
    def to_file(table: pd.DataFrame) -> Path:
        table.to_csv(tmp_path / "new.csv", index=False)
        return tmp_path / "new.csv"

    return to_file


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("Notfall", "Notfall (j/n)"),
        ("CRP", "crp_mg_l"),
        ("age", "Age"),
    ],
)
def test_a_renamed_input_is_refused_and_the_new_name_is_found(kept, save, name, other):
    file = save(patients().rename(columns={name: other}).assign(remark="x"))
    for use in (kept.predict, kept.evaluate):
        with raises_field(DataError, name, repr(other.strip())[1:-1]):
            use(file)


@pytest.mark.parametrize(("name", "other"), [("ill", "ill in 30 days"), ("sex", "Sex")])
def test_a_renamed_target_or_group_is_refused_by_the_same_rule(kept, save, name, other):
    file = save(patients().rename(columns={name: other}))
    with raises_field(DataError, name, other):
        kept.evaluate(file)
    with raises_field(DataError, name):
        kept.evaluate(file, lacking=(name,))
    assert len(kept.predict(file)) == ROWS


def test_a_column_that_is_meant_to_be_lacking_counts_as_missing(kept, save):
    gone = save(patients().drop(columns="CRP"))
    with raises_field(DataError, "CRP", "--lacking CRP"):
        kept.predict(gone)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        found = kept.predict(gone, lacking=("CRP",))
    empty = save(patients().assign(CRP=None))
    with raises_field(DataError, "CRP", "--lacking CRP"):
        kept.predict(empty)
    pd.testing.assert_frame_equal(found, kept.predict(empty, lacking=("CRP",)))
    few = kept.predict(save(patients().assign(CRP=None).head(5)))
    pd.testing.assert_frame_equal(few, found.head(5))
    with raises_field(SettingError, "column in lacking", "CRB", "CRP"):
        kept.predict(gone, lacking=("CRB",))
    with raises_field(DataError, "Notfall"):
        kept.predict(save(patients().drop(columns="Notfall")), lacking=("Notfall",))


@pytest.mark.parametrize(
    "change",
    [
        {"Notfall": lambda table: table["Notfall"].map({"j": "yes", "n": "no"})},
        {"smokes": "never"},
        {"CRP": lambda table: table["CRP"] * 1e6},
        {"ward": lambda table: table["ward"].str.upper()},
    ],
)
def test_a_column_of_new_values_alone_is_refused_unless_it_is_meant(kept, save, change):
    file, name = save(patients().assign(**change)), next(iter(change))
    with raises_field(DataError, name, f"--lacking {shlex.quote(name)}"):
        kept.predict(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        assert len(kept.predict(file, lacking=(name,))) == ROWS


@pytest.mark.parametrize("name", ["smokes", "sex"])
def test_whole_numbers_that_are_written_with_a_point_are_read_as_in_training(kept, save, name):
    file = save(patients())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # it is the file that the run was trained on
        known = kept.read_grouped(file)
        new = kept.read_grouped(
            save(
                patients().assign(
                    **{name: lambda table: table[name].replace({"1": "1.0", "2": "2.00", "9": "9."})}
                )
            )
        )
    assert new.groups.equal(known.groups)
    assert new.inputs.equal(known.inputs)


def test_the_commands_take_the_columns_that_a_file_lacks(kept, save):
    file = save(patients().drop(columns=["CRP", "ward"]))
    for command in ("predict", "evaluate"):
        with raises_field(DataError, "CRP, ward", "--lacking CRP"):
            app([command, str(kept.folder), str(file)], result_action="return_value")
        lacking = ["--lacking", "CRP", "--lacking", "ward"]
        assert not app([command, str(kept.folder), str(file), *lacking], result_action="return_value")
