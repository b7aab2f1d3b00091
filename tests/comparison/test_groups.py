"""A comparison with rates or bounds by group: beside equal groups, with the epsilon of each group."""

from __future__ import annotations

import pytest

import equidp
from equidp.comparison.cells import Cell
from equidp.data import open_source

PLAN = equidp.Plan(batch_size=128, epochs=1, delta=1e-4)
GROUPS = {"epsilon_by_group": {"8": 1.0, "*": 3.0}}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    given = {"methods": ["dpsgd"], "seeds": 1, "epsilon": 3.0, "jobs": 1}
    return equidp.compare("digits", plan=PLAN, directory=place, **GROUPS, **given)


@pytest.mark.soak
def test_each_method_is_compared_beside_itself_with_equal_groups(found):
    private = found.results[found.results["method"] == "dpsgd"]
    assert found.setup.swept == {"protection": ("equal", "by group")}
    by_group = private[private["protection"] == "by group"].set_index("group")["epsilon_of_group"]
    equal = private[private["protection"] == "equal"].set_index("group")["epsilon_of_group"]
    assert 0.99 <= by_group["8"] <= 1.0
    assert 2.97 <= by_group["3"] <= 3.0
    assert by_group["all"] == by_group["3"]
    assert (equal == equal["all"]).all()
    assert found.setup.methods == ("sgd", "dpsgd")


@pytest.mark.soak
def test_runs_with_equal_groups_keep_their_keys():
    """Stored runs of before are found again, and those by group are others."""
    source = open_source("digits")

    def key(plan):
        plan = plan.with_changes(epsilon=3.0, accountant="rdp", epsilon_by_group=plan.epsilon_by_group)
        resolved = plan.resolve(1000, tuple("0123456789"))
        return Cell(source, resolved, 0, "ghost").key

    alike, by_hand = key(PLAN), key(PLAN.with_changes({"rates": {"8": 0.5}}))
    assert alike == key(PLAN.with_changes({"protect_by": "scaling"}))
    assert len({alike, by_hand, key(PLAN.with_changes(GROUPS))}) == 3


def test_the_baseline_treats_groups_equally():
    plan = PLAN.with_changes({"rates": {"8": 2.0}})
    assert plan.for_method("sgd").resolve(1000).settings == PLAN.for_method("sgd").resolve(1000).settings
