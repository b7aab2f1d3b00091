"""A stopped run goes on: from what was saved, with what was spent spent, and with noise that was never drawn
before."""

from __future__ import annotations

import errno
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

import equidp
from equidp.errors import BudgetError, CheckpointError, SettingError
from equidp.kernel.noise import SeededRandomness
from equidp.training import checkpoint
from support.errors import raises_field
from support.toy import make_trainer, toy


class At(equidp.Callback):
    """Does something after a number of steps."""

    def __init__(self, steps, action):
        self.steps, self.action = steps, action

    def after_step(self, trainer):
        if trainer.steps_done == self.steps:
            self.action()


def stop(*_):
    signal.raise_signal(signal.SIGTERM)


def trainer_in(
    folder, *callbacks, seconds=3600.0, method=None, scheduled=False, run_id=None, adam=False, **settings
):
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    if adam:
        optimizer = equidp.PrivateAdam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5) if scheduled else None
    given = {
        "scheduler": scheduler,
        "batch_size": 30,
        "epochs": 4,
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        **settings,
    }
    checkpoints = equidp.Checkpoints(folder, seconds=seconds)
    ledger = equidp.Ledger(folder / "ledger")
    ledger = ledger if run_id is None else (ledger, run_id)
    trainer = equidp.Trainer(
        model, optimizer, toy(), method=method or equidp.DPSGDF(1.0, smoothing=0.5), ledger=ledger,
        callbacks=[*callbacks, checkpoints], **given,
    )  # fmt: skip
    if adam:
        optimizer.deviation = lambda: 0.01  # so that all of its state matters where nothing is random
    return trainer, checkpoints


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_training_after_the_step_and_the_run_goes_on_exactly(tmp_path, number):
    handler = signal.getsignal(number)
    stopped, _ = trainer_in(tmp_path, At(13, lambda: signal.raise_signal(number)), scheduled=True)
    with pytest.raises(equidp.errors.TrainingStopped, match=f"stopped by {number.name}. To continue:\n"):
        stopped.fit()
    assert signal.getsignal(number) == handler
    assert stopped.steps_done == 13
    stopped.ledger.close()

    resumed, checkpoints = trainer_in(tmp_path, scheduled=True)
    assert resumed.steps_done == 0  # a new run, until it is restored
    assert checkpoints.restore(resumed) == 0
    assert (resumed.steps_done, resumed.run_id) == (13, stopped.run_id)
    torch.testing.assert_close(resumed.model.state_dict(), stopped.model.state_dict())
    assert repr(resumed.optimizer.state_dict()) == repr(stopped.optimizer.state_dict())
    assert resumed.scheduler.state_dict() == stopped.scheduler.state_dict()
    assert repr(resumed.policy_state) == repr(stopped.policy_state)
    run = resumed.fit()
    assert [steps for _, steps in run.entries] == [40]


EXACT = {"method": equidp.SGD(), "batch_size": 300, "noise_multiplier": None, "epochs": 20}
"""Without noise and with every example in each batch nothing is random."""


def train_in(folder, *stops, **plan):
    """Train to the end, with these stops on the way; return the last trainer and its run."""
    folder.mkdir()
    for number, steps in enumerate((*stops, None)):
        trainer, checkpoints = trainer_in(folder, *([At(steps, stop)] if steps else []), **EXACT, **plan)
        if number:
            checkpoints.restore(trainer)
        if steps:
            with pytest.raises(equidp.errors.TrainingStopped):
                trainer.fit()
        else:
            run = trainer.fit()
        trainer.ledger.close()
    return trainer, run


@pytest.mark.soak
@pytest.mark.parametrize(
    ("stops", "plan"),
    [
        ((4, 11), {"scheduled": True}),
        ((11,), {"scheduled": True, "adam": True}),
        ((4, 9, 15), {"schedule": "linear", "average": "tail", "average_share": 0.6}),
        ((9,), {"schedule": "cosine", "average": "ema", "average_share": 0.3}),
    ],
    ids=["sgd", "adam", "tail", "ema"],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, stops, plan):
    """Weights, and what is released of them; stops before a tail begins, at its first step and within it."""
    whole, expected = train_in(tmp_path / "whole", **plan)
    last, run = train_in(tmp_path / "parts", *stops, **plan)
    torch.testing.assert_close(last.model.state_dict(), whole.model.state_dict())
    torch.testing.assert_close(run.model.state_dict(), expected.model.state_dict())
    if "average" in plan:
        assert not torch.allclose(run.model.weight, last.model.weight, rtol=1e-3)
        done, checkpoints = trainer_in(tmp_path / "parts", **EXACT, **plan)
        checkpoints.restore(done)
        torch.testing.assert_close(done.run().model.state_dict(), expected.model.state_dict())


@pytest.mark.parametrize("by", ["checkpoint", "name"])
def test_a_run_that_goes_on_draws_nothing_that_it_drew_before(tmp_path, by):
    trainer, _ = trainer_in(tmp_path, At(3, stop), seed=7)
    before = SeededRandomness(7).words(10**5)
    with pytest.raises(equidp.errors.TrainingStopped):
        trainer.fit()
    assert trainer.randomness.words(1) in before
    trainer.ledger.close()
    again, checkpoints = trainer_in(tmp_path, seed=7, run_id=trainer.run_id if by == "name" else None)
    if by == "checkpoint":
        checkpoints.restore(again)
    assert again.steps_done == 3
    assert not np.isin(again.randomness.words(1000), before).any()
    again.ledger.close()


@pytest.mark.soak
def test_the_last_two_checkpoints_are_kept_and_load_safely(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SHARE_OF_TIME", 1e9)
    (tmp_path / ".0123456789abcdef.tmp").write_text("of a process that was killed")
    (tmp_path / ".mine.tmp").write_text("of somebody else")
    trainer, _ = trainer_in(tmp_path, seconds=0.0)
    trainer.fit()
    files = sorted(tmp_path.glob("checkpoint-*"))
    assert len(files) == 2
    for file in files:
        assert torch.load(file, weights_only=True)["steps"] in (39, 40)
    assert [path.name for path in tmp_path.glob(".*.tmp")] == [".mine.tmp"]


@pytest.mark.soak
def test_a_damaged_checkpoint_is_refused_and_the_one_before_offered(tmp_path):
    trainer, _ = trainer_in(tmp_path, At(13, stop))
    with pytest.raises(equidp.errors.TrainingStopped):
        trainer.fit()
    trainer.ledger.close()
    last = max(tmp_path.glob("checkpoint-*"))
    content = last.read_bytes()
    middle = len(content) // 2
    last.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    resumed, checkpoints = trainer_in(tmp_path)
    with raises_field(CheckpointError, "checkpoint", "after 0 steps", "previous=True"):
        checkpoints.restore(resumed)
    assert checkpoints.restore(resumed, previous=True) == 13
    assert resumed.fit().entries[0][1] == 40
    assert checkpoints.steps_kept() == 40


@pytest.mark.soak
def test_what_a_checkpoint_does_not_belong_to_is_refused(tmp_path):
    """Another plan; another ledger, with as many steps of another model, or from before the checkpoint."""
    for name in ("own", "other", "empty"):
        (tmp_path / name).mkdir()
    before = tmp_path / "own" / "before"
    keep = At(2, lambda: before.write_bytes((tmp_path / "own" / "ledger").read_bytes()))
    for folder, callbacks in (("own", [keep]), ("other", [])):
        trainer, _ = trainer_in(tmp_path / folder, *callbacks, At(13, stop), schedule="linear", average="ema")
        with pytest.raises(equidp.errors.TrainingStopped):
            trainer.fit()
        trainer.ledger.close()
    same = {"schedule": "linear", "average": "ema"}
    for folder, changes, error, field in (
        ("own", {"average": "none"}, SettingError, "average"),
        ("own", {"schedule": "constant"}, SettingError, "scheduler"),
        ("own", {"steps": 99, "epochs": None}, SettingError, "steps"),
        ("own", {"method": equidp.DPSGDF(2.0)}, SettingError, "policy"),
        ("own", {"noise_multiplier": 2.0}, SettingError, "event"),
        ("other", {}, BudgetError, "steps"),
        ("empty", {}, BudgetError, "steps"),
        ("before", {}, BudgetError, "steps"),
    ):
        if folder == "before":
            (tmp_path / "own" / "ledger").write_bytes(before.read_bytes())
            folder = "own"
        trainer, _ = trainer_in(tmp_path / folder, **same | changes)
        weight = trainer.model.weight.detach().clone()
        with raises_field(error, field):
            equidp.Checkpoints(tmp_path / "own").restore(trainer)
        assert torch.equal(trainer.model.weight, weight)
        trainer.ledger.close()


@pytest.mark.soak
def test_a_new_run_leaves_the_checkpoints_of_a_stopped_one(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SHARE_OF_TIME", 1e9)  # after every step

    def new_run(*callbacks):
        return make_trainer(toy(), steps=6, epochs=None, callbacks=[*callbacks, checkpoints])

    checkpoints = equidp.Checkpoints(tmp_path, seconds=0)
    with pytest.raises(equidp.errors.TrainingStopped):
        new_run(At(4, stop)).fit()
    kept = sorted(tmp_path.iterdir())
    other = new_run()
    for _ in range(2):
        with raises_field(CheckpointError, "folder"):
            other.fit()
    assert other.steps_done == 0
    assert sorted(tmp_path.iterdir()) == kept
    newest = max(kept)
    newest.write_bytes(newest.read_bytes()[:-1])  # the one before is still worth keeping
    with raises_field(CheckpointError, "folder"):
        new_run().fit()
    for path in kept:
        path.unlink()
    new_run().fit()
    new_run().fit()  # in the folder of a finished run
    assert checkpoints.steps_kept() == 6


def test_a_loop_of_ones_own_saves_between_steps(tmp_path):
    trainer, checkpoints = trainer_in(tmp_path)
    trainer.step()
    checkpoints.save(trainer)
    assert checkpoints.steps_kept() == 1
    saved = trainer.model.weight.detach().clone()
    trainer.ledger.close()
    other, checkpoints = trainer_in(tmp_path)
    assert checkpoints.restore(other) == 0
    assert torch.equal(other.model.weight, saved)
    other.ledger.close()


def test_a_full_disk_stops_training_and_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "_SHARE_OF_TIME", 1e9)
    trainer, checkpoints = trainer_in(
        tmp_path, At(5, lambda: monkeypatch.setattr(checkpoint, "write_whole", full)), seconds=0.0
    )
    with raises_field(CheckpointError, "folder", "No space left on device"):
        trainer.fit()
    assert trainer.steps_done == 5
    assert checkpoints.steps_kept() == 4


class Counts(equidp.Callback):
    """Counts steps, and the examples of each."""

    def __init__(self):
        self.steps, self.examples = 0, np.zeros(300)

    def after_step(self, trainer):
        self.steps += 1
        self.examples += self.steps

    def state_dict(self):
        return {"steps": self.steps}

    def sensitive_state_dict(self):
        return {"examples": self.examples}

    def load_state_dict(self, state):
        self.steps, self.examples = state["steps"], state.get("examples")


@pytest.mark.soak
def test_callbacks_go_on_where_they_were_and_what_they_hold_of_examples_is_apart(tmp_path):
    stopped, checkpoints = trainer_in(tmp_path, Counts(), At(3, stop), Counts())
    with pytest.raises(equidp.errors.TrainingStopped):
        stopped.fit()
    stopped.ledger.close()
    state = torch.load(max(tmp_path.glob("checkpoint-*")), weights_only=True)
    assert state["callbacks"] == {"Counts": {"steps": 3}, "Counts-2": {"steps": 3}}
    assert len(list((tmp_path / "sensitive").iterdir())) == 4  # of two callbacks, beside two checkpoints
    counts = Counts(), Counts()
    resumed, _ = trainer_in(tmp_path, *counts)
    checkpoints.restore(resumed)
    resumed.fit()
    resumed.ledger.close()
    for each in counts:
        assert each.steps == 40
        assert (each.examples == 40 * 41 / 2).all()
    checkpoints.delete_sensitive()
    assert not (tmp_path / "sensitive").exists()
    done, _ = trainer_in(tmp_path, last := Counts())
    checkpoints.restore(done)
    assert (last.steps, last.examples) == (40, None)
    done.ledger.close()
