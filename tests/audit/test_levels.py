"""An audit of a step whose examples chose their epsilon stays below each level, and finds a level that is
looked up by the group.

As `test_groups.py`: a canary of the level is the one example, its group another number than its level.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equidp.accounting.calibration import calibrate_step
from equidp.accounting.groups import GroupSettings
from equidp.audit.bounds import NoiseFamily
from equidp.audit.canary import log_likelihood_ratio
from equidp.audit.guesses import Bounds, Features, compute_bounds
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger, StepEvent, make_step_event
from equidp.kernel.loop import PrivateLoop
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD
from support.given_gradients import GivenGradients, loop_over

DELTA = 1e-3
LEVELS = "0.5,1.5,4"


def releases(event, level: int, size: float, runs: int, seed: int) -> np.ndarray:
    """What steps release along the canary's gradient of this length, in units of the sensitivity, [runs]."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    step = PrivateStep(
        GivenGradients(parameter), DPSGD(1.0), [parameter], event=event, expected_batch_size=1.0,
        num_groups=3, ledger=MemoryLedger(), randomness=SeededRandomness(seed), own_labels=True,
    )  # fmt: skip
    groups = torch.tensor([2 - level])
    loop = loop_over(step, torch.tensor([[size]]), torch.tensor([level]), steps=runs, groups=groups)
    found = []
    for batch in loop.batches():
        loop.take(batch)
        found.append(float(parameter.grad))
    return np.array(found)


def audit(protect_by: str, level: int, runs: int) -> tuple[Bounds, float]:
    """Bounds from runs with a canary of the level and without, and the level."""
    settings = GroupSettings.of(None, None, None, protect_by, LEVELS)
    noise = calibrate_step(settings.levels[-1], DELTA, StepEvent(0.9, 1.0), 1)
    met = settings.meet_budgets(StepEvent(0.9, noise), 1, DELTA, None)
    event = make_step_event(0.9, noise, by_group=met.shares((), 0.9))
    share = event.by_group[level]
    claim = event.of_group(share.name)
    assert epsilon([(claim, 1)], DELTA) <= settings.levels[level]
    sides = []
    for side, size in enumerate((1e3, 0.0)):
        seen = releases(event, level, size, runs, seed=100 * level + side)
        likelihood = log_likelihood_ratio(
            seen, np.full(runs, share.bound_share), event.noise_multiplier, share.sample_rate
        )
        sides.append(Features(likelihood, np.zeros(runs), np.zeros((runs, 0))))
    found = compute_bounds((sides[0], sides[1]), NoiseFamily([(claim, 1)]), DELTA, 0.95)
    return found, settings.levels[level]


@pytest.mark.soak
@pytest.mark.parametrize("protect_by", ["sampling", "scaling"])
@pytest.mark.parametrize("level", range(3))
def test_the_bound_is_below_each_level(protect_by: str, level: int):
    found, claimed = audit(protect_by, level, 1000)
    assert found.epsilon <= claimed
    assert found.epsilon > 0 or level == 0  # whose canary is in one sample of a hundred


@pytest.mark.soak
@pytest.mark.parametrize("protect_by", ["sampling", "scaling"])
def test_a_level_that_is_looked_up_by_the_group_is_found(protect_by: str, monkeypatch: pytest.MonkeyPatch):
    """The smallest level has the rate, or the bound, of the largest."""
    found, claimed = audit(protect_by, 0, 1000)
    assert found.epsilon <= claimed
    own, init = PrivateStep._checked_labels, PrivateLoop.__init__

    def by_group(self, groups, labels):
        own(self, groups, labels)
        return groups

    def drawn_by_group(self, *given, labels, **further):
        init(self, *given, labels=2 - labels, **further)

    monkeypatch.setattr(PrivateStep, "_checked_labels", by_group)
    if protect_by == "sampling":
        monkeypatch.setattr(PrivateLoop, "__init__", drawn_by_group)
    found, claimed = audit(protect_by, 0, 1000)
    assert found.epsilon > claimed
