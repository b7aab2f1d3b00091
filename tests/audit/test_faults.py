"""The audit's proof of power: it catches faults of the kernel that are planted here, and none without.

Caught: the lower bound exceeds the claim. Without a fault that happens in one of 20 audits at most, and more
rarely in fact: both rates would have to be off, each by 2 standard errors. All seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import equidp
import equidp.kernel.loop
from equidp.audit import draws, setup, step
from equidp.audit.guesses import Bounds
from equidp.engines import make_engine
from equidp.report.audit import audit_sentence
from support.faults import FAULTS, NOISE_FAULTS, SAMPLE_FAULTS, noise_changed, samples_changed
from support.toy import toy


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "noise halved" else pytest.mark.soak) for name in FAULTS]
)
def test_the_audit_catches(name, monkeypatch):
    plant, runs, settings = FAULTS[name]
    sound = equidp.audit_step(runs=runs, secure=False, **settings)
    assert not sound.exceeds, sound.table()
    plant(monkeypatch)
    faulty = equidp.audit_step(runs=runs, secure=False, **settings)
    assert faulty.exceeds, faulty.table()


DATA = toy(64)
SMALL = {
    "train": equidp.GroupedDataset(
        DATA.inputs, DATA.targets, torch.zeros_like(DATA.groups), ("a",), ("no", "yes")
    ),
    "plan": equidp.Plan(lambda shape, classes: nn.Linear(5, 2), batch_size=32),
}


@pytest.fixture
def sampled_audit(monkeypatch):
    """An audit of draws alone: no time goes into bounds, a trial of the model, or a second group."""
    monkeypatch.setattr(setup, "checked_engine", lambda name, model, loss, *_: make_engine(name, model, loss))
    monkeypatch.setattr(step, "compute_bounds", lambda *given: Bounds(0.0, 0.0))
    monkeypatch.setattr(step, "claimed_epsilon", lambda *given: 1.0)
    monkeypatch.setattr(step, "_check_runs", lambda *given: None)
    monkeypatch.setattr(step, "_find_noise", lambda *given: 2.0)
    return lambda **changed: equidp.audit_step(
        runs=100, sample_rate=0.5, secure=False, **{**SMALL, **changed}
    )


@pytest.mark.soak
def test_draws_as_claimed_are_passed_over(sampled_audit):
    found = sampled_audit()
    assert found.draws == ()
    assert not found.exceeds


@pytest.mark.soak
@pytest.mark.parametrize("name", NOISE_FAULTS)
def test_noise_is_looked_at_in_every_parameter_and_step(name, sampled_audit, monkeypatch):
    noise_changed(NOISE_FAULTS[name])(monkeypatch)
    faulty = sampled_audit()
    assert faulty.draws
    assert faulty.exceeds
    assert all(each.p_value <= draws.ALARM and "noise" in each.test for each in faulty.draws)
    assert faulty.draws[0].test in audit_sentence(faulty)


@pytest.mark.soak
@pytest.mark.parametrize("name", SAMPLE_FAULTS)
def test_samples_are_looked_at_for_every_example_and_at_all_distances(name, sampled_audit, monkeypatch):
    monkeypatch.setattr(equidp.kernel.loop, "PoissonSampler", samples_changed(name))
    faulty = sampled_audit(train=DATA)  # of two groups: more samples
    assert faulty.draws
    assert faulty.exceeds
    assert all("sampl" in each.test for each in faulty.draws)


@pytest.mark.soak
def test_draws_as_claimed_raise_no_alarm_and_chances_are_right():
    """Each kind of test is below .01 in one of 100 audits at most; 10 of 100 or more: below 1e-6; seed
    fixed."""
    generator, tensors = np.random.default_rng(0), {"weight": 12, "bias": 1, "other": 40}
    small: dict[str, int] = {}
    assert draws.ALARM == 1e-6
    for audit in range(100):
        rate, n = ((0.5, 40), (0.1, 100))[audit % 2]
        stretches = []
        for _ in range(3):
            record = draws.DrawRecord(tensors, n, rate)
            for _ in range(100):
                record.note(generator.standard_normal(53), np.flatnonzero(generator.random(n) < rate))
            stretches.append(record.arrays())
        assert draws.check_draws(stretches, tensors, rate) == ()
        kinds = [*draws._noise_tests(stretches, tensors), *draws._sample_tests(stretches, rate)]
        for each in kinds:
            small[each.test] = small.get(each.test, 0) + (each.p_value < 0.01)
    assert max(small.values()) < 10, small


def test_parameters_of_a_large_model_are_watched_in_each_tensor(monkeypatch):
    monkeypatch.setattr(draws, "_PARAMETERS", 100)
    tensors = {"bias": 3, "weight": 10_000, "scale": 1}
    places = draws.watched_places(tensors)
    assert len(places) == len(set(places)) <= 100
    assert set(places) >= {0, 1, 2, 3, 10_002, 10_003}
    record = draws.DrawRecord(tensors, 4, 1.0)
    for _ in range(300):
        noise = np.random.default_rng(len(record._taken)).standard_normal(10_004)
        noise[3:10_003] *= 0.99
        record.note(noise, np.arange(4))
    (found,) = draws.check_draws([record.arrays()], tensors, 1.0)
    assert (found.test, found.place) == ("variance of the noise of a tensor", "weight")


@pytest.mark.parametrize(
    ("test", "place"),
    [
        ("variance of the noise of a tensor in a step", "bias, step 10"),
        ("variance of the sum of a tensor's noise", "weight"),
    ],
)
def test_noise_that_lacks_in_few_steps_or_in_the_sum_of_a_tensor_is_found(test, place):
    generator, tensors = np.random.default_rng(0), {"weight": 2000, "bias": 40}
    record = draws.DrawRecord(tensors, 4, 1.0)
    for at in range(200):
        noise = generator.standard_normal(2040)
        if place == "weight":
            noise[:2000] -= noise[:2000].mean()
        elif at % 50 == 10:
            noise[2000:] = 0.0
        record.note(noise, np.arange(4))
    (found,) = draws.check_draws([record.arrays()], tensors, 1.0)
    assert (found.test, found.place) == (test, place)
