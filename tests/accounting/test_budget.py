"""One budget for many runs: what does not fit is refused before anything is spent."""

from __future__ import annotations

import copy
import dataclasses
import errno
import os
import pickle
import shutil

import pytest
import torch

import equidp
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.ledger.format import read_ledger
from support.errors import raises_field
from support.toy import make_trainer, toy


@pytest.fixture(params=["memory", "file"])
def budget(request, tmp_path):
    path = tmp_path / "toy.ledger" if request.param == "file" else None
    with equidp.PrivacyBudget(path, epsilon=5.0, delta=1e-5) as budget:
        yield budget


@pytest.mark.soak
def test_runs_add_up_and_the_one_that_does_not_fit_is_refused(budget):
    first = make_trainer(budget=budget, noise_multiplier=2.0).fit()
    second = make_trainer(budget=budget, noise_multiplier=1.5).fit()
    together = epsilon((*first.entries, *second.entries), 1e-5)
    assert budget.entries == (*first.entries, *second.entries)
    spent = budget.spent()
    assert 5.0 > spent > together > max(first.epsilon(), second.epsilon())
    with raises_field(BudgetError, "budget", "40 private steps") as refused:
        make_trainer(budget=budget, noise_multiplier=0.7)
    assert "of its steps would fit" in str(refused.value)
    assert budget.spent() == spent


@pytest.mark.soak
def test_a_run_stops_at_the_last_step_that_fits():
    budget = equidp.PrivacyBudget(epsilon=5.0, delta=1e-5, accountant="rdp")
    plan = {"budget": budget, "noise_multiplier": 1.0, "epochs": 20, "beyond_budget": "stop"}
    trainer = make_trainer(**plan)
    assert 0 < trainer.steps < 200
    run = trainer.fit()
    assert run.entries[0][1] == trainer.steps
    assert budget.spent() <= 5.0
    assert epsilon(((trainer.event, trainer.steps + 1),), 1e-5, "rdp") > 5.0
    with raises_field(BudgetError, "budget", "At least 0 of its steps"):
        make_trainer(**plan)
    with raises_field(SettingError, "beyond_budget"):
        make_trainer(**{**plan, "beyond_budget": "stopp"})


@pytest.mark.soak
def test_a_file_remembers_across_processes(tmp_path):
    path = tmp_path / "toy.ledger"
    with equidp.PrivacyBudget(path, epsilon=5.0, delta=1e-5) as budget:
        make_trainer(budget=budget, noise_multiplier=2.0).fit()
        spent = budget.spent()
        with raises_field(BudgetError, "lock"):
            equidp.PrivacyBudget(path)
    with equidp.PrivacyBudget(path) as again:
        assert (again.spent(), again.epsilon, again.delta) == (spent, 5.0, 1e-5)
    for given in ({"epsilon": 9.0}, {"delta": 1e-6}, {"accountant": "rdp"}):
        with raises_field(BudgetError, *given):
            equidp.PrivacyBudget(path, **given)


@pytest.mark.soak
def test_two_trainers_cannot_be_promised_the_same_steps(budget):
    """Both plans fit alone; the one that begins second no longer does."""
    one, two = (make_trainer(budget=budget, noise_multiplier=0.9) for _ in range(2))
    batches = one.batches()
    one.step(next(batches))
    with raises_field(BudgetError, "budget"):
        two.fit()
    assert two.steps_done == 0
    for batch in batches:
        one.step(batch)
    assert budget.spent() <= 5.0


@pytest.mark.soak
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
    with raises_field(BudgetError, "budget"):  # beside all 20 of the first
        make_trainer(budget=budget, noise_multiplier=1.0)
    make_trainer(budget=budget, noise_multiplier=0.9, steps=10, epochs=None).fit()  # of what the first left
    with raises_field(BudgetError, "budget"):
        stopped.fit()


@pytest.mark.soak
def test_steps_without_a_plan_and_releases_are_checked_one_by_one(budget):
    trainer = make_trainer(budget=budget, noise_multiplier=1.0)
    ledger = trainer.ledger
    release = StepEvent(1.0, 1.0)
    for _ in range(budget.steps_that_fit(release, 10)):
        ledger.spend(release)
    with raises_field(BudgetError, "budget"):
        ledger.spend(release)
    assert budget.spent() <= 5.0
    assert budget.entries == ledger.entries


@pytest.mark.soak
def test_steps_beyond_those_that_were_set_aside_are_checked(budget):
    event = StepEvent(0.1, 1.0)
    fitting = budget.steps_that_fit(event, 10_000)
    run = budget.ledger(MemoryLedger())
    run.expect(event, fitting)
    for _ in range(fitting):
        run.spend(event)
    with raises_field(BudgetError, "budget", "1 steps"):
        run.spend(event)
    assert run.steps == fitting


def test_training_without_noise_never_fits(budget):
    with raises_field(BudgetError, "budget"):
        make_trainer(policy=equidp.SGD(), noise_multiplier=None, budget=budget)


def test_a_copy_is_the_same_budget_and_cannot_be_sent_away(budget):
    assert copy.copy(budget) is copy.deepcopy([budget])[0] is budget
    with raises_field(BudgetError, "budget"):
        pickle.dumps(budget)


@pytest.mark.soak
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
    ("settings", "field"),
    [
        ({}, "epsilon"),
        ({"epsilon": 1.0}, "epsilon"),
        ({"epsilon": 0.0, "delta": 1e-5}, "epsilon"),
        ({"epsilon": 1.0, "delta": 2.0}, "delta"),
        ({"epsilon": 1.0, "delta": 1e-5, "accountant": "pdl"}, "accountant"),
    ],
)
def test_what_is_no_budget_is_refused(tmp_path, settings, field):
    for path in (None, tmp_path / "new.ledger"):
        with raises_field(SettingError, field):
            equidp.PrivacyBudget(path, **settings)
    assert not (tmp_path / "new.ledger").exists()


def test_a_runs_own_ledger_is_no_budget(tmp_path):
    equidp.LedgerFile(tmp_path / "ledger").close()
    with raises_field(BudgetError, "path") as refused:
        equidp.PrivacyBudget(tmp_path / "ledger", epsilon=1.0, delta=1e-5)
    assert "Path(" not in str(refused.value)


def test_a_ledger_in_memory_takes_what_a_trainer_tells_it():
    ledger = MemoryLedger()
    ledger.expect(StepEvent(0.5, 1.0), 3)
    ledger.settle()
    assert ledger.entries == ()


@pytest.mark.soak
def test_a_budget_that_was_brought_back_from_a_copy_catches_up(tmp_path):
    """What a run spent since the copy was made is charged, although a run like it hides that in the total."""
    path, event = tmp_path / "b.ledger", StepEvent(0.1, 1.0)
    first, second = MemoryLedger(((event, 3),)), MemoryLedger(((event, 3),))
    with equidp.PrivacyBudget(path, epsilon=4.0, delta=1e-5, accountant="rdp") as budget:
        budget.catch_up(first)
        budget.catch_up(first)
        assert budget.entries == ((event, 3),)
    kept = {name: (tmp_path / name).read_bytes() for name in ("b.ledger", "b.ledger.seal")}
    with equidp.PrivacyBudget(path) as budget:
        for _ in range(4):
            budget.ledger(second).spend(event)
        assert budget.entries == ((event, 3 + 7),)
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    with equidp.PrivacyBudget(path) as budget:
        budget.ledger(second)
        assert budget.entries == ((event, 3 + 7),)
        with raises_field(BudgetError, "ledger", "1,000,000"):
            budget.ledger(MemoryLedger(((event, 10**6),)))
        assert budget.entries == ((event, 3 + 7),)


def test_a_full_disk_makes_a_budget_remember_no_more_than_its_file(tmp_path, monkeypatch):
    """Else the promised plan would count as stated in this process, and as a later one after it is opened
    again."""
    path, event, own = tmp_path / "b.ledger", StepEvent(0.02, 1.0), MemoryLedger()

    def full(file, line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with equidp.PrivacyBudget(path, epsilon=3.0, delta=1e-5) as budget:
        charged = budget.ledger(own)
        charged.expect(event, 50)
        budget.take_unit("rows")
        for spend in (lambda: budget.for_data("census", "rows"), lambda: charged.spend(event)):
            with monkeypatch.context() as patch, raises_field(BudgetError, "path"):
                patch.setattr(os, "write", full)
                spend()
            spend()
    facts = read_ledger(path).facts
    assert facts.get("data") == "census"
    assert [each["steps"] for each in facts.get("stated", ())] == [50]


@pytest.mark.soak
def test_two_copies_of_a_run_are_both_charged_whatever_copy_of_the_budget_is_there(tmp_path):
    path, event = tmp_path / "b.ledger", StepEvent(0.1, 1.0)

    def spend(name, steps):
        with equidp.LedgerFile(tmp_path / name) as own, equidp.PrivacyBudget(path) as budget:
            run = budget.ledger(own)
            for _ in range(steps):
                run.spend(event)
            return budget.entries[0][1]

    equidp.PrivacyBudget(path, epsilon=9.0, delta=1e-5, accountant="rdp").close()
    spend("run", 5)
    kept = {name: (tmp_path / name).read_bytes() for name in ("b.ledger", "b.ledger.seal")}
    for name in ("run", "run.seal"):
        shutil.copy(tmp_path / name, tmp_path / name.replace("run", "copy"))
    assert spend("run", 4) == 5 + 4
    assert spend("copy", 3) == 5 + 4 + 3
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    assert spend("run", 0) == 5 + 4
    assert spend("copy", 0) == 5 + 4 + 3


@pytest.mark.soak
def test_a_kill_between_the_lines_of_budget_and_run_counts_too_much_and_never_too_little(tmp_path):
    """The budget pays first; a later process on the run finds at least as many steps there."""
    path, event = tmp_path / "b.ledger", StepEvent(0.1, 1.0)
    for kills in range(1, 4):
        own = equidp.LedgerFile(tmp_path / "run")
        budget = equidp.PrivacyBudget(path, epsilon=9.0, delta=1e-5, accountant="rdp")
        run = budget.ledger(own)
        run.spend(event)
        own.abandon()  # killed: the run's own line is not written any more
        with pytest.raises(BudgetError):
            run.spend(event)
        budget._ledger.abandon()
        assert read_ledger(tmp_path / "run").entries == ((event, kills),)
        assert read_ledger(path).entries == ((event, 2 * kills),)


@pytest.mark.soak
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_trainer_whose_ledger_holds_steps_charges_them_to_its_budget(tmp_path, on_disk):
    """They were taken without the budget, which would say too little: 5.97 were spent, and it said 2.23."""
    ledger = equidp.LedgerFile(tmp_path / "run") if on_disk else MemoryLedger()
    trainer = make_trainer(ledger=ledger)
    batches = trainer.batches()
    for _ in range(18):
        trainer.step(next(batches))
    ledger.settle()
    budget = equidp.PrivacyBudget(
        tmp_path / "b.ledger" if on_disk else None, epsilon=9.0, delta=1e-5, accountant="rdp"
    )
    again = make_trainer(ledger=ledger, budget=budget, model=trainer.model, optimizer=trainer.optimizer)
    assert budget.entries == ((again.event, 18),)
    for batch in again.batches():
        again.step(batch)
    assert again.run().epsilon(accountant="rdp") <= budget.spent() <= 9.0
    small = equidp.PrivacyBudget(epsilon=0.9 * again.run().epsilon(), delta=1e-5, accountant="rdp")
    with raises_field(BudgetError, "ledger", "20"):
        make_trainer(ledger=ledger, budget=small)
    assert small.entries == ()


def test_steps_that_a_ledger_took_beside_its_budget_are_charged_before_the_next():
    ledger, budget = MemoryLedger(), equidp.PrivacyBudget(epsilon=9.0, delta=1e-5, accountant="rdp")
    trainer = make_trainer(ledger=ledger, budget=budget)
    for _ in range(5):
        ledger.spend(trainer.event)  # behind the budget's back
    trainer.fit()
    assert budget.entries == ((trainer.event, 20),)


@pytest.mark.soak
@pytest.mark.parametrize("theirs", [None, 50.0])
def test_steps_taken_beside_the_budget_while_a_run_is_under_way_are_charged(theirs):
    """By a second Trainer on the run's ledger, without a budget or with one of its own."""
    budget, other = (
        epsilon and equidp.PrivacyBudget(epsilon=epsilon, delta=1e-5, accountant="rdp")
        for epsilon in (9.0, theirs)
    )
    ledger, release = MemoryLedger(), StepEvent(0.001, 10.0)
    trainer = make_trainer(ledger=ledger, budget=budget, noise_multiplier=2.0)
    batches = trainer.batches()
    trainer.step(next(batches))
    beside = make_trainer(ledger=ledger, budget=other, noise_multiplier=1.5).fit()
    trainer.step(next(batches))
    assert budget.entries == ((trainer.event, 1), (beside.entries[-1][0], 20), (trainer.event, 1))
    ledger.spend(release)
    trainer.ledger.settle()
    assert budget.entries == ledger.entries


@pytest.mark.soak
@pytest.mark.parametrize("end", ["spend", "settle"])
def test_steps_taken_beside_the_budget_that_do_not_fit_are_charged_and_end_all_promises(end):
    budget, event = equidp.PrivacyBudget(epsilon=5.0, delta=1e-5, accountant="rdp"), StepEvent(0.1, 1.0)
    ledger = MemoryLedger()
    run, other = budget.ledger(ledger), budget.ledger(MemoryLedger())
    for each in (run, other):
        each.expect(event, 2)
    other.spend(event)
    ledger.count(event, 1000)
    with raises_field(BudgetError, "ledger", "1,000"):
        run.spend(event) if end == "spend" else run.settle()
    assert ledger.steps == 1000
    assert budget.entries == ((event, 1001),)
    for each in (run, other):
        with raises_field(BudgetError, "budget"):
            each.spend(event)


@pytest.mark.soak
def test_a_budget_for_other_people_is_refused(tmp_path):
    """It takes the name of the first data with one, unless it was given a name: then the caller vouches."""
    named = lambda source: dataclasses.replace(toy(), source=source)  # noqa: E731
    path = tmp_path / "b.ledger"
    with equidp.PrivacyBudget(path, epsilon=9.0, delta=1e-5, accountant="rdp") as budget:
        make_trainer(budget=budget)
        make_trainer(budget=budget, train=named("adult"))
        make_trainer(budget=budget, train=named("adult").subset(torch.arange(100)))
    with equidp.PrivacyBudget(path) as budget:
        make_trainer(budget=budget)
        for other in (budget, budget.rehearsal()):
            with raises_field(BudgetError, "data", "'adult'", "'dutch'"):
                make_trainer(budget=other, train=named("dutch"))
    with equidp.PrivacyBudget(path, data="adult") as budget:
        make_trainer(budget=budget, train=named("adult as others call it"))
    with raises_field(BudgetError, "data", "'dutch'"):
        equidp.PrivacyBudget(path, data="dutch")
    in_memory = equidp.PrivacyBudget(epsilon=9.0, delta=1e-5, accountant="rdp")
    make_trainer(budget=in_memory, train=named("adult"))
    with raises_field(BudgetError, "data", "'adult'"):
        make_trainer(budget=in_memory, train=named("dutch"))


@pytest.mark.soak
def test_what_a_run_took_before_does_not_let_a_promised_run_exceed_the_budget():
    """Its steps may have led to the plan that was promised, so that losses of both do not add up."""
    event = StepEvent(0.02, 1.0)
    budget = equidp.PrivacyBudget(epsilon=3.0, delta=1e-5)
    run = budget.ledger(MemoryLedger())
    run.expect(event, 569)  # epsilon 2.95 alone, and 3.4 as a later run
    with pytest.raises(BudgetError):
        budget.ledger(MemoryLedger(((event, 1),)))
    run.spend(event)
    assert budget.spent() <= 3.0
    assert [steps for _, steps in budget.entries] == [1]


def test_a_ledger_from_before_is_taken_as_far_as_it_fits_whatever_led_to_it():
    event = StepEvent(0.02, 1.0)
    for steps, fits in ((300, True), (580, False)):  # epsilon 2.1 and 2.98, 2.4 and 3.4 as a later run
        budget = equidp.PrivacyBudget(epsilon=3.0, delta=1e-5)
        if fits:
            budget.ledger(MemoryLedger(((event, steps),)))
        else:
            with pytest.raises(BudgetError):
                budget.ledger(MemoryLedger(((event, steps),)))
        assert budget.spent() <= 3.0


@pytest.mark.soak
def test_plans_that_are_stated_leave_room_for_what_was_promised():
    event, other = StepEvent(0.02, 1.0), StepEvent(0.01, 0.8)
    budget = equidp.PrivacyBudget(epsilon=3.0, delta=1e-5)
    run = budget.ledger(MemoryLedger())
    run.expect(event, 500)
    with pytest.raises(BudgetError):
        budget.state([(other, 20)])
    budget.state([(event, 500), (other, 20)])
    assert budget.spent() == 0.0


@pytest.mark.parametrize("steps", [-5, 2.5, "3", float("nan"), True])
def test_a_budget_takes_whole_numbers_of_steps(steps):
    budget, event = equidp.PrivacyBudget(epsilon=3.0, delta=1e-5, accountant="rdp"), StepEvent(0.1, 2.0)
    for call in (budget.check, budget.fits, budget.steps_that_fit):
        with raises_field(SettingError, "steps"):
            call(event, steps)
        with raises_field(SettingError, "entries"):
            call(3, event)
    with raises_field(SettingError, "steps"):
        budget.state([(event, steps)])
    with raises_field(SettingError, "entries"):
        budget.state((event, 3))
    budget.state([(event, 3)])  # nothing was stated before
