"""Releases beside the steps of a run are planned for exactly, paid for by name, and drawn once a payment."""

import copy
import os
import pickle

import pytest

import equidp
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.planned import release_event
from equidp.accounting.target import Target
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger, ReleaseEvent, StepEvent
from equidp.ledger.format import read_ledger
from equidp.training.plan import Plan
from support.errors import raises_field

STEP = StepEvent(0.1, 1.0)


def release(noise=20.0, name="counts"):
    return ReleaseEvent(1.0, noise, name=name)


def test_a_release_costs_the_epsilon_that_it_was_made_for():
    assert epsilon([(release_event(0.3, 1e-6), 1)], 1e-6) == pytest.approx(0.3, rel=1e-3)
    assert epsilon([(release(1.3), 1)], 1e-6) == epsilon([(StepEvent(1.0, 1.3), 1)], 1e-6)


@pytest.mark.soak
def test_a_plan_with_a_release_meets_epsilon_with_both():
    event = release_event(0.3, 1e-5)
    plan = Plan(epochs=2).resolve("dpsgd", 5000, Target(3.0), also_spent=((event, 1),))
    step = StepEvent(plan.sample_rate, plan.noise_multiplier)
    assert epsilon([(event, 1), (step, plan.steps)], plan.delta) == pytest.approx(3.0, rel=1e-3)


def test_each_payment_is_counted_by_name_and_drawn_once(tmp_path):
    """Neither a step of the same noise nor a release of another name pays for it."""
    with equidp.LedgerFile(tmp_path / "run") as ledger:
        ledger.spend(StepEvent(1.0, 20.0))
        payments = [ledger.pay(name, 20.0) for name in ("counts", "counts", "fit")]
        assert [each.draw() for each in payments] == [20.0] * 3
        for each in (payments[0], copy.copy(payments[0]), copy.deepcopy(payments)[0]):
            with raises_field(BudgetError, "payment"):
                each.draw()
        assert ledger.count_of(StepEvent(1.0, 20.0)) == ledger.count_of(release(name="fit")) == 1
        assert ledger.count_of(release()) == 2
    assert set(read_ledger(tmp_path / "run").entries) == {
        (StepEvent(1.0, 20.0), 1),
        (release(), 2),
        (release(name="fit"), 1),
    }
    blocks = read_ledger(tmp_path / "run").blocks
    assert len({block.event.id for block in blocks if isinstance(block.event, ReleaseEvent)}) == 3
    with pytest.raises(BudgetError):
        pickle.dumps(payments[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_draws_for_no_payment_of_its_parent():
    payment = MemoryLedger().pay("counts", 20.0)
    child = os.fork()
    if not child:
        try:
            payment.draw()
        except BudgetError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    payment.draw()


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "a", "sample_rate": 0.5}])
def test_what_is_no_release_is_refused(wrong):
    with pytest.raises(SettingError):
        ReleaseEvent(**{"sample_rate": 1.0, "noise_multiplier": 3.0, **wrong})


def test_a_release_that_does_not_fit_the_budget_is_charged_to_neither():
    budget, ledger = PrivacyBudget(epsilon=0.1, delta=1e-6), MemoryLedger()
    with pytest.raises(BudgetError):
        budget.ledger(ledger).pay("counts", 2.0)
    assert (ledger.entries, budget.entries) == ((), ())


def test_a_budget_is_charged_with_the_run():
    budget, ledger = PrivacyBudget(epsilon=3, delta=1e-6), MemoryLedger()
    budget.ledger(ledger).pay("counts", 20.0)
    assert budget.entries == ledger.entries == ((release(), 1),)


def test_a_budget_counts_the_releases_of_copies_of_a_run_apart(tmp_path):
    """Each was drawn; equal releases of one session, too, are two."""
    with equidp.LedgerFile(tmp_path / "run") as ledger:
        ledger.pay("counts", 20.0)
    for name in ("run", "run.seal"):
        (tmp_path / name.replace("run", "copy")).write_bytes((tmp_path / name).read_bytes())
    with PrivacyBudget(tmp_path / "b", epsilon=9.0, delta=1e-6) as budget:
        for name in ("run", "copy"):
            with equidp.LedgerFile(tmp_path / name) as ledger:
                budget.ledger(ledger).pay("fit", 20.0)
                budget.ledger(ledger).pay("fit", 20.0)
        assert set(budget.entries) == {(release(), 1), (release(name="fit"), 4)}
    with PrivacyBudget(tmp_path / "b") as budget:
        assert set(budget.entries) == {(release(), 1), (release(name="fit"), 4)}


@pytest.mark.soak
def test_what_a_run_will_release_stays_set_aside_after_its_steps():
    budget = PrivacyBudget(epsilon=3.5, delta=1e-6)
    run, fit = budget.ledger(MemoryLedger()), release(2.5, "fit")
    assert epsilon([(STEP, 5), (fit, 1)], 1e-6) < 3.5 < epsilon([(STEP, 5), (fit, 2)], 1e-6)
    run.promise([(STEP, 5), (fit, 1)])
    run.expect(STEP, 5)
    for _ in range(5):
        run.spend(STEP)
    run.settle()
    with pytest.raises(BudgetError):
        budget.ledger(MemoryLedger()).pay("fit", 2.5)
    run.pay("fit", 2.5)
    assert budget.spent() == pytest.approx(epsilon([(STEP, 5), (fit, 1)], 1e-6))
