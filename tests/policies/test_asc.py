"""The method asc: rates of groups by hand, at one epsilon for all."""

from __future__ import annotations

import pytest

import equidp
from equidp.accounting.planned import account
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon_of_group
from equidp.kernel.ledger import StepEvent
from equidp.policies.methods import check_not_fixed
from equidp.training.build import build
from support.errors import raises_field
from support.toy import toy

PLAN = equidp.Plan(
    lambda shape, classes: equidp.models.logistic(shape, classes), batch_size=30, epochs=2, delta=1e-5
)
TARGET = equidp.Target(2.0, accountant="rdp")


@pytest.mark.soak
def test_a_group_is_drawn_more_often_at_one_epsilon_for_all():
    plan = PLAN.with_changes({"rates": {"a": 3.0}})
    found = plan.resolve("asc", 300, TARGET, group_names=("a", "b"))
    run = build(found, toy(), seed=0, secure=False, accountant="rdp").fit()
    by_group = run.epsilon_by_group()
    assert 1.98 <= by_group["a"] <= 2.0
    assert 1.99 <= by_group["b"] <= 2.0
    (hard, other) = run.facts.event.by_group
    assert hard.sample_rate == pytest.approx(0.3)
    assert hard.bound_share < 0.7 < 1.0 == other.bound_share
    by_hand = plan.resolve("dpsgd", 300, TARGET, group_names=("a", "b"))
    entries = [(by_hand.step_event(("a", "b")), by_hand.steps)]
    assert epsilon_of_group(entries, "b", 1e-5, "rdp") < 1.0  # noise is calibrated to the other
    assert found.noise_multiplier < by_hand.noise_multiplier


@pytest.mark.soak
def test_without_rates_it_is_dpsgd():
    asc, dpsgd = (PLAN.resolve(name, 300, TARGET, group_names=("a", "b")) for name in ("asc", "dpsgd"))
    assert (
        asc.step_event(("a", "b")) == dpsgd.step_event(("a", "b")) == StepEvent(0.1, dpsgd.noise_multiplier)
    )


@pytest.mark.soak
def test_an_account_of_public_numbers_is_of_the_plan_that_trains():
    given = {"epochs": 2, "delta": 1e-5, "accountant": "rdp", "rates": {"a": 3.0}, "method": "asc"}
    planned = account(300, 30, target_epsilon=2.0, **given)
    assert planned.event == PLAN.with_changes({"rates": {"a": 3.0}}).resolve("asc", 300, TARGET).step_event()
    with raises_field(SettingError, "rates"):
        account(300, 30, risk=equidp.RiskTarget.parse("tpr=0.05@0.01"), **given)


def test_its_bounds_follow_and_cannot_be_given():
    with raises_field(SettingError, "bound_shares"):
        PLAN.with_changes({"rates": {"a": 2.0}, "bound_shares": {"a": 0.5}}).resolve("asc", 300, TARGET)
    with raises_field(SettingError, "protect_by"):
        check_not_fixed({"protect_by": "sampling"}, "asc")
