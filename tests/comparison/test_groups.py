"""A comparison with rates or bounds by group: beside equal groups, with the epsilon of each group."""

from __future__ import annotations

import pytest

import equidp

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


def test_the_baseline_treats_groups_equally():
    plan = PLAN.with_changes({"rates": {"8": 2.0}})
    assert plan.for_method("sgd").resolve(1000).settings == PLAN.for_method("sgd").resolve(1000).settings
