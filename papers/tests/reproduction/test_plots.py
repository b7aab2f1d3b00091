"""Plots of items: each draws what it is given, and nothing where there is nothing."""

from __future__ import annotations

import pandas as pd
import pytest

from equidp.report.plots.style import COLUMN, PAGE, drawn_as
from papers.reproduction.item import COLUMNS, Found
from papers.reproduction.plots import Bars, Curves, Points

GROUPS, METHODS = ("a", "b", "all"), ("sgd", "dpsgd")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rows = [
        ("d", method, group, quantity, at, seed, 0.1 + 0.2 * seed + (0 if at != at else at))
        for method in METHODS
        for group in GROUPS
        for quantity in ("accuracy", "loss")
        for at in (float("nan"), 1.0, 2.0)
        for seed in (0, 1)
    ]
    return Found.of(pd.DataFrame(rows, columns=COLUMNS)).table


BARS = Bars("Accuracy", "accuracy", "accuracy")
CURVES = Curves("Loss", "loss", "mean loss", groups=("a", "b"))
POINTS = Points("Both", "accuracy", "loss", "accuracy", "loss", by="method")


@pytest.mark.parametrize("layout", [PAGE, COLUMN])
@pytest.mark.parametrize("plot", [BARS, CURVES, POINTS])
def test_nothing_is_drawn_of_nothing(table, plot, layout):
    assert drawn_as(layout, lambda layout: plot.draw(table[:0], layout)) is None
    assert drawn_as(layout, lambda layout: plot.draw(table, layout)) is not None


def test_bars_stand_for_means_of_groups_without_all(table):
    (panel,) = drawn_as(PAGE, lambda layout: BARS.draw(table, layout)).axes
    assert [text.get_text() for text in panel.get_xticklabels()] == ["a", "b"]
    heights = [bar.get_height() for bar in panel.patches]
    assert heights == pytest.approx([0.2] * 4)


def test_curves_have_a_panel_for_each_method_and_a_line_for_each_group(table):
    panels = drawn_as(PAGE, lambda layout: CURVES.draw(table, layout)).axes
    assert [panel.get_title(loc="left") for panel in panels] == list(METHODS)
    for panel in panels:
        assert len(panel.lines) == 2
        assert panel.lines[0].get_xdata().tolist() == [1.0, 2.0]


def test_points_pair_two_quantities_at_one_place(table):
    panels = drawn_as(PAGE, lambda layout: POINTS.draw(table, layout)).axes
    assert len(panels) == 2
    assert all(len(panel.collections[0].get_offsets()) > 0 for panel in panels)
