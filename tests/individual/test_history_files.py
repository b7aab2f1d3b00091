"""Histories are saved with checkpoints: a resumed run counts as one that was never stopped."""

from __future__ import annotations

import re
import signal

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn

import equidp
from equidp.errors import CheckpointError, DataError, SettingError
from equidp.individual import history_files
from equidp.individual.histories import Histories
from equidp.kernel.noise import SeededRandomness
from support.errors import raises_field
from support.toy import toy

ACCOUNTANTS = {
    "exact": lambda **more: equidp.IndividualAccountant(interval=1, grid=0.05, **more),
    "held": lambda **more: equidp.IndividualAccountant(interval=4, grid=0.05, **more),
    "sampled": lambda **more: equidp.IndividualAccountant("sampled", grid=0.05, **more),
    "clipping": lambda **more: equidp.IndividualClipping(per_epoch=0.2, grid=0.05, **more),
}
POLICIES = {"dpsgd": lambda: equidp.DPSGD(0.5), "dpsgd-f": lambda: equidp.DPSGDF(0.5, smoothing=0.5)}


class Stop(equidp.Callback):
    def __init__(self, steps):
        self.steps = steps

    def after_step(self, trainer):
        if trainer.steps_done == self.steps:
            trainer.stop(equidp.errors.TrainingStopped("stopped.", 15))


@pytest.fixture(autouse=True)
def handlers():
    """As before: a run that is killed in a test gives its handlers of signals back to nobody."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def quiet(monkeypatch):
    """No noise but for what is accounted: with every example in each sample, nothing is random."""
    monkeypatch.setattr(SeededRandomness, "normal", lambda self, count, *_: torch.zeros(count).double())


def run_in(folder, accountant, *callbacks, train=None, policy=None, sample=300, **settings):
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    checkpoints = equidp.Checkpoints(folder, seconds=3600.0)
    trainer = equidp.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=2.0), toy() if train is None else train,
        policy=policy or equidp.DPSGD(0.5), batch_size=sample, steps=15, noise_multiplier=4.0, delta=1e-5,
        ledger=equidp.LedgerFile(folder / "ledger"), secure=False, seed=1,
        callbacks=[accountant, *callbacks, checkpoints], **settings,
    )  # fmt: skip
    return trainer, checkpoints


def stopped(folder, accountant, steps=6, **settings):
    trainer, checkpoints = run_in(folder, accountant, Stop(steps), **settings)
    with pytest.raises(equidp.errors.TrainingStopped):
        trainer.fit()
    trainer.ledger.close()
    return trainer, checkpoints


def killed(folder, accountant, steps):
    """As after SIGKILL: the ledger counts steps that no checkpoint has."""
    trainer, _ = run_in(folder, accountant)
    batches = trainer.batches()
    for callback in trainer.callbacks:
        callback.before_training(trainer)
    for _ in range(steps):
        trainer.step(next(batches))
    trainer.ledger.abandon()


def counted(accountant):
    counts = accountant._counts
    counts.settle()
    return counts.histories.counts, counts.group_histories.counts, counts.group_shares


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_a_resumed_run_counts_as_one_that_was_never_stopped(tmp_path, quiet, name, policy):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    once = ACCOUNTANTS[name]()
    trainer, _ = run_in(whole, once, policy=POLICIES[policy]())
    trainer.fit()
    expected = once.report(trainer, accountant="rdp")
    stopped(parts, ACCOUNTANTS[name](), 6, policy=POLICIES[policy]())
    for steps in (7, 12):
        again = ACCOUNTANTS[name]()
        resumed, checkpoints = run_in(parts, again, Stop(steps), policy=POLICIES[policy]())
        assert checkpoints.restore(resumed) == 0
        with pytest.raises(equidp.errors.TrainingStopped):
            resumed.fit()
        resumed.ledger.close()
    last = ACCOUNTANTS[name]()
    resumed, checkpoints = run_in(parts, last, policy=POLICIES[policy]())
    checkpoints.restore(resumed)
    resumed.fit()
    found = last.report(resumed, accountant="rdp")
    for one, other in zip(counted(once), counted(last), strict=True):
        assert_array_equal(one, other)
    assert_array_equal(found.sensitive_epsilons, expected.sensitive_epsilons)
    assert_array_equal(found.group_epsilons, expected.group_epsilons)
    assert found.guaranteed == expected.guaranteed
    assert len(np.unique(counted(last)[0], axis=0)) > 20


@pytest.mark.soak
@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_lost_steps_count_at_their_worst_for_everyone_and_others_exactly(tmp_path, quiet, name):
    before = ACCOUNTANTS[name]()
    stopped(tmp_path, before, 6)
    history = counted(before)[0]
    again = ACCOUNTANTS[name]()
    trainer, checkpoints = run_in(tmp_path, again)
    checkpoints.restore(trainer)
    batches = trainer.batches()
    for callback in trainer.callbacks:
        callback.before_training(trainer)
    trainer.step(next(batches))
    trainer.ledger.abandon()

    last = ACCOUNTANTS[name]()
    resumed, checkpoints = run_in(tmp_path, last)
    lost = checkpoints.restore(resumed)
    assert lost >= 1
    found = counted(last)[0]
    history[:, -1] += lost
    assert_array_equal(found, history)
    resumed.fit()
    report = last.report(resumed, accountant="rdp")
    assert (counted(last)[0].sum(axis=1) == 15).all()
    assert (report.sensitive_epsilons <= report.largest).all()
    assert (counted(last)[0] >= history).all()


@pytest.mark.soak
def test_the_checkpoint_before_the_last_has_its_histories_too(tmp_path, monkeypatch):
    monkeypatch.setattr("equidp.training.checkpoint._SHARE_OF_TIME", 1e9)
    accountant = ACCOUNTANTS["held"]()
    trainer, checkpoints = run_in(tmp_path, accountant, Stop(9), sample=30)
    checkpoints.seconds = 0.0
    with pytest.raises(equidp.errors.TrainingStopped):
        trainer.fit()
    trainer.ledger.close()
    again = ACCOUNTANTS["held"]()
    resumed, checkpoints = run_in(tmp_path, again, sample=30)
    assert checkpoints.restore(resumed, previous=True) == 1
    expected = counted(accountant)[0].astype(int)
    found = counted(again)[0].astype(int)
    assert (found.sum(axis=1) == 9).all()
    assert (abs(found - expected).sum(axis=1) <= 2).all()  # the last step counts at its worst
    assert (found[:, -1] >= expected[:, -1]).all()


@pytest.mark.soak
def test_steps_of_a_killed_run_are_never_lost(tmp_path):
    killed(tmp_path, ACCOUNTANTS["held"](), 5)
    again = ACCOUNTANTS["held"]()
    resumed, checkpoints = run_in(tmp_path, again)
    lost = checkpoints.restore(resumed)
    assert lost == resumed.steps_done >= 5
    assert (counted(again)[0][:, -1] == lost).all()


@pytest.mark.soak
def test_only_what_the_last_two_checkpoints_need_is_kept_and_all_of_it_can_be_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr("equidp.training.checkpoint._SHARE_OF_TIME", 1e9)
    monkeypatch.setattr(Histories, "add_period", _never_into_the_table)
    (tmp_path / ".sensitive-histories-0-part.17.tmp").write_text("of a process that was killed")
    accountant = ACCOUNTANTS["held"]()
    trainer, checkpoints = run_in(tmp_path, accountant)
    checkpoints.seconds = 0.0
    trainer.fit()
    names = sorted(path.name for path in tmp_path.glob("*sensitive-*"))
    assert (
        sum("-part-" in name for name in names) == 3
    )  # periods that are complete: no step was counted twice
    assert sum("-part-" not in name for name in names) == 2
    checkpoints.delete_sensitive(trainer)
    assert not list(tmp_path.glob("*sensitive-*"))
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2


def _never_into_the_table(self, rows, table, add=Histories.add_period):
    self.num_examples, n = 10**9, self.num_examples
    add(self, rows, table)
    self.num_examples = n


def test_nothing_of_single_examples_is_in_a_checkpoint(tmp_path):
    with_one, without = tmp_path / "with", tmp_path / "without"
    for folder, accountants in ((with_one, [ACCOUNTANTS["held"]()]), (without, [equidp.Callback()])):
        folder.mkdir()
        stopped(folder, *accountants)
    states = [
        torch.load(max(folder.glob("checkpoint-*")), weights_only=True) for folder in (with_one, without)
    ]
    assert set(states[0]) == set(states[1])


@pytest.mark.soak
@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
@pytest.mark.parametrize("which", ["state", "part"])
def test_damaged_histories_are_refused_with_advice(tmp_path, damage, which):
    stopped(tmp_path, ACCOUNTANTS["exact"]())
    files = [path for path in tmp_path.glob("sensitive-*") if ("-part-" in path.name) == (which == "part")]
    last = max(files, key=lambda path: path.stat().st_mtime_ns)
    content = last.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    last.write_bytes({"flip": flipped, "cut": content[:-9]}.get(damage, b""))
    resumed, checkpoints = run_in(tmp_path, ACCOUNTANTS["exact"]())
    with raises_field(CheckpointError, "path", "checksum", "previous=True"):
        checkpoints.restore(resumed)
    assert checkpoints.restore(resumed, previous=True) == 6


def test_a_missing_part_is_refused(tmp_path):
    stopped(tmp_path, ACCOUNTANTS["exact"]())
    for path in tmp_path.glob("sensitive-*-part-*"):
        path.unlink()
    resumed, checkpoints = run_in(tmp_path, ACCOUNTANTS["exact"]())
    with raises_field(CheckpointError, "path"):
        checkpoints.restore(resumed)


@pytest.mark.soak
def test_histories_that_are_gone_count_at_their_worst_where_that_was_asked_for(tmp_path):
    trainer, checkpoints = stopped(tmp_path, ACCOUNTANTS["held"]())
    checkpoints.delete_sensitive(trainer)
    resumed, checkpoints = run_in(tmp_path, ACCOUNTANTS["held"]())
    with raises_field(CheckpointError, "folder"):
        checkpoints.restore(resumed)
    resumed.ledger.close()
    accountant = ACCOUNTANTS["held"](missed_at_worst=True)
    resumed, checkpoints = run_in(tmp_path, accountant)
    checkpoints.restore(resumed)
    resumed.fit()
    assert (counted(accountant)[0][:, -1] >= 6).all()
    assert (counted(accountant)[0].sum(axis=1) == 15).all()


@pytest.mark.soak
def test_histories_of_other_settings_or_data_are_refused(tmp_path):
    stopped(tmp_path, ACCOUNTANTS["held"](), sample=30)
    finer = equidp.IndividualAccountant(interval=4, grid=0.01)
    other_order, fewer = toy(), toy(299)
    reordered = other_order.subset(torch.tensor([1, 0, *range(2, 300)]))
    for error, field, accountant, train in (
        (SettingError, "folder", finer, toy()),
        (SettingError, "folder", ACCOUNTANTS["clipping"](), toy()),
        (DataError, "train", ACCOUNTANTS["held"](), reordered),
    ):
        resumed, checkpoints = run_in(tmp_path, accountant, train=train, sample=30)
        with raises_field(error, field):
            checkpoints.restore(resumed)
        assert resumed.steps_done == 6
        resumed.ledger.close()
    # With another number of examples, steps are of another kind.
    resumed, checkpoints = run_in(tmp_path, ACCOUNTANTS["held"](), train=fewer, sample=30)
    with raises_field(SettingError, "event"):
        checkpoints.restore(resumed)


def test_histories_of_another_version_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(history_files, "_FORMAT", 99)
    stopped(tmp_path, ACCOUNTANTS["held"]())
    monkeypatch.undo()
    resumed, checkpoints = run_in(tmp_path, ACCOUNTANTS["held"]())
    with raises_field(CheckpointError, "format", "99"):
        checkpoints.restore(resumed)


def test_two_accountants_are_kept_apart(tmp_path, quiet):
    ours = [ACCOUNTANTS[name]() for name in ("exact", "held")]
    trainer, _ = run_in(tmp_path, ours[0], ours[1], Stop(6))
    with pytest.raises(equidp.errors.TrainingStopped):
        trainer.fit()
    trainer.ledger.close()
    theirs = [ACCOUNTANTS[name]() for name in ("exact", "held")]
    resumed, checkpoints = run_in(tmp_path, *theirs)
    checkpoints.restore(resumed)
    for one, other in zip(ours, theirs, strict=True):
        assert_array_equal(counted(one)[0], counted(other)[0])
    kinds = {re.match(r"sensitive-histories-\d", path.name)[0] for path in tmp_path.glob("sensitive-*")}
    assert len(kinds) == 2
