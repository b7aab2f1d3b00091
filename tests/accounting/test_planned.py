"""Plans are accounted for without data, as the Trainer would spend them."""

from __future__ import annotations

import math

import pytest

import equidp
from equidp.accounting.planned import Schedule, checked_schedule, release_event
from equidp.errors import SettingError
from equidp.kernel.epsilon import ACCOUNTANTS, epsilon
from equidp.training.plan import account
from support.errors import raises_field
from support.toy import make_trainer


@pytest.mark.soak
@pytest.mark.parametrize(("method", "policy"), [("dpsgd", equidp.DPSGD(1.0)), ("naive", equidp.Naive(1.0))])
def test_a_plan_is_what_the_trainer_spends(method, policy):
    planned = account(300, batch_size=30, epochs=2, noise_multiplier=1.0, delta=1e-5, method=method)
    run = make_trainer(method=policy).fit()
    assert planned.epsilon() == run.epsilon()
    assert run.entries == ((planned.event, planned.steps),)


@pytest.mark.soak
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_noise_for_a_target_meets_it_from_below(accountant):
    planned = account(10_000, batch_size=100, steps=500, epsilon=2.0, method="dpsgd-f", accountant=accountant)
    assert 1.99 < planned.epsilon(accountant) <= 2.0
    assert planned.event.statistics_noise == pytest.approx(10 * planned.event.noise)
    assert planned.delta == 1e-5


@pytest.mark.soak
def test_the_event_to_check_with_dp_accounting_is_that_of_the_group_with_the_largest_epsilon():
    given = {"noise_multiplier": 1.5, "rates": "rare=2", "bound_shares": "rare=0.25", "delta": 1e-4}
    planned = account(1000, batch_size=50, epochs=1, **given)
    assert ACCOUNTANTS["rdp"](planned.dp_event(), 1e-4) == planned.epsilon_by_group("rdp")["*"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_examples": 0}, "num_examples"),
        ({"batch_size": 2000}, "batch_size"),
        ({"steps": 4}, "epochs"),
        ({"noise_multiplier": None}, "epsilon"),
        ({"epsilon": 1.0}, "epsilon"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"method": "sgd"}, "method"),
    ],
)
def test_numbers_that_make_no_plan_are_refused(changes, field):
    given = {"num_examples": 1000, "batch_size": 50, "epochs": 3, "noise_multiplier": 1.0, **changes}
    with raises_field(SettingError, field):
        account(**given)


@pytest.mark.parametrize("num_examples", [10, 300, 54_649])
@pytest.mark.parametrize("batch_size", [1, 3, 10])
def test_a_run_of_so_many_epochs_ends_as_many(num_examples, batch_size):
    """Also where floats make steps * rate a little less than a whole number."""
    schedule = checked_schedule(num_examples, batch_size, epochs=3)
    ends = [step for step in range(1, schedule.steps + 1) if schedule.ends_epoch(step)]
    assert len(ends) == 3
    assert ends[-1] == schedule.steps


def test_a_release_costs_the_epsilon_that_it_was_made_for():
    assert epsilon([(release_event(0.3, 1e-6), 1)], 1e-6) == pytest.approx(0.3, rel=1e-3)


def test_the_last_step_ends_an_epoch_that_is_not_whole():
    schedule = Schedule(0.1, 25)
    assert [step for step in range(1, 26) if schedule.ends_epoch(step)] == [10, 20, 25]
