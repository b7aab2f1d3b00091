"""A plot is one function and one line in the table of plots."""

from __future__ import annotations

from unittest.mock import Mock

from matplotlib.figure import Figure

from equidp.report.plots import PLOTS
from equidp.report.plots.style import Plot, draw_plots


def test_a_new_plot_is_one_function_and_one_line(monkeypatch):
    def sizes(summary, axis, layout):
        figure = Figure()
        panel = figure.subplots()
        panel.bar(list(summary.sizes()), list(summary.sizes().values()))
        panel.set_ylabel(axis)
        return figure

    monkeypatch.setitem(PLOTS, "sizes", Plot("Sizes", "In training.", "examples", sizes))
    summary = Mock(unit="points", details=[Mock(title="Accuracy")])
    summary.sizes.return_value = {"a": 3, "all": 3}
    (drawn,) = draw_plots([PLOTS["sizes"]], summary)
    assert drawn.title == "Sizes"
    assert "<svg" in drawn.wide
    assert "<svg" in drawn.narrow
