"""Plots show what the numbers say, with one meaning a colour."""

from __future__ import annotations

import pytest

from equidp.data.dataset import ALL
from equidp.policies.table import METHODS
from equidp.report import comparison as html
from equidp.report.plots import PLOTS
from equidp.report.plots.style import (
    LOOKS,
    method_looks,
)
from support.made_up import made_up

COSTS = {
    "dpsgd": {"a": 0.02, "b": 0.40},
    "dpsgd-f": {"a": 0.04, "b": 0.05},
    "global-adapt": {"a": 0.1, "b": 0.12},
}


def points_of(axes, label):
    """Where the points with this label and error bars are."""
    return next(each for each in axes.containers if each.get_label() == label)[0].get_xdata()


def test_costs_are_drawn_where_the_figures_are():
    comparison = made_up(COSTS)
    (axes,) = comparison.plot("costs").axes
    means = comparison.costs().groupby(["method", "group"])["privacy_cost"].mean()
    for method in COSTS:
        expected = [100 * means[(method, group)] for group in ("a", "b", ALL)]
        assert points_of(axes, method) == pytest.approx(expected)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a (320)", "b (320)", "all (640)"]


def test_a_method_keeps_its_colour_whatever_it_is_compared_with():
    first = list(METHODS)[: len(LOOKS)]
    among = method_looks(first)
    assert all(method_looks([name]) == {name: among[name]} for name in first)
    assert method_looks(["mine:P"])["mine:P"] == method_looks(["sgd", "dpsgd-f", "mine:P"])["mine:P"]
    names = [f"module:Method{at}" for at in range(len(LOOKS))]
    assert len(set(method_looks(names).values())) == len(names)
    assert len(method_looks([*names, "one:More"])) == len(names) + 1


@pytest.mark.soak
def test_each_figure_of_a_page_is_one_picture():
    page = html.render(made_up(COSTS, epsilons=(1.0, 3.0)))
    assert page.count("<figure") == page.count("<svg") == len(PLOTS)
