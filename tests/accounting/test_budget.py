"""One budget for many runs: what does not fit is refused before anything is spent."""

from __future__ import annotations

import copy
import os
import pickle

import pytest

import equidp
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger, StepEvent
from support.toy import make_trainer


@pytest.fixture(params=["memory", "file"])
def budget(request, tmp_path):
    path = tmp_path / "toy.ledger" if request.param == "file" else None
    with equidp.PrivacyBudget(path, epsilon=5.0, delta=1e-5) as budget:
        yield budget


def test_runs_add_up_and_the_one_that_does_not_fit_is_refused(budget):
    first = make_trainer(budget=budget, noise_multiplier=2.0).fit()
    second = make_trainer(budget=budget, noise_multiplier=1.5).fit()
    together = epsilon((*first.entries, *second.entries), 1e-5)
    assert budget.spent() == pytest.approx(together)
    assert budget.spent() > max(first.epsilon(), second.epsilon())
    with pytest.raises(
        BudgetError, match=r"40 private steps have spent epsilon .* of 5 .* is left"
    ) as refused:
        make_trainer(budget=budget, noise_multiplier=0.7)
    assert "of its steps would fit" in str(refused.value)
    assert budget.spent() == pytest.approx(together)


def test_a_run_stops_at_the_last_step_that_fits():
    budget = equidp.PrivacyBudget(epsilon=5.0, delta=1e-5, accountant="rdp")
    plan = {"budget": budget, "noise_multiplier": 1.0, "epochs": 20, "beyond_budget": "stop"}
    trainer = make_trainer(**plan)
    assert 0 < trainer.steps < 200
    run = trainer.fit()
    assert run.entries[0][1] == trainer.steps
    assert budget.spent() <= 5.0
    assert epsilon(((trainer.event, trainer.steps + 1),), 1e-5, "rdp") > 5.0
    with pytest.raises(BudgetError, match="At least 0 of its steps would fit"):
        make_trainer(**plan)
    with pytest.raises(SettingError, match="Did you mean 'stop'"):
        make_trainer(**{**plan, "beyond_budget": "stopp"})


def test_a_file_remembers_across_processes(tmp_path):
    path = tmp_path / "toy.ledger"
    with equidp.PrivacyBudget(path, epsilon=5.0, delta=1e-5) as budget:
        make_trainer(budget=budget, noise_multiplier=2.0).fit()
        spent = budget.spent()
        with pytest.raises(BudgetError, match="in use by another process"):
            equidp.PrivacyBudget(path)
    with equidp.PrivacyBudget(path) as again:
        assert (again.spent(), again.epsilon, again.delta) == (spent, 5.0, 1e-5)
    for given in ({"epsilon": 9.0}, {"delta": 1e-6}, {"accountant": "rdp"}):
        with pytest.raises(BudgetError, match="A budget does not change"):
            equidp.PrivacyBudget(path, **given)


def test_two_trainers_cannot_be_promised_the_same_steps(budget):
    """Both plans fit alone; the one that begins second no longer does."""
    one, two = (make_trainer(budget=budget, noise_multiplier=0.9) for _ in range(2))
    batches = one.batches()
    one.step(next(batches))
    with pytest.raises(BudgetError, match="does not fit"):
        two.fit()
    assert two.steps_done == 0
    for batch in batches:
        one.step(batch)
    assert budget.spent() <= 5.0


def test_a_stopped_run_gives_back_what_it_planned_and_goes_on_if_that_still_fits(budget):
    class Stop(equidp.Callback):
        def after_step(self, trainer):
            if trainer.steps_done == 3:
                raise KeyboardInterrupt

    stopped = make_trainer(budget=budget, noise_multiplier=0.9, callbacks=[Stop()])
    with pytest.raises(KeyboardInterrupt):
        stopped.fit()
    assert [steps for _, steps in budget.entries] == [3]
    assert budget.fits(stopped.event, 17)
    make_trainer(budget=budget, noise_multiplier=1.0).fit()
    with pytest.raises(BudgetError, match="does not fit"):
        stopped.fit()


def test_steps_without_a_plan_and_releases_are_checked_one_by_one(budget):
    trainer = make_trainer(budget=budget, noise_multiplier=1.0)
    ledger = trainer.ledger
    release = StepEvent(1.0, 1.0)
    for _ in range(budget.steps_that_fit(release, 10)):
        ledger.spend(release)
    with pytest.raises(BudgetError, match="does not fit"):
        ledger.spend(release)
    assert budget.spent() <= 5.0
    assert budget.entries == ledger.entries


def test_steps_beyond_those_that_were_set_aside_are_checked(budget):
    event = StepEvent(0.1, 1.0)
    fitting = budget.steps_that_fit(event, 10_000)
    run = budget.ledger(MemoryLedger())
    run.expect(event, fitting)
    for _ in range(fitting):
        run.spend(event)
    with pytest.raises(BudgetError, match="the plan of 1 steps"):
        run.spend(event)
    assert run.steps == fitting


def test_training_without_noise_never_fits(budget):
    with pytest.raises(BudgetError, match="At least 0 of its steps would fit"):
        make_trainer(policy=equidp.SGD(), noise_multiplier=None, budget=budget)


def test_a_copy_is_the_same_budget_and_cannot_be_sent_away(budget):
    assert copy.copy(budget) is copy.deepcopy([budget])[0] is budget
    with pytest.raises(BudgetError, match="n_jobs=1"):
        pickle.dumps(budget)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_cannot_spend_it_again(budget):
    trainer = make_trainer(budget=budget)
    child = os.fork()
    if not child:
        try:
            trainer.fit()
        except BudgetError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    trainer.fit()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs both"),
        ({"epsilon": 1.0}, "needs both"),
        ({"epsilon": 0.0, "delta": 1e-5}, "epsilon=0.0"),
        ({"epsilon": 1.0, "delta": 2.0}, "delta=2.0"),
        ({"epsilon": 1.0, "delta": 1e-5, "accountant": "pdl"}, "Did you mean 'pld'"),
    ],
)
def test_what_is_no_budget_is_refused(tmp_path, settings, message):
    for path in (None, tmp_path / "new.ledger"):
        with pytest.raises(SettingError, match=message):
            equidp.PrivacyBudget(path, **settings)
    assert not (tmp_path / "new.ledger").exists()


def test_a_runs_own_ledger_is_no_budget(tmp_path):
    equidp.LedgerFile(tmp_path / "ledger").close()
    with pytest.raises(BudgetError, match="ledger of a single run"):
        equidp.PrivacyBudget(tmp_path / "ledger", epsilon=1.0, delta=1e-5)


def test_a_ledger_in_memory_takes_what_a_trainer_tells_it():
    ledger = MemoryLedger()
    ledger.expect(StepEvent(0.5, 1.0), 3)
    ledger.settle()
    assert ledger.entries == ()


def test_a_budget_that_was_brought_back_from_a_copy_catches_up(tmp_path):
    """What runs spent since the copy was made is charged again, or does not fit."""
    path = tmp_path / "b.ledger"
    event = StepEvent(0.1, 1.0)
    with equidp.PrivacyBudget(path, epsilon=4.0, delta=1e-5) as budget:
        budget.catch_up(((event, 3),))
        budget.catch_up(((event, 2), (event, 1)))
        assert budget.entries == ((event, 3),)
        with pytest.raises(BudgetError):
            budget.catch_up(((event, 10**6),))
        assert budget.entries == ((event, 3),)
