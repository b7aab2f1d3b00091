"""Accounts are saved with checkpoints: a resumed run counts as one that was never stopped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn

import equidp
from equidp.errors import CheckpointError, SettingError
from equidp.kernel.noise import SeededRandomness
from support.errors import raises_field
from support.toy import toy

SETTINGS = {
    "exact": equidp.Individual(1, grid=0.05),
    "held": equidp.Individual(4, grid=0.05),
    "clipping": equidp.Individual(per_epoch=0.2, clipping=True, grid=0.05),
}
POLICIES = {"dpsgd": lambda: equidp.DPSGD(0.5), "dpsgd-f": lambda: equidp.DPSGDF(0.5, smoothing=0.5)}
STEPS = 15


@pytest.fixture
def quiet(monkeypatch):
    """No noise but for what is accounted: with every example in each sample, nothing is random."""
    monkeypatch.setattr(SeededRandomness, "normal", lambda self, count, *_: torch.zeros(count).double())


def run_in(folder, individual, policy=None, *, sample=300, seconds=3600.0):
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    checkpoints = equidp.Checkpoints(folder, seconds=seconds)
    trainer = equidp.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=2.0), toy(), method=policy or equidp.DPSGD(0.5),
        batch_size=sample, steps=STEPS, noise_multiplier=4.0, delta=1e-5,
        ledger=equidp.Ledger(folder / "ledger"), seed=1, individual=individual,
        callbacks=[checkpoints],
    )  # fmt: skip
    return trainer, checkpoints


def take(trainer, until):
    """Take steps up to a number, and save."""
    while trainer.steps_done < until and trainer.step():
        pass
    trainer.run()  # ends the loop


def counted(trainer):
    trainer.individual.settle()
    return trainer.individual.counts.astype(int), trainer.individual.group_counts


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "policy"), [("exact", "dpsgd-f"), ("held", "dpsgd-f"), ("clipping", "dpsgd")]
)
def test_a_resumed_run_counts_as_one_that_was_never_stopped(tmp_path, quiet, name, policy):
    once, _ = run_in(tmp_path / "whole", SETTINGS[name], POLICIES[policy]())
    once.fit()
    for until in (6, 7, STEPS):
        resumed, checkpoints = run_in(tmp_path / "parts", SETTINGS[name], POLICIES[policy]())
        if until > 6:
            assert checkpoints.restore(resumed) == 0
        take(resumed, until)
        resumed.ledger.close()
    for one, other in zip(counted(once), counted(resumed), strict=True):
        assert_array_equal(one, other)
    assert resumed.individual.in_full == 0
    assert len(np.unique(counted(once)[0], axis=0)) > 20
    expected, found = (each.individual_report(accountant="rdp") for each in (once, resumed))
    assert_array_equal(found.sensitive_epsilons, expected.sensitive_epsilons)
    assert_array_equal(found.group_epsilons, expected.group_epsilons)
    assert found.guaranteed == expected.guaranteed


@pytest.mark.soak
@pytest.mark.parametrize("name", SETTINGS)
def test_lost_steps_count_in_full_for_everyone_and_others_exactly(tmp_path, quiet, name):
    trainer, _ = run_in(tmp_path, SETTINGS[name])
    take(trainer, 6)
    history = counted(trainer)[0]
    trainer.ledger.close()
    killed, checkpoints = run_in(tmp_path, SETTINGS[name])
    checkpoints.restore(killed)
    killed.step()
    killed.ledger._file.close()  # as after SIGKILL: no checkpoint has the step

    resumed, checkpoints = run_in(tmp_path, SETTINGS[name])
    lost = checkpoints.restore(resumed)
    assert lost >= 1
    resumed.step()
    history[:, -1] += lost
    assert resumed.individual.in_full == lost
    assert (counted(resumed)[0] >= history).all()
    resumed.fit()
    report = resumed.individual_report(accountant="rdp")
    assert (counted(resumed)[0].sum(axis=1) == STEPS).all()
    assert (report.sensitive_epsilons <= report.largest).all()


def test_without_the_file_all_steps_so_far_count_in_full(tmp_path):
    trainer, checkpoints = run_in(tmp_path, SETTINGS["held"])
    take(trainer, 6)
    trainer.ledger.close()
    checkpoints.delete_sensitive()
    assert not list(tmp_path.glob("sensitive*"))
    assert list(tmp_path.glob("checkpoint-*"))
    resumed, checkpoints = run_in(tmp_path, SETTINGS["held"])
    checkpoints.restore(resumed)
    resumed.fit()
    assert (counted(resumed)[0][:, -1] >= 6).all()
    assert (counted(resumed)[0].sum(axis=1) == STEPS).all()
    assert resumed.individual.in_full == 6


def test_nothing_of_single_examples_is_in_a_checkpoint(tmp_path):
    states = []
    for name, individual in (("with", SETTINGS["held"]), ("without", None)):
        trainer, _ = run_in(tmp_path / name, individual)
        take(trainer, 3)
        states.append(torch.load(max((tmp_path / name).glob("checkpoint-*")), weights_only=True))
    assert set(states[0]) == set(states[1])


def test_other_settings_are_refused(tmp_path):
    trainer, _ = run_in(tmp_path, SETTINGS["held"])
    take(trainer, 6)
    trainer.ledger.close()
    resumed, checkpoints = run_in(tmp_path, equidp.Individual(4))
    with raises_field(SettingError, "individual"):
        checkpoints.restore(resumed)


def test_a_damaged_file_is_refused_with_advice(tmp_path):
    trainer, _ = run_in(tmp_path, SETTINGS["exact"])
    take(trainer, 6)
    trainer.ledger.close()
    last = max(tmp_path.glob("sensitive/*"))
    content = last.read_bytes()
    last.write_bytes(content[:-9])
    resumed, checkpoints = run_in(tmp_path, SETTINGS["exact"])
    with raises_field(CheckpointError, "path", "previous=True"):
        checkpoints.restore(resumed)
