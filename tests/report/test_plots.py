"""Plots show what the numbers say, with one meaning a colour, for a page and a paper's column."""

from __future__ import annotations

import itertools

import matplotlib.colors
import numpy as np
import pytest

from equidp.data.dataset import ALL
from equidp.errors import SettingError
from equidp.policies.table import METHODS
from equidp.report import comparison as html
from equidp.report.plots import PLOTS
from equidp.report.plots.style import (
    COLUMN,
    LOOKS,
    PAGE,
    PLAIN_LOOK,
    filled_in,
    kind_looks,
    method_looks,
)
from equidp.report.summary import summarise
from support.errors import raises_field
from support.made_up import made_up

COSTS = {
    "dpsgd": {"a": 0.02, "b": 0.40},
    "dpsgd-f": {"a": 0.04, "b": 0.05},
    "global-adapt": {"a": 0.1, "b": 0.12},
}


def test_a_title_names_the_metric_and_an_axis_its_unit_too():
    titles = {name: filled_in(plot.title, summarise(made_up(COSTS))) for name, plot in PLOTS.items()}
    assert titles["accuracy"] == "Accuracy by group"
    assert not any("%" in title or ", points" in title for title in titles.values())
    assert made_up(COSTS).plot("accuracy").axes[0].get_xlabel() == "Accuracy, %"


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


def _apart(one, other):
    """Distance of two colours, for someone who tells no red from green (Viénot et al. 1999)."""
    seen = np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]])
    linear = [np.array(matplotlib.colors.to_rgb(colour)) ** 2.2 for colour in (one, other)]
    return np.linalg.norm(np.subtract(*[np.clip(seen @ each, 0, 1) ** (1 / 2.2) for each in linear]))


def test_each_method_has_a_colour_and_a_marker():
    methods = [PLAIN_LOOK, *LOOKS]
    assert len({look.colour for look in methods}) == len(methods)
    assert len({look.marker for look in LOOKS}) == len(LOOKS)
    usual = [look.colour for look in methods[:7]]
    assert min(_apart(*pair) for pair in itertools.combinations(usual, 2)) > 0.15


def test_a_method_keeps_its_colour_whatever_it_is_compared_with():
    first = list(METHODS)[: len(LOOKS)]
    among = method_looks(first)
    assert all(method_looks([name]) == {name: among[name]} for name in first)
    assert method_looks(["mine:P"])["mine:P"] == method_looks(["sgd", "dpsgd-f", "mine:P"])["mine:P"]
    names = [f"module:Method{at}" for at in range(len(LOOKS))]
    assert len(set(method_looks(names).values())) == len(names)
    assert len(method_looks([*names, "one:More"])) == len(names) + 1


def test_settings_of_a_method_share_its_colour_and_differ_by_marker():
    looks = kind_looks(summarise(made_up(COSTS, epsilons=(1.0, 3.0, 8.0))))
    for method in COSTS:
        own = [look for kind, look in looks.items() if kind.method == method]
        assert {look.colour for look in own} == {method_looks(COSTS)[method].colour}
        assert len({look.marker for look in own}) == 3


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "layout"), [("costs", PAGE), ("trade_off", COLUMN)], ids=["costs page", "trade-off column"]
)
def test_axes_keep_most_of_the_width_and_nothing_leaves_the_figure(name, layout):
    """Also with long names: a legend stands above the axes, in as many columns as fit."""
    long = {"my_package.methods:AMethodOfOnesOwn": 0.1, "dpsgd": 0.2, "dpsgd-f": 0.3}
    groups = ("no schooling at all and no income", "b")
    costs = {method: dict.fromkeys(groups, cost) for method, cost in long.items()}
    figure = PLOTS[name].figure(summarise(made_up(costs, epsilons=(1.0, 3.0))), layout)
    figure.draw_without_rendering()
    inside = figure.bbox.padded(2)
    (legend,) = figure.legends
    for part in (legend, *figure.axes):
        box = part.get_tightbbox()
        assert inside.x0 <= box.x0 <= box.x1 <= inside.x1
        assert inside.y0 <= box.y0 <= box.y1 <= inside.y1
    assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)
    width = max(axes.get_position().x1 for axes in figure.axes) - min(
        axes.get_position().x0 for axes in figure.axes
    )
    assert width > 0.55


def test_unknown_and_empty_figures_are_refused():
    comparison = made_up(COSTS)
    with raises_field(SettingError, "plot", "'cost'", "'costs'"):
        comparison.plot("cost")
    with raises_field(SettingError, "plot"):
        comparison.plot("trade_off")
    with raises_field(SettingError, "width"):
        comparison.plot(width=0)


@pytest.mark.soak
def test_each_figure_of_a_page_is_one_picture():
    page = html.render(made_up(COSTS, epsilons=(1.0, 3.0)))
    assert page.count("<figure") == page.count("<svg") == len(PLOTS)
