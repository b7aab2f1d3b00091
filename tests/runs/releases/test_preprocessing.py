"""Private preprocessing of a run: paid for before the data is read for it, drawn once, within epsilon."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.data import Recipe, table as table_module
from equidp.errors import BudgetError, DataError, SettingError
from equidp.kernel.epsilon import epsilon
from equidp.ledger.ledger import Ledger
from equidp.runs.begin import begin, prepare
from equidp.runs.config import DatasetLedger, RunData, TrainConfig
from equidp.runs.folder import CARD, ENCODER, LEDGER, check_sums
from equidp.runs.releases import PreprocessingRelease
from equidp.runs.saved import open_run
from equidp.runs.train import train
from equidp.tables.encode import TableEncoder
from support.errors import raises_field
from support.releases import paid_for

pytestmark = pytest.mark.filterwarnings("ignore:AUC .* is rarely true")  # income follows from age
DELTA = 1e-4
PLAN = equidp.Plan(batch_size=200, epochs=1, delta=DELTA)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    rng = np.random.default_rng(0)
    age = rng.integers(20, 60, 2000)
    table = pd.DataFrame(
        {
            "age": np.where(rng.random(2000) < 0.05, np.nan, age),
            "job": rng.choice(["cook", "clerk"], 2000),
            "sex": rng.choice(["F", "M"], 2000),
            "income": np.where(age + 5 * rng.standard_normal(2000) > 40, "high", "low"),
        }
    )
    path = tmp_path_factory.mktemp("people") / "people.csv"
    table.to_csv(path, index=False)
    return path


@pytest.fixture
def config(people):
    recipe = Recipe(target="income", group=("sex",), missing="category")
    plan = PLAN.with_changes(epsilon=3.0, accountant="rdp", releases=(PreprocessingRelease(0.4),))
    return partial(TrainConfig, RunData(str(people), recipe), plan=plan)


@pytest.fixture
def shared(tmp_path):
    return DatasetLedger(tmp_path / "shared", epsilon=5.0, delta=DELTA)


def spent(folder):
    return Ledger.read(folder / "private" / LEDGER).entries()


def events(folder):
    return [(event.rate, steps) for event, steps in spent(folder)]


@pytest.mark.soak
def test_a_run_and_its_preprocessing_meet_epsilon_together_and_go_on_with_what_was_drawn(
    config, people, tmp_path
):
    place = tmp_path / "run"
    begin(prepare(config()), place)
    drawn = (place / "private" / ENCODER).read_text()
    assert events(place) == [(1.0, 1)]
    assert "cook" not in drawn
    assert "clerk" not in drawn
    run, evaluation = train(place)
    assert spent(place)[0] == (paid_for("preprocessing", 0.4 * 3.0, DELTA), 1)
    assert 2.99 < epsilon(spent(place), DELTA, "rdp") == run.epsilon() <= 3.0
    assert [rate for rate, _ in events(place)].count(1.0) == 1
    for part in ("private", "share"):
        assert (place / part / ENCODER).read_text() == drawn
    check_sums(place / "share")
    card = (place / "share" / CARD).read_text()
    assert "1 release of preprocessing | sample rate 1" in card
    assert "Preprocessing was private" in card
    assert "does not cover them" not in card

    kept = open_run(place)
    assert kept.encoder.private
    assert kept.facts["input_shape"] == [2 + len(kept.encoder.columns[1].values)]
    assert kept.inputs(people).shape[1:] == run.model[-1].weight.shape[1:]
    assert len(kept.test()) == evaluation.groups.set_index("group").at["all", "count"]
    before = spent(place)
    train(place)  # finished: nothing is spent or drawn again
    assert (place / "private" / ENCODER).read_text() == drawn
    assert spent(place) == before


def test_what_was_drawn_cannot_be_drawn_again(config, tmp_path):
    begin(prepare(config()), tmp_path / "run")
    (tmp_path / "run" / "private" / ENCODER).unlink()
    with raises_field(DataError, ENCODER, "bring it back"):
        train(tmp_path / "run")
    assert events(tmp_path / "run") == [(1.0, 1)]


@pytest.mark.soak
def test_the_ledger_has_paid_before_the_data_is_read_for_it(config, shared, tmp_path, monkeypatch):
    prepared = prepare(config(ledger=shared))

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(table_module, "fit_encoder", killed)
    with pytest.raises(KeyboardInterrupt):
        begin(prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    entries = Ledger.read(tmp_path / "shared").entries()
    assert [(event.rate, steps) for event, steps in entries] == [(1.0, 1)]


def test_a_limit_that_does_not_hold_it_is_told_before_anything_is_drawn(config, shared, tmp_path):
    with pytest.raises(BudgetError):
        prepare(config(ledger=replace(shared, epsilon=0.5)))
    assert not (tmp_path / "shared").exists()


@pytest.mark.soak
def test_rehearsals_read_no_rows_and_spend_nothing(config, shared, tmp_path):
    prepared = prepare(config(ledger=shared))
    assert isinstance(prepared.encoder, TableEncoder)
    assert prepare(config()).encoder == prepared.encoder  # noise of a fixed seed alone
    assert not (tmp_path / "shared").exists()


@pytest.mark.soak
def test_two_runs_draw_apart(config, tmp_path):
    for name in ("one", "two"):
        begin(prepare(config()), tmp_path / name)
    one, two = (json.loads((tmp_path / name / "private" / ENCODER).read_text()) for name in ("one", "two"))
    assert one["columns"][0] != two["columns"][0]


def test_settings_that_mean_nothing_are_refused(config):
    with raises_field(SettingError, "preprocessing_share", "0.4"):
        config(plan=PLAN.with_changes(releases=(PreprocessingRelease(0.4),)))
    with raises_field(SettingError, "preprocessing_share", "1.5"):
        config(plan=PLAN.with_changes(epsilon=3.0, releases=(PreprocessingRelease(1.5),)))
    with raises_field(SettingError, "preprocessing_share", "'digits'"):
        prepare(replace(config(), data=RunData("digits")))
