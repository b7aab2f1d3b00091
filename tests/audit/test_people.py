"""Audits of people: what a person of several rows can be told apart by is what epsilon says, and no more."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import equidp
from equidp.audit.bounds import NoiseFamily, Rates, noise_from_rates
from equidp.audit.canary import CanaryEngine, Directions, with_canaries
from equidp.audit.step import RepeatedRuns
from equidp.data.people import by_person
from equidp.engines import make_engine
from equidp.engines.units import reader_of
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from support.faults import noise_halved
from support.toy import toy

ROWS, RUNS, DELTA, LEVEL = 4, 600, 1e-3, 0.99
EVENT = StepEvent(1.0, 2.0)


def crowd() -> tuple[equidp.GroupedDataset, list[int]]:
    """Twenty people of ordinary rows, and last a canary: four rows with the same large gradient."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20 * 2 + ROWS, 6, generator=generator)
    targets = torch.arange(len(inputs)) % 2
    inputs[-ROWS:], targets[-ROWS:] = torch.eye(6)[0] * 50, 1
    whose = [number // 2 for number in range(40)] + [20] * ROWS
    groups = torch.zeros(len(inputs), dtype=torch.int64)
    return equidp.GroupedDataset(inputs, targets, groups, ("a",), ("no", "yes")), whose


def seen(data: equidp.GroupedDataset, present: int, seed: int) -> np.ndarray:
    """The released gradients of the first `present` examples, along that of the canary, [RUNS].

    The adversary knows the others, so what they add is taken off.
    """
    model = nn.Linear(6, 2, bias=False)
    nn.init.zeros_(model.weight)
    loss = data.training_loss()
    engine = make_engine("ghost", reader_of(model, loss), loss)

    def step(randomness: SeededRandomness, noise: float) -> PrivateStep:
        settings = {"expected_batch_size": 1.0, "num_groups": 1, "ledger": MemoryLedger()}
        event = EVENT if noise else StepEvent(1.0, 1e-9)
        return PrivateStep(
            *(engine, equidp.DPSGD(1.0), [model.weight]), event=event, randomness=randomness, **settings
        )

    def released(private: PrivateStep, count: int) -> float:
        private(data.inputs[:count], data.trained_targets[:count], data.groups[:count])
        return float(model.weight.grad[0, 0] - model.weight.grad[1, 0]) / math.sqrt(2)

    others = len(data) - (1 if data.rows else ROWS)
    background = released(step(SeededRandomness(0), 0.0), others)
    noisy = step(SeededRandomness(1 + seed), 1.0)
    return np.array([released(noisy, present) - background for _ in range(RUNS)])


def lower_bound(data: equidp.GroupedDataset) -> float:
    """Of epsilon, at LEVEL, from guesses by a threshold half-way between both means.

    The threshold does not depend on the runs that are counted.
    """
    whole, others = len(data), len(data) - (1 if data.rows else ROWS)
    with_canary, without = seen(data, whole, 1), seen(data, others, 2)
    tried_with, tried_without = with_canary[: RUNS // 3], without[: RUNS // 3]
    threshold = (tried_with.mean() + tried_without.mean()) / 2
    sign = 1.0 if tried_with.mean() > tried_without.mean() else -1.0
    counted = RUNS - RUNS // 3
    found, false = (
        int((sign * each[RUNS // 3 :] > sign * threshold).sum()) for each in (with_canary, without)
    )
    family = NoiseFamily([(EVENT, 1)])
    return noise_from_rates(Rates(found, counted, false, counted), family, DELTA, LEVEL)


@pytest.fixture(scope="module")
def claimed() -> float:
    return epsilon(((EVENT, 1),), DELTA)


@pytest.mark.soak
def test_people_are_told_apart_no_better_than_epsilon_says(claimed):
    """False alarms: 1% where the claim is tight; seeds are fixed."""
    rows, whose = crowd()
    bound = lower_bound(by_person(rows, whose, most_rows=ROWS))
    assert 0 < bound < claimed


@pytest.mark.soak
def test_the_audit_finds_rows_that_are_clipped_one_by_one_where_people_are_promised(claimed):
    """Each of the canary's rows has a bound of its own then, and all four move the sum by four bounds."""
    rows, _ = crowd()
    assert lower_bound(rows) > claimed


def people(n: int = 60) -> equidp.GroupedDataset:
    """n people, of whom the first half have three rows and the others one."""
    return by_person(toy(2 * n), [*range(n), *range(n // 2), *range(n // 2)], most_rows=3)


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, 16), nn.Tanh(), nn.Linear(16, classes))


PLAN = equidp.Plan(wide, batch_size=60)


@pytest.mark.soak
def test_a_step_on_people_is_audited_and_halved_noise_is_found(monkeypatch):
    """Seeds are fixed; see test_faults on what chance does."""
    sound = equidp.audit_step(people(), plan=PLAN, runs=300, secure=False)
    assert 0 < sound.bound < sound.claimed == pytest.approx(4.0, rel=1e-3)
    assert sound.procedure == "one step on people of up to 3 rows"
    noise_halved(monkeypatch)
    assert equidp.audit_step(people(), plan=PLAN, runs=300, secure=False).exceeds


def test_canaries_of_people_leave_the_sum_of_the_others_as_it_is():
    data, groups = people(8), torch.tensor([0, 1])
    model = nn.Linear(5, 2)
    loss = data.training_loss()
    engine = make_engine("ghost", reader_of(model, loss), loss)
    parameters = list(model.parameters())
    directions = Directions(torch.tensor([[3], [7]]), torch.tensor([[1.0], [-1.0]]))
    own = CanaryEngine(engine, parameters, directions, torch.ones(2), 2)
    everyone = with_canaries(data, groups)
    weights = torch.linspace(0.5, 2.0, 10)

    def summed(which: CanaryEngine, part: equidp.GroupedDataset) -> torch.Tensor:
        model.zero_grad()
        measured = which(part.inputs, part.trained_targets)
        assert measured.norms[8:].tolist() == [1.0, 1.0][: len(part) - 8]
        measured.weighted_sum(weights[: len(part)])
        return torch.cat([each.grad.flatten() for each in parameters])

    difference = (summed(own, everyone) - summed(own, data)).abs()
    assert sorted(difference.tolist())[-3:] == pytest.approx(
        [0.0, float(weights[8]), float(weights[9])], abs=1e-5
    )


@pytest.mark.soak
def test_a_step_on_rows_with_weights_is_audited(monkeypatch):
    """What the adversary knows of the others holds their weights: half of each, half of the norms."""
    data, known = toy(60), []
    know = RepeatedRuns._know

    def seen(self, generator):
        known.append(know(self, generator))
        return known[-1]

    monkeypatch.setattr(RepeatedRuns, "_know", seen)
    for weights in (torch.ones(60), torch.ones(60) / 2):
        parts = data.inputs, data.targets, data.groups, data.group_names, data.class_names
        weighted = equidp.GroupedDataset(*parts, weights=weights)
        audit = equidp.audit_step(weighted, plan=PLAN, runs=300, secure=False)
        assert 0 < audit.bound < audit.claimed
    whole, half = known
    assert torch.allclose(half.norms, whole.norms / 2, rtol=1e-4)
