"""A run's training losses are paid for as they are drawn, kept in its folder, and shown on its card."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import equidp
from equidp.accounting.planned import Schedule, loss_release
from equidp.accounting.target import Target
from equidp.data import Recipe
from equidp.errors import DataError, SettingError
from equidp.kernel.epsilon import epsilon
from equidp.ledger.format import read_ledger
from equidp.runs import layout
from equidp.runs.begin import begin
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.prepare import prepare
from equidp.runs.releases import TrainingLossRelease
from equidp.runs.train import train
from equidp.runs.verify import verify_run
from equidp.training.trainer import Callback
from support.errors import raises_field
from support.toy import save_patients

DELTA = 1e-4
PLAN = equidp.Plan(batch_size=100, epochs=3, delta=DELTA, training_loss=0.1, loss_bound=2.0)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return save_patients(tmp_path_factory.mktemp("people"), ill_above=52)


@pytest.fixture(scope="module")
def config(people):
    recipe = Recipe(target="ill", group=("sex",), bounds=(("age", 0.0, 100.0),))
    return TrainConfig(RunData(str(people), recipe), "dpsgd", PLAN, Target(3.0, accountant="rdp"))


def losses_in(place):
    return json.loads((place / TrainingLossRelease.file).read_text())


@pytest.mark.soak
def test_losses_are_in_ledger_folder_and_card_and_the_whole_costs_epsilon(config, tmp_path):
    assert TrainConfig.from_plain(json.loads(json.dumps(config.to_plain()))) == config
    prepared = prepare(config)
    plan = prepared.plan
    event, times = loss_release(plan.loss_epsilon, DELTA, Schedule(plan.sample_rate, plan.steps))
    assert config.release_costs == {"training loss": pytest.approx(0.3)}
    assert (event, times) in prepared.stated
    assert 2.99 < epsilon(prepared.stated, DELTA, "rdp") <= 3.0
    place = tmp_path / "run"
    run, _ = train(place, prepared=begin(prepared, place))
    entries = read_ledger(place / layout.LEDGER).entries
    assert sum(n for each, n in entries if each == event) == times
    assert 2.99 < epsilon(entries, DELTA, "rdp") <= 3.0
    rows = losses_in(place)
    assert len(rows) == times
    assert rows[-1]["step"] == run.facts.steps
    card = (place / layout.CARD).read_text()
    assert f"{times} releases of training loss |" in card
    assert "each loss clipped to 2, for a share of 0.1 of epsilon" in card
    assert f"| mean training loss that was released last | {rows[-1]['training_loss']:.4g}" in card
    assert "training/training_loss.py" in card
    assert TrainingLossRelease.file in (place / layout.GIVEN).read_text()
    assert all(check.passed is not False for check in verify_run(place).checks)
    before = (place / TrainingLossRelease.file).read_bytes()
    train(place)
    assert (place / TrainingLossRelease.file).read_bytes() == before
    (place / layout.MANIFEST).unlink()
    (place / TrainingLossRelease.file).unlink()
    with raises_field(DataError, TrainingLossRelease.file, "bring it back"):
        train(place)


@pytest.mark.soak
def test_a_run_that_is_killed_goes_on_and_pays_for_each_loss_once(config, tmp_path):
    class Killed(Callback):
        def after_step(self, trainer):
            if trainer.steps_done == 12:
                raise KeyboardInterrupt

    place = tmp_path / "run"
    quick = replace(config, execution=replace(config.execution, checkpoint_seconds=0.0))
    begin(prepare(quick), place)
    with pytest.raises(KeyboardInterrupt):
        train(place, callbacks=[Killed()])
    run, _ = train(place)
    assert sum(n for each, n in run.entries if each.sample_rate == 1) == 3
    assert [row["step"] for row in losses_in(place)] == [8, 16, 23]
    assert epsilon(run.entries, DELTA, "rdp") <= 3.0


@pytest.mark.soak
def test_a_run_that_is_killed_as_its_only_loss_is_drawn_finishes_and_is_read_again(config, tmp_path):
    def killed(*_, **__):
        raise KeyboardInterrupt

    place = tmp_path / "run"
    begin(prepare(replace(config, plan=replace(PLAN, epochs=1))), place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("equidp.training.training_loss.mean_training_loss", killed)
        with pytest.raises(KeyboardInterrupt):
            train(place)
    run, _ = train(place)
    assert sum(n for each, n in run.entries if each.sample_rate == 1) == 1
    assert losses_in(place) == []
    assert all(check.passed is not False for check in verify_run(place).checks)
    again, _ = train(place)
    assert again.entries == run.entries


def test_a_training_loss_needs_a_target_epsilon(config):
    open_target = replace(config, target=Target(accountant="rdp"))
    with raises_field(SettingError, "training_loss"):
        prepare(open_target)
    with raises_field(SettingError, "training_loss"):
        equidp.Plan(training_loss=1.0)


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        pytest.param(
            *(("--epsilon", "3", "--training-loss", "0.1"), 0, "training loss (epsilon 0.3)"),
            marks=pytest.mark.soak,
        ),
        (("--noise-multiplier", "3", "--training-loss", "0.1"), 2, "training_loss=0.1 takes a share"),
        (("--epsilon", "3", "--training-loss", "much"), 2, "--training-loss"),
        (("--epsilon", "3", "--training-loss", "0.1", "--loss-bound", "0"), 2, "loss_bound"),
    ],
)
def test_the_command_line_takes_a_share_or_says_why_not(people, tmp_path, command, given, code, words):
    table = (str(people), "--target", "ill", "--group", "sex", "--method", "dpsgd", "--accountant", "rdp")
    given = (*table, *given, "--batch-size", "100", "--epochs", "2", "--dry-run")
    found, out, err = command("train", *given, cwd=tmp_path)
    assert found == code, err
    assert words in out + err
