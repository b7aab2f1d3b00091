"""Releases beside the steps of a run are planned for exactly, and paid for by name."""

import pytest

from equidp.accounting.planned import release_event
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event
from equidp.ledger.ledger import Ledger
from equidp.training.plan import Plan
from equidp.training.release import Charge
from support.errors import raises_field

STEP = Event(0.1, 1.0)


def release(noise=20.0, name="counts"):
    return Event(1.0, noise, name=name)


def test_a_release_costs_the_epsilon_that_it_was_made_for():
    assert epsilon([(release_event(0.3, 1e-6), 1)], 1e-6) == pytest.approx(0.3, rel=1e-3)
    assert epsilon([(release(1.3), 1)], 1e-6) == epsilon([(Event(1.0, 1.3), 1)], 1e-6)


@pytest.mark.soak
def test_a_plan_with_a_release_meets_epsilon_with_both():
    event = release_event(0.3, 1e-5)
    plan = Plan(epochs=2).with_changes(epsilon=3.0, releases=(Charge(event),)).resolve(5000)
    step = Event(plan.sample_rate, plan.noise_multiplier)
    assert epsilon([(event, 1), (step, plan.steps)], plan.delta) == pytest.approx(3.0, rel=1e-3)


def test_each_release_is_counted_by_name(tmp_path):
    """Neither a step of the same noise nor a release of another name pays for it."""
    with Ledger(tmp_path / "run") as ledger:
        ledger.charge("a", Event(1.0, 20.0))
        drawn = [ledger.release("a", name, 20.0, lambda noise: noise) for name in ("counts", "counts", "fit")]
    assert drawn == [20.0] * 3
    assert Ledger.read(tmp_path / "run").entries() == (
        (Event(1.0, 20.0), 1),
        (release(), 2),
        (release(name="fit"), 1),
    )


def test_a_release_without_a_name_is_refused():
    with raises_field(SettingError, "name"):
        Event(1.0, 3.0, name="")
