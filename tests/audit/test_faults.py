"""The audit's proof of power: it catches faults of the kernel that are planted here, and none without.

Caught: the lower bound exceeds the claim. Without a fault that happens in one of 20 audits at most, and more
rarely in fact: both rates would have to be off, each by 2 standard errors. Faults of noise and samples that
an attack along one direction does not see are caught by tests of the draws themselves. All seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import equidp
import equidp.kernel.run
from support.draws import ALARM, Draws, alarms, chances, record
from support.faults import (
    FAULTS,
    NOISE_FAULTS,
    SAMPLE_FAULTS,
    groups_drawn_alike,
    noise_changed,
    samples_changed,
)


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


GROUPS = torch.arange(64) % 2


@pytest.mark.parametrize("rates", [None, {"1": 0.25}], ids=["one rate", "rates by group"])
def test_draws_as_claimed_are_passed_over(rates):
    assert alarms(record(GROUPS, **({} if rates is None else {"rates": rates}))) == []


@pytest.mark.parametrize("name", NOISE_FAULTS)
def test_noise_is_looked_at_in_every_parameter_and_step(name, monkeypatch):
    noise_changed(NOISE_FAULTS[name])(monkeypatch)
    found = alarms(record(GROUPS))
    assert found
    assert all("noise" in each for each in found)


@pytest.mark.parametrize("name", SAMPLE_FAULTS)
def test_samples_are_looked_at_for_every_example_and_at_all_distances(name, monkeypatch):
    monkeypatch.setattr(equidp.kernel.run, "PoissonSampler", samples_changed(name))
    found = alarms(record(GROUPS))
    assert found
    assert all("sampl" in each for each in found)


def test_a_group_that_is_drawn_as_all_others_are_is_found(monkeypatch):
    groups_drawn_alike(monkeypatch)
    assert "rate of sampling" in alarms(record(GROUPS, rates={"1": 0.25}))


@pytest.mark.soak
def test_draws_as_claimed_raise_no_alarm_and_chances_are_right():
    """Each kind of test is below .01 in one of 100 recordings at most; 10 of 100 or more: below 1e-6; seed
    fixed."""
    generator, small = np.random.default_rng(0), {}
    assert ALARM == 1e-6
    for number in range(100):
        rate, n = ((0.5, 40), (0.1, 100))[number % 2]
        members = generator.random((300, n)) < rate
        draws = Draws(generator.standard_normal((300, 53)), [12, 1, 40], members, np.full(n, rate))
        assert alarms(draws) == []
        for name, found in chances(draws):
            small[name] = small.get(name, 0) + (np.min(found) * np.size(found) < 0.01)
    assert max(small.values()) < 10, small


@pytest.mark.parametrize(
    "test", ["variance of the noise of a tensor in a step", "variance of the sum of a tensor's noise"]
)
def test_noise_that_lacks_in_few_steps_or_in_the_sum_of_a_tensor_is_found(test):
    generator = np.random.default_rng(0)
    noise, members = generator.standard_normal((200, 240)), generator.random((200, 64)) < 0.5
    if "step" in test:
        noise[10::50, 200:] = 0.0
    else:
        noise[:, :200] -= noise[:, :200].mean(axis=1, keepdims=True)
    assert test in alarms(Draws(noise, [200, 40], members, np.full(64, 0.5)))
