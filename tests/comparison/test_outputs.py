"""Runs keep their predictions: any metric and decision later without training, and no verdict on useless
models."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.comparison import cells
from equidp.comparison.compare import check_metric
from equidp.data import open_source
from equidp.data.dataset import ALL
from equidp.errors import SettingError
from equidp.evaluation.metrics import METRICS
from equidp.evaluation.predictions import Decision
from equidp.report.comparison import render
from support.errors import raises_field

SEEDS = 3


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Arguments of a comparison on a table where 8% are positive."""
    place = tmp_path_factory.mktemp("rare")
    generator = np.random.default_rng(0)
    risk, region = generator.normal(0, 1, 800), generator.choice(["north", "south"], 800)
    ill = generator.random(800) < 1 / (1 + np.exp(3.1 - 1.3 * risk))
    table = pd.DataFrame({"risk": risk.round(3), "region": region, "ill": np.where(ill, "yes", "no")})
    table.to_csv(place / "rare.csv", index=False)
    source = open_source(str(place / "rare.csv"), target="ill", group="region")
    plan = equidp.Plan(batch_size=80, epochs=4, noise_multiplier=1.0, learning_rate=0.3)
    return {"data": source, "methods": ["dpsgd"], "seeds": SEEDS, "plan": plan, "jobs": 1,
            "directory": place / "runs"}  # fmt: skip


@pytest.fixture(scope="module")
def comparison(asked):
    return equidp.compare(**asked)


@pytest.fixture
def private_runs_are_kept(monkeypatch, comparison):
    """Only references are trained: another rate may be the best one by another metric."""
    train = cells.train_cell

    def train_reference(key, cell, threads):
        assert cell.names["method"] == "sgd", f"{cell.names} was trained again"
        return train(key, cell, threads)

    monkeypatch.setattr(cells, "train_cell", train_reference)


@pytest.mark.soak
def test_models_that_never_say_yes_get_no_verdict(comparison):
    row = comparison.verdicts().set_index("method").loc["dpsgd"]
    assert (row["verdict"], row["informative"]) == ("uninformative", False)
    assert 'class="left within-tolerance"' not in render(comparison)


@pytest.mark.soak
def test_another_metric_takes_the_same_private_runs(asked, comparison, private_runs_are_kept):
    by_auc = equidp.compare(**asked, metric="auc", gap_tolerance=0.2)
    runs = by_auc.results.set_index(["method", "seed", "group"])["auc"]
    costs = by_auc.costs().set_index(["method", "seed", "group"])["privacy_cost"]
    for seed in range(SEEDS):
        for group in ("north", "south", ALL):
            lost = runs["sgd", seed, group] - runs["dpsgd", seed, group]
            assert costs["dpsgd", seed, group] == pytest.approx(lost)
    first = comparison.results.set_index(["method", "seed", "group"])["auc"]
    pd.testing.assert_series_equal(runs, first)
    assert by_auc.metric.name == "auc"


@pytest.mark.soak
def test_a_threshold_at_the_base_rate_is_by_the_counts_of_each_run(asked, tmp_path):
    given = {**asked, "directory": tmp_path, "seeds": 1, "epsilon": 3.0, "counts_share": 0.3}
    found = equidp.compare(**given, threshold="base-rate")
    rows = found.results.set_index(["method", "group"])
    train = asked["data"].split(0).train
    exact = float((train.targets == 1).double().mean())
    noisy = rows.loc[("dpsgd", ALL), "threshold"]
    assert rows.loc[("sgd", ALL), "threshold"] == pytest.approx(exact)
    assert noisy != exact
    assert noisy == pytest.approx(exact, abs=0.05)
    assert found.setup.settings[-1][:2] == ("threshold", "base-rate")
    # The same predictions at a public threshold have the same metrics: each run has its own.
    for method, threshold in (("sgd", exact), ("dpsgd", noisy)):
        by_number = equidp.compare(**given, threshold=threshold)
        again = by_number.results.set_index(["method", "group"])
        assert again.loc[(method, ALL), "recall"] == rows.loc[(method, ALL), "recall"]
    by_class = equidp.compare(**given).results.set_index(["method", "group"])
    assert by_class.loc[("sgd", ALL), "recall"] < rows.loc[("sgd", ALL), "recall"]


@pytest.mark.soak
def test_a_threshold_is_refused_before_anything_is_trained_where_it_cannot_be(asked, tmp_path):
    asked = {**asked, "directory": tmp_path}
    digits = {"methods": ["dpsgd"], "seeds": 1, "directory": tmp_path}
    for given, field in (
        ({**asked, "threshold": "base-rate"}, "counts_share"),
        ({**digits, "threshold": "base-rate"}, "threshold"),
        ({**digits, "threshold": 0.1}, "threshold"),
    ):
        with raises_field(SettingError, field):
            equidp.compare(**given)
    assert not list(tmp_path.iterdir())


def test_a_metric_that_cannot_compare_the_groups_is_refused_before_anything_is_trained(asked, tmp_path):
    asked = {**asked, "directory": tmp_path}
    for given, field in (
        ({"metric": "aucc"}, "metric"),
        ({"positive": "ill"}, "positive class"),
        ({"metric": equidp.Metric("odd", lambda found: found.odd, True, (0, 1))}, "metric"),
    ):
        with raises_field(SettingError, field):
            equidp.compare(**asked, **given)
    with raises_field(SettingError, "metric", "'auc'", "10"):
        equidp.compare(methods=["dpsgd"], seeds=1, directory=tmp_path, metric="auc")
    assert not list(tmp_path.iterdir())
    test = asked["data"].split(0).test
    alike = equidp.GroupedDataset(test.inputs, test.targets, test.targets, ("no", "yes"), ("no", "yes"))
    with raises_field(SettingError, "metric"):
        check_metric(METRICS["auc"], Decision(), alike)
