"""An audit of the private step by group stays below each group's epsilon, and finds a fault of rate, bound or
account of one group.

A canary of the group is the one example: its gradient is long, and each step is a run, with the canary in the
data or without. The bound is that of `audit_step`: without a fault it exceeds the claim in one of 20 audits
at most, and more rarely in fact. Seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import equidp
from equidp.audit.canary import log_likelihood_ratio
from equidp.audit.guesses import Bounds, Features, compute_bounds
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Cost, Event, Label, Share
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD
from support.faults import groups_drawn_alike
from support.given_gradients import GivenGradients, run_over

DELTA = 1e-3
EVENT = Event(1.0, 0.7, shares=(Share("sure", 1.0), Share("rare", 0.2), Share("bounded", 1.0, 0.25)))


def releases(group: int, size: float, runs: int, seed: int) -> np.ndarray:
    """Releases along a canary's gradient of this length, in units of the sensitivity, [runs]."""
    parameter, labels = torch.nn.Parameter(torch.zeros(1)), torch.tensor([group])
    step = PrivateStep(
        GivenGradients(parameter),
        DPSGD(1.0),
        [parameter],
        event=EVENT,
        expected_batch_size=1.0,
        num_groups=3,
        randomness=SeededRandomness(seed),
    )
    run = run_over(step, torch.tensor([[size]]), labels, steps=runs)
    found = []
    while run.step():
        found.append(float(parameter.grad))
    return np.array(found)


def audit(group: int, runs: int) -> tuple[Bounds, float]:
    """Bounds from runs with a canary of the group and without, and the group's claim."""
    share = EVENT.shares[group]
    claim = ((Event(*EVENT.cost(EVENT.labels[group])), 1),)
    sides = []
    for side, size in enumerate((1e3, 0.0)):
        seen = releases(group, size, runs, seed=100 * group + side)
        likelihood = log_likelihood_ratio(seen, np.full(runs, share.bound), EVENT.noise, share.rate)
        sides.append(Features(likelihood, np.zeros(runs), np.zeros((runs, 0))))
    return compute_bounds((sides[0], sides[1]), claim, DELTA, 0.95), epsilon(claim, DELTA)


def bounded_as_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equidp.kernel.step._shares_of", lambda *given: (None, None))


def charged_for_twice_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Event.cost

    def too_little(self: Event, label: Label | None = None) -> Cost:
        rate, noise = cost(self, label)
        return Cost(rate, 2 * noise)

    monkeypatch.setattr(Event, "cost", too_little)


FAULTS = {
    "rate": (1, groups_drawn_alike),
    "bound": (2, bounded_as_all_others),
    "account": (0, charged_for_twice_the_noise),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_one_group_is_found_and_none_without(name: str, monkeypatch: pytest.MonkeyPatch):
    group, plant = FAULTS[name]
    found, claimed = audit(group, 600)
    assert found.epsilon <= claimed
    plant(monkeypatch)
    found, claimed = audit(group, 600)
    assert found.epsilon > claimed


def step_audit(runs: int) -> equidp.audit.Audit:
    """Audit of a step of the Trainer whose groups have half the rate, or half the bound."""
    draw = torch.Generator().manual_seed(0)
    groups = torch.arange(30) % 3
    data = equidp.GroupedDataset(
        torch.randn(30, 3, generator=draw), groups % 2, groups, ("usual", "rare", "bounded"), ("no", "yes")
    )
    plan = equidp.Plan(batch_size=24, delta=DELTA, rates={"rare": 0.5}, bound_shares={"bounded": 0.25})
    return equidp.audit_step(data, plan=plan, epsilon=4.0, sample_rate=0.8, runs=runs, secure=False)


@pytest.mark.soak
def test_an_audit_of_a_step_has_a_claim_for_each_group():
    """No bound is above its claim."""
    found = step_audit(200)
    by_group = {each.group: each for each in found.bounds}
    for name, event in {
        "usual": Event(0.8, found.noise_multiplier),
        "rare": Event(0.4, found.noise_multiplier),
        "bounded": Event(0.8, 4 * found.noise_multiplier),
    }.items():
        assert by_group[name].claimed == pytest.approx(epsilon([(event, 1)], DELTA), rel=1e-6)
        assert by_group[name].epsilon <= by_group[name].claimed
    assert found.claimed == by_group["usual"].claimed == pytest.approx(4.0, rel=1e-3)
    assert not found.exceeds


@pytest.mark.soak
@pytest.mark.parametrize(("name", "group"), [("bound", "bounded"), ("account", "usual")])
def test_an_audit_of_a_step_finds_a_fault_of_one_group(
    name: str, group: str, monkeypatch: pytest.MonkeyPatch
):
    """Its bound, which may be below the claims of others, is above its own; test_faults finds a wrong
    rate."""
    _, plant = FAULTS[name]
    plant(monkeypatch)
    found = step_audit(400)
    assert group in {each.group for each in found.bounds if each.exceeds}
