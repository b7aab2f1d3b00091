"""Private models of other packages are rows of a comparison, and their accountant is named."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.comparison.compare import prepare
from equidp.comparison.peers import PrivateEBM, raw_columns
from equidp.comparison.plan import ComparisonPlan
from equidp.data import open_source
from equidp.errors import DataError, MissingExtraError, SettingError
from support.errors import raises_field

pytestmark = pytest.mark.filterwarnings("ignore::equidp.errors.PrivacyWarning")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of 600 rows, whose answer is whether one number is large, with a text and a missing value."""
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    people = pd.DataFrame(
        {
            "age": draw.integers(20, 60, 600).astype(float),
            "town": draw.choice(["north", "south"], 600),
            "sex": draw.choice(["F", "M"], 600),
        }
    )
    people["ill"] = np.where(people["age"] > 40, "yes", "no")
    people.loc[3, "age"] = np.nan
    people.to_csv(tmp_path / "people.csv", index=False)
    return str(tmp_path / "people.csv")


def source(table: str, **changes):
    settings = {"target": "ill", "group": "sex", "missing": "category", "bounds": {"age": (0.0, 100.0)}}
    return open_source(table, **{**settings, **changes})


@pytest.mark.soak
def test_an_ebm_predicts_every_test_row_and_repeats_by_its_seed(table):
    pytest.importorskip("interpret")
    read = source(table)
    first, again, other = (PrivateEBM(read, 0, epsilon, 1e-4) for epsilon in (8.0, 8.0, 2.0))
    data = read.split(0)
    found = first.train(data)
    assert found.outputs.shape == (len(data.test), 2)
    assert np.allclose(np.exp(found.outputs).sum(1), 1.0, atol=1e-5)
    assert found.results.set_index("group").loc["all", "accuracy"] > 0.8
    assert set(found.results["epsilon"]) == {8.0}
    assert np.array_equal(again.train(data).outputs, found.outputs)
    assert first.key == again.key != other.key


def test_columns_have_no_missing_values_and_keep_to_their_bounds(table):
    read = source(table, bounds={"age": (30.0, 50.0)})
    columns = raw_columns(read, read.split_rows(0))
    assert not columns.isna().any().any()
    assert (columns["age"].min(), columns["age"].max()) == (30.0, 50.0)


@pytest.mark.soak
def test_columns_are_those_that_networks_read_and_not_the_target(table, real_data):
    adult = open_source("adult")
    columns = raw_columns(adult, adult.split_rows(0))
    assert "income" not in columns
    assert "fnlwgt" not in columns
    assert {"age", "education-num", "capital-gain"} <= set(columns)
    assert list(raw_columns(source(table), source(table).split_rows(0))) == ["age", "town"]


@pytest.mark.soak
@pytest.mark.parametrize("methods", [pytest.param(("dpsgd", "dp-ebm"), marks=pytest.mark.soak), ("dp-ebm",)])
@pytest.mark.usefixtures("no_plots")
def test_a_comparison_has_a_row_for_it(table, tmp_path, methods):
    pytest.importorskip("interpret")
    found = equidp.compare(
        source(table),
        methods=methods,
        seeds=1,
        epsilons=(8.0,),
        plan=equidp.Plan(epochs=2, batch_size=100, delta=1e-4),
        baseline="plan",
        directory=tmp_path / "runs",
    )
    assert found.setup.methods == ("sgd", *methods)
    rows = found.results[found.results["method"] == "dp-ebm"]
    assert set(rows["epsilon"]) == {8.0}
    assert rows["accuracy"].notna().all()
    assert any("interpret-core" in note for note in found.setup.data.notes)
    page = tmp_path / "page.html"
    equidp.write_report(found, page)
    assert "dp-ebm" in page.read_text()
    assert "accountant of interpret-core" in page.read_text()


@pytest.mark.parametrize(
    ("data", "settings", "kind", "field"),
    [
        ("digits", {"epsilons": (1.0,)}, DataError, "methods"),
        (
            "table",
            {"epsilons": (1.0,), "changes": {"class_weight": "no=1,yes=2"}},
            SettingError,
            "class_weight",
        ),
        ("table", {"plan": equidp.Plan(batch_size=100)}, SettingError, "epsilons"),
    ],
)
def test_what_it_cannot_be_trained_on_is_refused_before_anything_is_trained(
    data, settings, kind, field, table, tmp_path
):
    given = source(table) if data == "table" else data
    with raises_field(kind, field):
        prepare(given, ComparisonPlan(methods=("dp-ebm",), seeds=1, **settings), directory=tmp_path / "runs")


def test_a_package_that_is_not_installed_names_its_extra(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "interpret.privacy", None)
    with raises_field(MissingExtraError, "peers"):
        PrivateEBM(source(table), 0, 1.0, 1e-5).train(source(table).split(0))
