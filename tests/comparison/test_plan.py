"""A plan of a comparison refuses what no comparison can have when it is made, before any data is read."""

from __future__ import annotations

import pytest

from equidp.comparison.plan import ComparisonPlan
from equidp.errors import EquidpError
from support.errors import raises_field


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"methods": ["dpsgf"]}, "method"),
        ({"methods": ["sgd"]}, "methods"),
        ({"methods": "dpsgd"}, "methods"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": [0.5]}, "seeds"),
        ({"seeds": [0, -1]}, "seeds"),
        ({"gap_tolerance": -1.0}, "gap_tolerance"),
        ({"level": 1.0}, "level"),
        ({"metric": "acuracy"}, "metric"),
        ({"preprocessing_share": 1.0}, "preprocessing_share"),
        ({"methods": ["dpsgd", "naive"], "against": "dpsgd-f"}, "against"),
        ({"methods": ["dpsgd", "naive"], "against": "sgd"}, "against"),
        ({"methods": ["dpsgd"], "against": "dpsgd"}, "against"),
        ({"baseline": "plans"}, "baseline"),
        ({"tune": 1}, "tune"),
        ({"tune": 2.5}, "tune"),
        ({"tune": 4, "sweep": {"epochs": [1, 2]}}, "tune"),
    ],
)
def test_what_no_comparison_can_have_is_refused(values, field):
    with raises_field(EquidpError, field):
        ComparisonPlan(**values)


def test_seeds_epsilons_and_methods_are_each_compared_once():
    plan = ComparisonPlan(["dpsgd", "dpsgd", "auto"], 2, epsilons=[1.0, 3.0, 1.0], sweep={"epochs": [1, 2]})
    assert plan.seed_numbers == [0, 1]
    assert plan.target_epsilons == [1.0, 3.0]
    assert list(plan.policies) == ["sgd", "dpsgd"]
    assert plan.swept == {"epochs": (1, 2)}
