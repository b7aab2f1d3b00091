"""Audits of one step: bounds near the claim for every method and never above, kept, continued, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import equidp
from equidp.audit.canary import CanaryEngine, best_norms
from equidp.engines import make_engine
from equidp.engines.model import flat_sums
from equidp.errors import DataError, SettingError
from equidp.policies.methods import fixed_options, make_policy
from equidp.policies.table import METHODS
from equidp.policies.weights import sensitivity_of, step_weights
from support.errors import raises_field
from support.policies import state_of
from support.toy import toy

PLAN = equidp.Plan(model=lambda shape, classes: nn.Linear(shape[0], classes), batch_size=100)
PRIVATE = [
    name
    for name, method in METHODS.items()
    if name != "sgd" and not method.policy.loss_terms and not fixed_options(name)
]
"""Methods of a step; prototypes, a release of one step, has an audit of its own."""


@pytest.mark.soak
@pytest.mark.parametrize("method", ["dpsgd", "naive", "global-adapt", "automatic"])
def test_a_method_is_bounded_from_below_by_40_percent_of_its_claim(method):
    """In the group that it favours. Of 400 runs, bounds are at 45% to 70%; seeds are fixed."""
    uneven = replace(toy(), groups=(torch.arange(300) % 5 == 0).long())  # naive favours the smaller group
    audit = equidp.audit_step(uneven, method, plan=PLAN, runs=400, secure=False)
    assert 0.4 * audit.claimed < audit.bound < audit.claimed


def test_what_cannot_be_audited_is_refused():
    with raises_field(SettingError, "noise_multiplier"):
        equidp.audit_step(toy(), "sgd", plan=PLAN)
    with raises_field(SettingError, "batch_size"):
        equidp.audit_step(toy(), plan=PLAN, sample_rate=0.1)
    with raises_field(SettingError, "level"):
        equidp.audit_step(toy(), plan=PLAN, level=95)
    with raises_field(SettingError, "epsilon"):
        equidp.audit_step(toy(), plan=PLAN, epsilon=-1.0)
    for other in ("digits", equidp.DPSGD(), toy().subset([])):
        with raises_field(DataError, "train"):
            equidp.audit_step(other, plan=PLAN)


@pytest.mark.parametrize("method", PRIVATE)
def test_canaries_have_the_norm_that_uses_most_of_the_sensitivity(method):
    policy = make_policy(method, {})
    state = state_of(policy, groups=2)
    norms = best_norms(policy, state, 2)
    weights = step_weights(policy, state, norms, torch.arange(2), 2)
    assert float((weights * norms).max()) >= 0.98 * sensitivity_of(policy, state, 2)


@pytest.mark.parametrize("engine", ["ghost", "functional"])
@pytest.mark.parametrize("order", [[6, 0, 3, 5], [2, 1], [6]])
def test_a_canary_has_the_gradient_that_was_chosen_and_others_their_own(engine, order):
    torch.manual_seed(0)
    model, data = nn.Linear(5, 2), toy(6)
    inner = make_engine(engine, model, nn.CrossEntropyLoss(reduction="none"))
    parameters = list(model.parameters())
    direction = nn.functional.normalize(torch.arange(12.0).double(), dim=0)
    wrapped = CanaryEngine(inner, data.inputs, data.targets, parameters, direction, 3.0)
    numbers, weights = torch.tensor(order), torch.linspace(0.5, 2.0, len(order))
    measured = wrapped(numbers[:, None], torch.zeros_like(numbers))
    assert torch.equal(wrapped.drawn, numbers)
    expected = torch.zeros(12).double()
    for number, weight, norm in zip(order, weights, measured.norms, strict=True):
        if number == 6:
            assert norm == 3.0
            expected += weight * 3.0 * direction
        else:
            alone = inner(data.inputs[number][None], data.targets[number][None])
            torch.testing.assert_close(norm, alone.norms[0])
            expected += flat_sums(alone.sums(weight[None]), parameters)
    found = flat_sums(measured.sums(weights), parameters)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
