"""An audit of prototypes with a real example: bounds below the claim, and above it where a fault is planted.

A sound bound exceeds the claim in one of 20 audits at most; seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import equidp
import equidp.kernel.step
from equidp.audit.bounds import Rates, noise_from_rates
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.ledger.ledger import Ledger
from equidp.models import PrototypeModel
from equidp.policies.prototypes import Prototypes
from equidp.training.build import build_model
from equidp.training.plan import Plan
from equidp.training.trainer import Trainer
from support.faults import noise_halved
from support.toy import toy

EPSILON, DELTA, RUNS = 2.0, 1e-3, 600
RUN = Ledger.new_run()
pytestmark = pytest.mark.soak


class Recorded(torch.optim.Optimizer):
    """Keeps each private gradient, and changes no parameter."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self.seen: list[torch.Tensor] = []

    def step(self, closure=None):  # type: ignore[override]
        self.seen.append(self.param_groups[0]["params"][0].grad.clone())


def audited() -> tuple[float, float]:
    """The claim, and a lower bound at 95% from runs with an example of long features and without it."""
    data = toy(12)
    inputs = data.one_tensor.clone()
    inputs[0] = 3.0 * torch.nn.functional.normalize(inputs[0], dim=0)
    data = equidp.GroupedDataset(
        inputs, data.targets, data.groups, data.group_names, data.class_names, data.source
    )
    plan = Plan(delta=DELTA).for_method("prototypes").with_changes(epsilon=EPSILON).resolve(len(data))
    along = torch.zeros(data.num_classes, inputs.shape[1])
    along[data.targets[0]] = torch.nn.functional.normalize(inputs[0], dim=0)
    scores = []
    for side, part in enumerate((data, data.subset(torch.arange(1, len(data))))):
        model = build_model(plan.plan.factory, part.input_shape, part.num_classes, 0)
        optimizer = Recorded(list(model.parameters()))
        trainer = Trainer(
            model,
            optimizer,
            part,
            method=plan.policy,
            batch_size=len(data) - 1,
            sample_rate=1.0,
            steps=RUNS,
            noise_multiplier=plan.noise_multiplier,
            delta=DELTA,
            loss=plan.plan.loss_function,
            seed=SeededRandomness(7, side),
            ledger=(Ledger(), RUN),  # the model stays as it is
        )
        trainer.fit()
        scores.append(np.array([-float((each * along).sum()) for each in optimizer.seen]) * (len(data) - 1))
    inside, outside = scores
    cut = float(np.median(np.concatenate([inside[::2], outside[::2]])))  # on one half, counted on the other
    rates = Rates(int((inside[1::2] > cut).sum()), RUNS // 2, int((outside[1::2] > cut).sum()), RUNS // 2)
    claim = ((Event(1.0, trainer.event.noise), 1),)
    return EPSILON, noise_from_rates(rates, claim, DELTA)


def unbounded_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of their own length, whose gradients neither the policy nor the kernel shortens."""

    def as_they_are(self, inputs):
        return self.linear(self.flatten(inputs))

    monkeypatch.setattr(PrototypeModel, "forward", as_they_are)
    monkeypatch.setattr(Prototypes, "weight", lambda self, state, norm, group: torch.ones_like(norm))
    monkeypatch.setattr(equidp.kernel.step, "capped_weights", lambda weights, *_: weights)


def test_the_bound_stays_below_the_claim_and_near_it():
    claim, bound = audited()
    assert 0.5 * claim < bound < claim


@pytest.mark.parametrize("plant", [noise_halved, unbounded_features])
def test_a_fault_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    claim, bound = audited()
    assert bound > claim


def test_unnormalised_features_alone_are_bounded_by_the_kernel(monkeypatch):
    monkeypatch.setattr(PrototypeModel, "forward", lambda self, inputs: self.linear(self.flatten(inputs)))
    claim, bound = audited()
    assert bound < claim
