"""A run's recalibration is paid for before the first step, drawn once, and part of the model that is read."""

import json

import pytest
import torch

import equidp
from equidp.accounting.target import Target
from equidp.data import Recipe
from equidp.errors import DataError, SettingError
from equidp.evaluation.predictions import predict
from equidp.kernel.epsilon import epsilon
from equidp.ledger.format import read_ledger
from equidp.runs import layout, train as training
from equidp.runs.begin import begin
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.prepare import prepare
from equidp.runs.saved import open_run
from equidp.runs.train import train
from equidp.training import recalibration
from support.errors import raises_field
from support.releases import paid_for
from support.toy import save_patients

DELTA = 1e-4
PLAN = equidp.Plan(batch_size=100, epochs=2, delta=DELTA, recalibration=0.2)


def event():
    """What recalibration costs."""
    return paid_for("recalibration", 0.2 * 3.0, DELTA)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return save_patients(tmp_path_factory.mktemp("people"), ill_above=52)


@pytest.fixture
def run(people, tmp_path):
    """The folder of a run that was not begun yet, and what trains in it."""
    recipe = Recipe(target="ill", group=("sex",), bounds=(("age", 0.0, 100.0),))
    config = TrainConfig(RunData(str(people), recipe), "dpsgd", PLAN, Target(3.0, accountant="rdp"))
    begin(prepare(config), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.soak
def test_the_whole_costs_epsilon_and_the_model_is_read_as_it_is_released(run):
    found, _ = train(run)
    entries = read_ledger(run / layout.LEDGER).entries
    assert entries[-1] == (event(), 1)
    assert 2.99 < epsilon(entries, DELTA, "rdp") <= 3.0
    kept = open_run(run)
    by = json.loads((run / layout.RECALIBRATION).read_text())
    assert by["shift"] != [0.0, 0.0]
    inputs = torch.rand(5, *found.model[1].weight.shape[1:])
    assert torch.equal(predict(kept.run.model, inputs), predict(found.model, inputs))
    card = (run / layout.CARD).read_text()
    assert "1 release of recalibration" in card
    assert "logits fitted after training, for a share of 0.2 of epsilon" in card


@pytest.mark.soak
def test_a_run_that_is_stopped_after_the_draw_takes_what_it_kept(run, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "evaluate_run", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(run)
    monkeypatch.undo()
    drawn = (run / layout.RECALIBRATION).read_bytes()
    assert not (run / layout.MODEL).exists()
    train(run)
    assert (run / layout.RECALIBRATION).read_bytes() == drawn
    assert dict(read_ledger(run / layout.LEDGER).entries)[event()] == 1
    again = (run / layout.MODEL).read_bytes()
    train(run)
    assert (run / layout.MODEL).read_bytes() == again
    (run / layout.MANIFEST).unlink()
    (run / layout.RECALIBRATION).unlink()
    with raises_field(DataError, layout.RECALIBRATION, "bring it back"):
        train(run)


@pytest.mark.soak
def test_the_recalibration_of_another_run_is_refused(run, tmp_path):
    train(run)
    (run / layout.MODEL).unlink()
    (run / layout.MANIFEST).unlink()
    by = json.loads((run / layout.RECALIBRATION).read_text())
    for payment in ("0123456789abcdef", ""):  # of another private run, or of one without privacy
        (run / layout.RECALIBRATION).write_text(json.dumps({**by, "payment": payment}))
        with raises_field(DataError, layout.RECALIBRATION, "ledger"):
            train(run)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "paid"), [("_read", 0), ("_sum_rows", 1), ("Recalibration", 1)])
def test_a_run_that_is_stopped_before_it_kept_what_it_drew_pays_again(run, monkeypatch, name, paid):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(recalibration, name, stopped)
    with pytest.raises(KeyboardInterrupt):
        train(run)
    monkeypatch.undo()
    assert dict(read_ledger(run / layout.LEDGER).entries).get(event(), 0) == paid
    found, _ = train(run)
    assert dict(read_ledger(run / layout.LEDGER).entries)[event()] == dict(found.entries)[event()] == 1 + paid
    assert open_run(run).run.epsilon() == found.epsilon()
    assert (found.epsilon() > 3.0) is (paid > 0)


def test_commands_refuse_what_cannot_be(command, people, tmp_path):
    table = (people.name, "--target", "ill", "--group", "sex", "--out", tmp_path / "run")
    for options, said in (
        (("--epsilon", "3", "--recalibration", "1"), "recalibration=1.0; expected a number in [0, 1)"),
        (("--noise-multiplier", "3", "--recalibration", "0.1"), "takes a share of a target epsilon"),
        (("--epsilon", "3", "--recalibration", "much"), "--recalibration"),
    ):
        code, _, err = command("train", *table, *options, cwd=people.parent)
        assert (code, said in err) == (2, True), err
    assert not (tmp_path / "run").exists()


@pytest.mark.soak
def test_a_comparison_recalibrates_the_baseline_too(people, tmp_path):
    recipe = Recipe(target="ill", group=("sex",), bounds=(("age", 0.0, 100.0),))
    source = RunData(str(people), recipe).source()
    given = {"methods": ["dpsgd"], "epsilons": [3.0], "seeds": 1, "directory": tmp_path, "jobs": 1}
    found = {
        share: equidp.compare(source, plan=equidp.Plan(**{**vars(PLAN), "recalibration": share}), **given)
        for share in (0.0, 0.2)
    }
    losses = {
        share: found[share].results.query("group == 'all'").set_index("method")["loss"] for share in found
    }
    assert losses[0.2]["sgd"] < losses[0.0]["sgd"]
    assert losses[0.2]["dpsgd"] != losses[0.0]["dpsgd"]
    assert found[0.2].results.query("method == 'dpsgd'")["epsilon"].max() <= 3.0


@pytest.mark.soak
def test_an_audit_of_the_steps_refuses_a_release_of_its_own(people):
    data = RunData(str(people), Recipe(target="ill", group=("sex",))).source().split(0).train
    with raises_field(SettingError, "recalibration"):
        equidp.audit_step(data, "dpsgd", plan=PLAN)
