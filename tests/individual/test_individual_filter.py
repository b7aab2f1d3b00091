"""A run with an individual filter costs what its accounts hold, however long it is, and resumes exactly."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import nn

import equidp
from equidp.cli.ledger import show_command
from equidp.engines import dataset_norms
from equidp.errors import CheckpointError, DataError, SettingError
from equidp.individual.experimental import IndividualFilter
from equidp.kernel.epsilon import epsilon
from equidp.kernel.filter import WHOLE
from equidp.kernel.ledger import FilteredStepEvent, MemoryLedger
from equidp.kernel.noise import SeededRandomness
from equidp.ledger.format import read_ledger
from support.errors import raises_field
from support.toy import make_trainer, toy

FULL, STEPS = 6, 18


class Stop(equidp.Callback):
    def __init__(self, steps):
        self.steps = steps

    def after_step(self, trainer):
        if trainer.steps_done == self.steps:
            trainer.stop(equidp.TrainingStopped("stopped.", 15))


@pytest.fixture(autouse=True)
def handlers():
    """As before: a run that is killed in a test gives its handlers of signals back to nobody."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def quiet(monkeypatch):
    """No noise: with every example in each sample, nothing is random."""
    monkeypatch.setattr(SeededRandomness, "normal", lambda self, count, *_: torch.zeros(count).double())


def filtered(*callbacks, norms=None, **settings):
    given = {"epochs": None, "steps": STEPS, "full_steps": FULL, "batch_size": 300, "delta": 1e-5}
    given |= {"noise_multiplier": 4.0, "secure": False, "seed": 1, "policy": equidp.DPSGD(2.0)}
    norms = IndividualFilter(interval=4) if norms is None else norms
    return make_trainer(callbacks=[norms, *callbacks], **{**given, **settings})


def run_in(folder, *callbacks, **settings):
    checkpoints = equidp.Checkpoints(folder, seconds=3600.0)
    ledger = equidp.LedgerFile(folder / "ledger")
    return filtered(*callbacks, checkpoints, ledger=ledger, **settings), checkpoints


def stopped(folder, steps, **settings):
    trainer, _ = run_in(folder, Stop(steps), **settings)
    with pytest.raises(equidp.TrainingStopped):
        trainer.fit()
    trainer.ledger.close()
    return trainer


def test_noise_follows_from_full_steps_and_epsilon_is_the_target_after_all_steps():
    trainer = filtered(noise_multiplier=None, target_epsilon=2.0, batch_size=60, policy=equidp.DPSGD(4.0))
    run = trainer.fit()
    assert run.facts.steps == STEPS
    assert 1.99 < run.epsilon() <= 2.0
    assert run.planned_epsilon() == run.epsilon()
    assert run.epsilon() < 0.8 * epsilon(run.entries, run.delta)
    assert max(run.epsilon_by_group().values()) == run.epsilon()
    spent = trainer.accounts.sensitive_spent
    assert spent.max() <= FULL * WHOLE
    assert len(spent.unique()) > 10


def test_shares_are_those_of_the_norms_that_were_taken_last():
    trainer = filtered(norms=IndividualFilter(interval=100))
    data = trainer.train
    norms = dataset_norms(trainer.engine, data.inputs, data.trained_targets, 100)
    trainer.fit()
    expected = torch.ceil((norms.double() / 2.0).clamp(max=1.0) * 256).clamp_min(16)
    assert torch.equal(trainer.accounts.state()["cells"], expected.to(torch.int64))


def test_an_example_with_large_gradients_leaves_and_others_stay():
    inputs = torch.cat([toy().inputs[:299] * 0.1, torch.full((1, 5), 1e3)])
    targets = toy().targets.clone()
    targets[-1] = 0
    data = equidp.GroupedDataset(inputs, targets, toy().groups, ("a", "b"), ("no", "yes"))
    seen = []

    class Drawn(equidp.Callback):
        def after_step(self, trainer):
            seen.append((trainer.accounts.drawn_shares > 0).tolist())

    model = nn.Linear(5, 2)
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([-50.0, 50.0]))
    filtered(Drawn(), train=data, model=model, policy=equidp.DPSGD(20.0)).fit()
    drawn = torch.tensor(seen).sum(dim=0)
    assert drawn[-1] == FULL
    assert (drawn[:-1] == STEPS).sum() > 250


@pytest.mark.parametrize("steps", [3, 4, 9])
def test_a_resumed_run_is_one_that_was_never_stopped(tmp_path, quiet, steps):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    once, _ = run_in(tmp_path / "whole")
    once.fit()
    stopped(tmp_path / "parts", steps)
    resumed, checkpoints = run_in(tmp_path / "parts")
    assert checkpoints.restore(resumed) == 0
    run = resumed.fit()
    for one, other in zip(once.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    for name, value in once.accounts.state().items():
        assert torch.equal(value, resumed.accounts.state()[name])
    assert run.epsilon() == once.run().epsilon()


def test_steps_lost_to_a_kill_count_as_whole_for_everyone(tmp_path, quiet):
    before = stopped(tmp_path, 3).accounts.sensitive_spent
    killed, checkpoints = run_in(tmp_path)
    checkpoints.restore(killed)
    for callback in killed.callbacks:
        callback.before_training(killed)
    batches = killed.batches()
    killed.step(next(batches))
    truth = killed.accounts.sensitive_spent
    killed.ledger.abandon()
    resumed, checkpoints = run_in(tmp_path)
    lost = checkpoints.restore(resumed)
    assert lost >= 1
    found = resumed.accounts.sensitive_spent
    assert torch.equal(found, (before + min(lost, FULL) * WHOLE).clamp_max(FULL * WHOLE))
    assert (found >= truth).all()
    resumed.fit()
    assert resumed.accounts.sensitive_spent.max() <= FULL * WHOLE


def test_steps_of_the_ledger_count_as_whole_where_nothing_is_restored(tmp_path):
    stopped(tmp_path, 4)
    again, _ = run_in(tmp_path)
    assert again.accounts.sensitive_spent.tolist() == [4 * WHOLE] * 300


def test_accounts_of_other_data_or_settings_or_damaged_ones_are_refused(tmp_path):
    stopped(tmp_path, 3)
    for kind, field, changed in (
        (SettingError, "folder", {"norms": IndividualFilter(interval=5)}),
        (DataError, "train", {"train": toy(seed=1)}),
    ):
        trainer, checkpoints = run_in(tmp_path, **changed)
        with raises_field(kind, field):
            checkpoints.restore(trainer)
        trainer.ledger.close()
    for path in tmp_path.glob("sensitive-accounts-*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    trainer, checkpoints = run_in(tmp_path)
    with raises_field(CheckpointError, "folder"):
        checkpoints.restore(trainer)


def test_accounts_lie_in_sensitive_files_alone(tmp_path):
    trainer, checkpoints = run_in(tmp_path)
    run = trainer.fit()
    files = sorted(path.name for path in tmp_path.glob("sensitive-accounts-*"))
    assert len(files) == len(list(tmp_path.glob("checkpoint-*"))) > 0
    checkpoints.delete_sensitive(trainer)
    assert not list(tmp_path.glob("sensitive-*"))
    for path in tmp_path.glob("checkpoint-*"):
        assert "spent" not in torch.load(path, weights_only=True)
    equidp.write_card(run, tmp_path / "card.md")
    card = (tmp_path / "card.md").read_text()
    assert f"{FULL} steps at the whole bound" in card
    code = card.split("```python\n")[1].split("```")[0] if "```python" in card else ""
    assert "RdpAccountant" in (code or card)


def test_the_ledger_says_what_accounts_hold_and_what_all_steps_cost(tmp_path, capsys):
    trainer, _ = run_in(tmp_path)
    run = trainer.fit()
    trainer.ledger.close()
    entries = read_ledger(tmp_path / "ledger").entries
    assert entries == ((trainer.event, STEPS),)
    assert isinstance(trainer.event, FilteredStepEvent)
    assert trainer.event.run == trainer.ledger.run_id
    show_command(tmp_path / "ledger", delta=1e-5)
    shown = capsys.readouterr().out
    assert f"epsilon {run.epsilon():.6g} at delta 1e-05" in shown
    assert str(trainer.event) in shown


def test_two_trainers_with_one_ledger_charge_what_the_other_took():
    ledger = MemoryLedger()
    first, second = filtered(ledger=ledger), filtered(ledger=ledger, steps=STEPS + 5)
    assert first.event == second.event
    first.fit()
    second.fit()
    assert second.accounts.sensitive_spent.tolist() == [FULL * WHOLE] * 300  # before its first step


@pytest.mark.parametrize("steps", [2, STEPS])
def test_what_checks_epsilon_gives_the_epsilon_that_is_shown(tmp_path, capsys, steps):
    """Also where a run was stopped so early that epsilon is that of its steps, by another order."""
    trainer = run_in(tmp_path)[0] if steps == STEPS else stopped(tmp_path, steps)
    run = trainer.fit() if steps == STEPS else trainer.run()
    trainer.ledger.close()
    equidp.write_card(run, tmp_path / "card.md")
    card = (tmp_path / "card.md").read_text()
    assert ("epsilon is that of the steps taken" in card) == (steps < FULL)
    capsys.readouterr()
    exec(card.split("```python\n")[1].split("```")[0], {})
    expected = run.epsilon() if steps > FULL else run.epsilon(accountant="pld")  # which the card has too
    assert float(capsys.readouterr().out) == pytest.approx(expected, rel=1e-6)
    assert f"{expected:.6g}" in card
    show_command(tmp_path / "ledger", delta=1e-5)
    shown = capsys.readouterr().out
    assert ("at order" in shown.split("To check")[1]) == (steps > FULL)
    assert f"count={min(steps, FULL)})" in shown


REFUSED = {
    "no accounts for the callback": ("full_steps", {"full_steps": None}),
    "more than the plan": ("full_steps", {"full_steps": STEPS + 1}),
    "no step": ("full_steps", {"full_steps": 0}),
    "statistics": ("full_steps", {"policy": equidp.DPSGDF(1.0)}),
    "no noise": ("full_steps", {"noise_multiplier": 0.0}),
    "no privacy": ("full_steps", {"policy": equidp.SGD(), "noise_multiplier": 0.0}),
    "rates by group": ("full_steps", {"rates": {"a": 0.5}}),
    "a budget": ("full_steps", {"budget": equidp.PrivacyBudget(epsilon=9.0, delta=1e-5)}),
    "privacy losses": ("full_steps", {"accountant": "pld"}),
    "the older conversion": ("full_steps", {"accountant": "rdp-classic"}),
    "not in memory": ("full_steps", {"train": torch.utils.data.TensorDataset(toy().inputs, toy().targets)}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_accounts_do_not_go_with_is_refused_before_anything_is_spent(name):
    field, changed = REFUSED[name]
    ledger = MemoryLedger()
    with raises_field(SettingError, field):
        filtered(ledger=ledger, **changed).fit()
    assert ledger.steps == 0


def test_accounts_without_the_callback_and_another_ledger_are_refused():
    trainer = filtered(norms=equidp.Callback())
    with raises_field(SettingError, "callbacks"):
        trainer.fit()
    assert trainer.steps_done == 0
    with raises_field(SettingError, "ledger"):
        trainer.attach(MemoryLedger())


@pytest.mark.parametrize("wrong", [{}, {"interval": 2, "per_epoch": 1.0}, {"interval": 0}, {"per_epoch": 0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError):
        IndividualFilter(**wrong)


def test_data_that_changed_between_two_parts_of_a_run_is_refused():
    norms = IndividualFilter(interval=4)
    trainer = filtered(Stop(3), norms=norms)
    with pytest.raises(equidp.TrainingStopped):
        trainer.fit()
    trainer.train.inputs[0] += 1.0
    with raises_field(DataError, "train"):
        trainer.fit()


def test_people_with_several_rows_have_an_account_each():
    people = equidp.by_person(toy(), torch.arange(300) // 3, 3)
    trainer = filtered(train=people, batch_size=100)
    trainer.fit()
    assert len(trainer.accounts.sensitive_spent) == 100
    assert trainer.accounts.sensitive_spent.max() <= FULL * WHOLE
