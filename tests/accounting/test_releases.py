"""Releases beside the steps of a run are planned for exactly, and paid for once each."""

import pytest

from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.releases import charge_releases, release_event
from equidp.errors import BudgetError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.training.plan import Plan

STEP, RELEASE = StepEvent(0.1, 1.0), StepEvent(1.0, 20.0)


def test_a_release_costs_the_epsilon_that_it_was_made_for():
    assert epsilon([(release_event(0.3, 1e-6), 1)], 1e-6) == pytest.approx(0.3, rel=1e-3)


@pytest.mark.soak
def test_a_plan_with_a_release_meets_epsilon_with_both():
    event = release_event(0.3, 1e-5)
    plan = Plan(epochs=2).resolve("dpsgd", 5000, epsilon=3.0, also_spent=((event, 1),))
    step = StepEvent(plan.sample_rate, plan.noise_multiplier)
    assert epsilon([(event, 1), (step, plan.steps)], plan.delta) == pytest.approx(3.0, rel=1e-3)


def test_releases_are_paid_for_once_each_also_after_the_steps():
    ledger = MemoryLedger(((RELEASE, 1), (STEP, 5)))
    charge_releases([RELEASE, StepEvent(1.0, 7.0), RELEASE], ledger)
    charge_releases([RELEASE, StepEvent(1.0, 7.0), RELEASE], ledger)
    spent = [event for event, times in ledger.entries for _ in range(times)]
    assert sorted(spent, key=str) == sorted([RELEASE, RELEASE, StepEvent(1.0, 7.0), *[STEP] * 5], key=str)


def test_a_release_that_does_not_fit_the_budget_is_charged_to_neither():
    budget, ledger = PrivacyBudget(epsilon=0.1, delta=1e-6), MemoryLedger()
    with pytest.raises(BudgetError):
        charge_releases([StepEvent(1.0, 2.0)], ledger, budget)
    assert (ledger.entries, budget.entries) == ((), ())


def test_a_budget_is_charged_with_the_run():
    budget, ledger = PrivacyBudget(epsilon=3, delta=1e-6), MemoryLedger()
    charge_releases([RELEASE], ledger, budget)
    assert budget.entries == ledger.entries == ((RELEASE, 1),)
