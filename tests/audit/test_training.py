"""Audits of whole trainings: canaries in one run, by gradient and by data, continued where they stopped."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import equidp
from equidp.audit.bounds import NoiseFamily, epsilon_of_guesses
from equidp.audit.canary import Directions, with_wrong_labels
from equidp.audit.guesses import best_guesses, equal_gaussian, guess_bound
from equidp.audit.training import CANARIES, WatchedTraining
from equidp.errors import ApproximationWarning, SettingError
from equidp.kernel.ledger import StepEvent
from equidp.kernel.loop import PrivateLoop
from support.errors import raises_field
from support.faults import noise_halved
from support.toy import toy


def wide(n: int = 100, features: int = 200) -> equidp.GroupedDataset:
    """Fewer examples than parameters, so that a model can learn each by heart."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, features, generator=generator)
    return equidp.GroupedDataset(
        inputs, (inputs[:, 0] > 0).long(), torch.arange(n) % 2, ("a", "b"), ("no", "yes")
    )


PLAN = equidp.Plan(
    lambda shape, classes: nn.Linear(shape[0], classes),
    batch_size=300,
    epochs=15,
    learning_rate=0.1,
    noise_multiplier=2.0,
)
"""With 200 canaries everyone is in every step, which makes accounting quick."""
SAMPLED = PLAN.with_changes({"batch_size": 100, "epochs": 5, "noise_multiplier": 1.0})


@pytest.mark.soak
@pytest.mark.parametrize(
    "method", ["dpsgd", "dpsgd-f", "quantile", "quantile-bounded", "softadaclip", "slaclip", "group-dro"]
)
def test_gradients_as_canaries_give_a_bound_below_the_claim(method):
    """With seeds fixed; about a third of the claim is what so few canaries prove of a tight one."""
    audit = equidp.audit_training(wide(), method, plan=PLAN, count=200, secure=False)
    assert 0.1 * audit.claimed < audit.bound < audit.claimed
    assert [(each.group, each.tests) for each in audit.bounds] == [("a", 100), ("b", 100), ("all", 200)]


@pytest.mark.soak
def test_steps_that_sample_are_audited_at_their_epsilon():
    audit = equidp.audit_training(wide(), plan=SAMPLED, epsilon=8.0, count=400, secure=False)
    assert audit.claimed == pytest.approx(8.0, rel=1e-3)
    assert 0.1 * audit.claimed < audit.bound < audit.claimed


@pytest.mark.soak
def test_more_canaries_than_parameters_hide_each_other_and_that_is_said():
    plan = PLAN.with_changes({"model": lambda shape, classes: nn.Linear(shape[0], classes, bias=False)})
    with pytest.warns(ApproximationWarning, match=r"450 canaries share the model's 400 parameters"):
        equidp.audit_training(wide(), plan=plan, count=450, secure=False)


@pytest.mark.soak
def test_far_too_little_noise_is_caught_in_one_run(monkeypatch):
    """A sixteenth of it."""
    for _ in range(4):
        noise_halved(monkeypatch)
    plan = PLAN.with_changes({"noise_multiplier": 8.0})
    audit = equidp.audit_training(wide(), plan=plan, count=200, secure=False)
    assert audit.exceeds


@pytest.mark.soak
def test_wrong_labels_show_in_the_losses_of_a_model_that_learns_by_heart():
    """At an epsilon that protects nobody; only the final losses are seen."""
    plan = PLAN.with_changes({"epochs": 100, "learning_rate": 1.0, "noise_multiplier": 3.0})
    audit = equidp.audit_training(wide(), plan=plan, canaries="data", count=200, secure=False)
    assert 0.5 < audit.bound < audit.claimed


@pytest.mark.soak
def test_a_stopped_audit_continues_where_it_was(tmp_path, monkeypatch):
    settings = {"plan": PLAN, "count": 200, "secure": False, "directory": tmp_path}
    settings["checkpoint_seconds"] = 0.0
    take, taken = PrivateLoop.take, []

    def stopping(self, batch):
        if len(taken) == 4:
            raise KeyboardInterrupt
        take(self, batch)
        taken.append(self.steps_done)

    monkeypatch.setattr(PrivateLoop, "take", stopping)
    with pytest.raises(KeyboardInterrupt):
        equidp.audit_training(wide(), **settings)
    assert taken == [1, 2, 3, 4]
    taken.clear()
    taken.extend([None] * 5)  # no further stop
    first = equidp.audit_training(wide(), **settings)
    assert taken[5:] == list(range(5, 16))
    taken[5:] = []
    assert equidp.audit_training(wide(), **settings) == first
    assert taken[5:] == []  # nothing is trained again


@pytest.mark.soak
def test_schedule_and_average_are_part_of_the_training_that_is_audited(tmp_path):
    """Canaries by data see the released model: another average gives other losses, and another folder."""
    plans = [PLAN.with_changes({"average": each, "schedule": "linear"}) for each in ("none", "tail")]
    settings = {"canaries": "data", "count": 200, "secure": False, "directory": tmp_path}
    for plan in plans:
        equidp.audit_training(wide(), plan=plan, **settings)
    scores = [np.load(path) for path in tmp_path.rglob("scores.*/rows.npy")]
    assert len(scores) == 2
    assert not np.allclose(*scores)


@pytest.mark.soak
def test_who_is_in_stays_the_same_where_an_audit_continues(tmp_path, monkeypatch):
    seen = []

    def noting(self, kept, on_progress, checkpoint_seconds):
        seen.append(self.inside)
        raise KeyboardInterrupt

    monkeypatch.setattr(WatchedTraining, "scores", noting)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            equidp.audit_training(wide(), plan=PLAN, count=200, directory=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        equidp.audit_training(wide(), plan=PLAN, count=200)
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])  # of the operating system: equal once in 2^200


@pytest.mark.soak
def test_rate_and_batch_size_do_not_say_how_many_canaries_are_in(monkeypatch):
    seen = []

    def noting(self, kept, on_progress, checkpoint_seconds):
        seen.append(
            (int(self.inside.sum()), self.event.sample_rate, self.plan.plan.batch_size, self.plan.steps)
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(WatchedTraining, "scores", noting)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            equidp.audit_training(wide(), plan=SAMPLED, count=200)
    assert len({row[1:] for row in seen}) == 1
    assert seen[0][1:] == (100 / 300, 100, 15)


@pytest.mark.soak
@pytest.mark.parametrize("kind", CANARIES)
def test_too_few_canaries_are_refused_with_how_many_are_needed(kind):
    with raises_field(SettingError, "count") as refused:
        equidp.audit_training(wide(), plan=SAMPLED, canaries=kind, count=5)
    assert int(str(refused.value).split()[-3]) > 5


def test_what_cannot_be_audited_is_refused():
    with raises_field(SettingError, "kind of canaries"):
        equidp.audit_training(wide(), plan=PLAN, canaries="gradeint")
    with raises_field(SettingError, "count"):
        equidp.audit_training(wide(), plan=PLAN, count=0)
    with raises_field(SettingError, "noise_multiplier"):
        equidp.audit_training(wide(), plan=PLAN.with_changes({"noise_multiplier": 0.0}))
    with raises_field(SettingError, "noise_multiplier"):
        equidp.audit_training(wide(), "sgd", plan=PLAN)


def test_canaries_by_data_are_rows_of_their_group_with_a_wrong_label():
    train = toy(40)
    groups = torch.tensor([0, 1, 1, 0])
    everyone = with_wrong_labels(train, groups, np.random.default_rng(0))
    assert torch.equal(everyone.groups[40:], groups)
    for place in range(40, 44):
        same = (train.inputs == everyone.inputs[place]).all(dim=1)
        assert torch.equal(train.groups[same], groups[place - 40 : place - 39])
        assert train.targets[same] != everyone.targets[place]


def test_more_canaries_than_parameters_share_them_evenly():
    directions = Directions.single(25, 10, np.random.default_rng(0))
    assert sorted(torch.bincount(directions.places.flatten()).tolist()) == [2] * 5 + [3] * 5


@pytest.mark.soak
def test_the_number_of_guesses_follows_from_the_plan_alone():
    """So that the level holds whatever the scores are."""
    family_mu = equal_gaussian(4.0, 1e-5)
    family = NoiseFamily([(StepEvent(1.0, 1 / family_mu), 1)])
    generator = np.random.default_rng(0)
    above = 0
    for _ in range(60):
        inside = generator.random(300) < 0.5
        scores = generator.standard_normal(300) + family_mu * inside
        above += guess_bound("all", scores, inside, family, family_mu, 1e-5, 0.95).epsilon > 4.0
    assert above <= 8  # a rate of 5% exceeds that once in 200 such tests


def test_perfect_attacks_guess_about_everyone():
    bound = partial(epsilon_of_guesses, delta=1e-6)
    assert best_guesses(200, 20.0, bound)[0] == 200
