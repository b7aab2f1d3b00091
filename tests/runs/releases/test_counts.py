"""Class counts of a run: paid for, released once with noise, and used for weights and thresholds."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.data import Recipe
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.ledger.ledger import Ledger
from equidp.runs.begin import begin, prepare
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.folder import CARD, LEDGER, RunFolder
from equidp.runs.releases import CountsRelease
from equidp.runs.saved import open_run
from equidp.runs.train import train
from support.errors import raises_field
from support.releases import paid_for

DELTA = 1e-4
COUNTS = paid_for("class counts", 0.1 * 3.0, DELTA)
PLAN = equidp.Plan(batch_size=200, epochs=1, delta=DELTA)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.integers(20, 60, 3000),
            "sex": rng.choice(["F", "M"], 3000),
            "ill": rng.choice(["no", "yes"], 3000, p=[0.9, 0.1]),
        }
    )
    path = tmp_path_factory.mktemp("people") / "people.csv"
    table.to_csv(path, index=False)
    return path


@pytest.fixture
def config(people):
    recipe = Recipe(target="ill", group=("sex",))
    return partial(
        TrainConfig, RunData(str(people), recipe), plan=plan_with(CountsRelease(0.1, balanced=True))
    )


def plan_with(*releases):
    return PLAN.with_changes(epsilon=3.0, accountant="rdp", releases=releases)


@pytest.mark.soak
def test_balanced_weights_follow_from_counts_that_epsilon_pays_for(config, tmp_path):
    prepared = begin(prepare(config()), tmp_path / "run")
    true = np.bincount(prepared.split.train.targets.numpy())
    counts = RunFolder(tmp_path / "run").read_counts()
    # The noise's deviation is 9: off by 60 with probability 3e-11.
    assert np.abs(np.array([counts["no"], counts["yes"]]) - true).max() < 60
    weights = RunFolder(tmp_path / "run").read_settings()[1].plan.class_weight
    assert weights["yes"] * counts["yes"] == pytest.approx(weights["no"] * counts["no"])
    assert Ledger.read(tmp_path / "run" / "private" / LEDGER).entries() == ((COUNTS, 1),)

    train(tmp_path / "run")
    assert RunFolder(tmp_path / "run").read_counts() == counts  # drawn once
    entries = Ledger.read(tmp_path / "run" / "private" / LEDGER).entries()
    assert 2.99 < epsilon(entries, DELTA, "rdp") <= 3.0
    assert "1 release of class counts | sample rate 1" in (tmp_path / "run" / "share" / CARD).read_text()
    assert open_run(tmp_path / "run").class_counts == counts


def test_weights_are_balanced_by_counts_alone_for_a_share_of_epsilon(config):
    weighed = replace(config().plan, class_weight="no=1,yes=8")
    with raises_field(SettingError, "class_weight"):
        replace(config(), plan=weighed)
    with raises_field(SettingError, "counts_share"):
        config(plan=PLAN.with_changes(releases=(CountsRelease(0.1),)))
