"""The ledger counts every step and forgets none."""

from __future__ import annotations

import copy
import os
import pickle

import pytest

from equidp.accounting.budget import PrivacyBudget
from equidp.errors import BudgetError, SettingError
from equidp.kernel.ledger import PEOPLE, ROWS, MemoryLedger, StepEvent
from support.errors import raises_field


def test_equal_neighbours_are_counted_together_in_order():
    ledger = MemoryLedger()
    first, second = StepEvent(0.1, 1.0), StepEvent(0.1, 1.0, 10.0)
    for event in (first, first, second, first):
        ledger.spend(event)
    assert ledger.entries == ((first, 2), (second, 1), (first, 1))
    assert ledger.steps == 4
    assert MemoryLedger(ledger.entries).steps == 4


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ((0.0, 1.0), "sample_rate"),
        ((1.1, 1.0), "sample_rate"),
        ((0.1, -1.0), "noise_multiplier"),
        ((0.1, float("nan")), "noise_multiplier"),
        ((0.1, 1.0, -2.0), "statistics_noise"),
    ],
)
def test_events_that_cannot_be_are_refused(settings, field):
    with raises_field(SettingError, field):
        StepEvent(*settings)


def forked(ledger):
    """The ledger as a child process has it after one more step."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        ledger.spend(StepEvent(0.1, 1.0))
        os.write(write, pickle.dumps(ledger))
        os._exit(0)
    os.waitpid(child, 0)
    return pickle.loads(os.read(read, 10_000))


@pytest.mark.parametrize(
    ("copied", "more"),
    [
        (copy.copy, 20),
        (copy.deepcopy, 20),
        (lambda ledger: pickle.loads(pickle.dumps(ledger)), 20),
        pytest.param(forked, 19, marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")),
    ],
)
def test_what_copies_spend_apart_is_counted_for_each(copied, more):
    """A budget takes the larger count of a session that two ledgers share: 25 steps here, not 45."""
    event, ledger = StepEvent(0.1, 1.0), MemoryLedger()
    ledger.count(event, 5)
    twin = copied(ledger)
    assert ledger.entries == ((event, 5),)
    assert (twin.run_id, twin.steps + more) == (ledger.run_id, 25)
    for each, steps in ((ledger, 20), (twin, more)):
        for _ in range(steps):
            each.spend(event)
    assert ledger.entries == twin.entries == ((event, 25),)
    budget = PrivacyBudget(epsilon=50.0, delta=1e-5, accountant="rdp")
    for each in (ledger, twin):
        budget.ledger(each)
    assert budget.entries == ((event, 45),)


@pytest.mark.parametrize(("first", "second"), [(ROWS, PEOPLE), (PEOPLE, ROWS)])
def test_steps_on_rows_and_steps_on_people_are_in_no_ledger_together(first, second):
    """They add up to no epsilon: a person with several rows loses more by a step on rows than it says."""
    ledger = MemoryLedger()
    ledger.take_unit(second)
    ledger.take_unit(first)  # nothing is spent yet
    ledger.spend(StepEvent(0.1, 1.0))
    with raises_field(BudgetError, "unit"):
        ledger.take_unit(second)
    assert ledger.unit == first
