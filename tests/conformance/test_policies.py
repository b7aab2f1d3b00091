"""Conformance of policies: every method keeps the contract of `Policy`; a new one needs a line in CASES."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields
from typing import NamedTuple

import pytest
import torch

from equidp.kernel.bounding import (
    capped_weights,
    checked_sensitivity,
    each_alone,
    example_rows,
    example_weights,
    group_bounds,
)
from equidp.kernel.policy import Policy, Setting, checked_state, restored_state
from equidp.policies import (
    DPSGD,
    DPSGDF,
    METHODS,
    PSAC,
    SGD,
    Automatic,
    DPSGDFCode,
    Global,
    GlobalAdapt,
    Naive,
    Prototypes,
    Quantile,
    QuantileBounded,
    SoftAdaClip,
    check_policy,
)
from equidp.policies.methods import name_of


class Case(NamedTuple):
    """A policy, a number of groups that it takes, and its noise multiplier."""

    policy: Policy
    groups: int = 3
    noise_multiplier: float = 1.0


CASES = [
    Case(SGD(), noise_multiplier=0.0),
    Case(DPSGD(0.7)),
    Case(DPSGDF(0.7)),
    Case(DPSGDF(0.7, smoothing=0.9)),
    Case(DPSGDFCode(0.7)),
    Case(DPSGDFCode(0.7, smoothing=0.9)),
    Case(Naive(0.7)),
    Case(Global(0.7, 20.0)),
    Case(GlobalAdapt(0.7)),
    Case(GlobalAdapt(0.7, tolerance=0.7)),
    Case(Quantile(0.7)),
    Case(QuantileBounded(0.7)),
    Case(QuantileBounded(0.7, lowest_bound=2.0)),
    Case(SoftAdaClip(0.7)),
    Case(Automatic(0.7)),
    Case(PSAC(0.7)),
    Case(Prototypes()),
]


def test_every_method_has_a_case():
    assert {name_of(case.policy) for case in CASES} == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_row_of_a_method_states_the_noise_of_its_policy(name):
    """Accounting reads the row and does not load the policy: a wrong ratio would be a wrong epsilon."""
    row, policy = METHODS[name], METHODS[name].policy()
    assert (row.statistics_ratio, row.private) == (policy.statistics_ratio, policy.private)


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case.policy))
class TestPolicy:
    def test_keeps_the_contract(self, case: Case) -> None:
        check_policy(case.policy, case.groups, noise_multiplier=case.noise_multiplier)

    def test_settings_are_frozen(self, case: Case) -> None:
        for each in fields(case.policy):  # type: ignore[arg-type]
            with pytest.raises(FrozenInstanceError):
                setattr(case.policy, each.name, 2.0)

    def test_state_is_restored_from_its_values(self, case: Case) -> None:
        state = self.start(case)
        again = restored_state(case.policy, state, state._asdict())
        assert type(again) is type(state)
        for old, new in zip(state, again, strict=True):
            torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)

    def test_capped_weights_are_those_of_the_method(self, case: Case) -> None:
        """The kernel's cap changes nothing for a method that keeps its contract."""
        state, norms = self.start(case), torch.tensor([0.0, 0.01, 1.0, 50.0])
        sensitivity = checked_sensitivity(case.policy, state, case.noise_multiplier, case.groups)
        for group in range(case.groups):
            weights = example_weights(case.policy, state, norms, torch.full((4,), group))
            assert (weights >= 0).all()
            if math.isfinite(sensitivity):
                capped = capped_weights(weights, norms, sensitivity)
                torch.testing.assert_close(capped[1:], weights[1:], rtol=1e-5, atol=0)

    def test_rules_give_a_batch_what_they_give_each_example_alone(self, case: Case) -> None:
        """To the last bit: the kernel computes them on the whole batch (`bounding.example_weights`)."""
        state, norms = self.start(case), torch.logspace(-30, 30, 61).repeat(case.groups)
        groups = torch.arange(case.groups).repeat_interleave(61)
        together = example_weights(case.policy, state, norms, groups)
        alone = each_alone(case.policy.weight, state, norms, groups)
        torch.testing.assert_close(together, alone, rtol=0, atol=0, equal_nan=True)
        single = zip(norms, groups, strict=True)
        apart = torch.stack([case.policy.weight(state, norm, group) for norm, group in single])
        torch.testing.assert_close(together, apart, rtol=0, atol=0, equal_nan=True)

        if case.policy.statistics_ratio is not None:
            terms = torch.linspace(-2, 2, len(norms)).repeat(case.policy.loss_terms, 1)
            rows = example_rows(case.policy, state, norms, groups, terms.T)
            alone = each_alone(case.policy.statistics, state, norms, groups, *terms)
            torch.testing.assert_close(rows, alone, rtol=0, atol=0, equal_nan=True)
        bounds = [float(case.policy.bound(state, torch.tensor(group))) for group in range(case.groups)]
        assert group_bounds(case.policy, state, case.groups).tolist() == bounds

    def start(self, case: Case) -> NamedTuple:
        setting = Setting(case.groups, 64.0, case.noise_multiplier, 5)
        return checked_state(case.policy, case.policy.init(setting))
