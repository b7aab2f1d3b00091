"""The plots of a comparison: one plot a file, and one line in a table below."""

from __future__ import annotations

from functools import partial

from equidp.report.plots.by_group import by_group
from equidp.report.plots.style import Plot
from equidp.report.plots.trade_off import trade_off

PLOTS = {
    "costs": Plot(
        "What privacy cost each group",
        "What is lost against the non-private run of the same seed. Bars: interval over seeds. In brackets: "
        "training examples. Points side by side mean an equal cost.",
        "privacy cost, {unit}",
        partial(by_group, metric="privacy_cost"),
    ),
    "accuracy": Plot("{label} by group", "On the test set.", "{metric}", partial(by_group, metric="")),
    "trade_off": Plot(
        "Privacy against its cost",
        "More privacy is to the left. Dotted: the gap that counts as equal.",
        "privacy cost, {unit}",
        trade_off,
    ),
}
"""Plots of every report, by the name that `Comparison.plot` takes."""
