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

from equidp.audit.bounds import NoiseFamily
from equidp.audit.canary import log_likelihood_ratio
from equidp.audit.guesses import Bounds, Features, compute_bounds
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import GroupedStepEvent, GroupShare, MemoryLedger, StepEvent
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.sampling import PoissonSampler
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD
from support.given_gradients import GivenGradients, loop_over

DELTA = 1e-3
EVENT = GroupedStepEvent(
    1.0, 0.7, by_group=(GroupShare("sure", 1.0), GroupShare("rare", 0.2), GroupShare("bounded", 1.0, 0.25))
)


def releases(group: int, size: float, runs: int, seed: int) -> np.ndarray:
    """What steps release along the canary's gradient of this length, in units of the sensitivity, [runs]."""
    parameter, labels = torch.nn.Parameter(torch.zeros(1)), torch.tensor([group])
    step = PrivateStep(
        GivenGradients(parameter),
        DPSGD(1.0),
        [parameter],
        event=EVENT,
        expected_batch_size=1.0,
        num_groups=3,
        ledger=MemoryLedger(),
        randomness=SeededRandomness(seed),
    )
    loop = loop_over(step, torch.tensor([[size]]), labels, steps=runs)
    found = []
    for batch in loop.batches():
        loop.take(batch)
        found.append(float(parameter.grad))
    return np.array(found)


def audit(group: int, runs: int) -> tuple[Bounds, float]:
    """Bounds from runs with a canary of the group and without, and the group's claim."""
    share = EVENT.by_group[group]
    claim = EVENT.of_group(share.name)
    assert claim is not None
    sides = []
    for side, size in enumerate((1e3, 0.0)):
        seen = releases(group, size, runs, seed=100 * group + side)
        likelihood = log_likelihood_ratio(
            seen, np.full(runs, share.bound_share), EVENT.noise_multiplier, share.sample_rate
        )
        sides.append(Features(likelihood, np.zeros(runs), np.zeros((runs, 0))))
    found = compute_bounds((sides[0], sides[1]), NoiseFamily([(claim, 1)]), DELTA, 0.95)
    return found, epsilon([(claim, 1)], DELTA)


def drawn_as_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoissonSampler, "_thin", lambda self, step, index: (step, index))


def bounded_as_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equidp.kernel.step._shares_of", lambda *given: (None, None))


def charged_for_twice_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    of_group = GroupedStepEvent.of_group

    def too_little(self: GroupedStepEvent, name: str) -> StepEvent:
        cost = of_group(self, name)
        assert cost is not None
        return StepEvent(cost.sample_rate, 2 * cost.noise_multiplier)

    monkeypatch.setattr(GroupedStepEvent, "of_group", too_little)


FAULTS = {
    "rate": (1, drawn_as_all_others),
    "bound": (2, bounded_as_all_others),
    "account": (0, charged_for_twice_the_noise),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "bound" else pytest.mark.soak) for name in FAULTS]
)
def test_a_fault_of_one_group_is_found_and_none_without(name: str, monkeypatch: pytest.MonkeyPatch):
    group, plant = FAULTS[name]
    found, claimed = audit(group, 600)
    assert found.epsilon <= claimed
    plant(monkeypatch)
    found, claimed = audit(group, 600)
    assert found.epsilon > claimed


@pytest.mark.soak
@pytest.mark.parametrize("group", range(3))
def test_the_bound_is_at_least_half_of_each_group_s_epsilon_and_never_above(group: int):
    found, claimed = audit(group, 20_000)
    assert claimed / 2 <= found.epsilon <= claimed
