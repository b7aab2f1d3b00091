"""Plots of an evaluated run by group: accuracy, and predicted and observed risks."""

from __future__ import annotations

from equidp._extras import require_extra
from equidp.data.dataset import ALL
from equidp.evaluation.evaluation import Evaluation
from equidp.report.plots.style import (
    INK,
    OTHER_GROUPS,
    Layout,
    empty_figure,
    group_legend,
    group_looks,
    legend,
    wrapped,
)

with require_extra("tables"):
    import pandas as pd

with require_extra("report"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE = "#0B5C93"
"""Colour of predictions: the accent of pages, which stands for no method and no group."""


def calibration(found: Evaluation, layout: Layout) -> Figure | None:
    """Draw mean predicted risk and the share of positives with interval, groups down; None without risks."""
    table = found.calibration
    if table.empty:
        return None
    figure, axes = _groups_down(table, "observed", layout)
    (predicted,) = axes.plot(100 * table["mean_predicted"], range(len(table)), "D", color=_BLUE, markersize=6)
    (happened,) = axes.get_lines()[:1]
    axes.set_xlim(left=0)
    axes.set_xlabel(f"risk of {wrapped(found.positive, 30)}, %")
    legend(figure, {"mean predicted": predicted, "happened, with interval": happened}, layout)
    return figure


def reliability(found: Evaluation, layout: Layout) -> Figure | None:
    """Draw observed against predicted risk, by group, in bins; on the diagonal the two are equal."""
    table = found.reliability
    if table.empty:
        return None
    sizes = found.groups.set_index("group")["count"].drop(ALL)
    names = [name for name in sizes.index if name in set(table["group"])]
    looks = group_looks(names, sizes)
    figure = empty_figure(layout, min(0.85 * layout.width, 4.6))
    axes = figure.subplots()
    for name, look in looks.items():
        part = table[table["group"] == name]
        observed, low, high = (100 * part[f"observed{end}"] for end in ("", "_low", "_high"))
        axes.errorbar(
            100 * part["mean_predicted"],
            observed,
            yerr=[observed - low, high - observed],
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=3,
            linewidth=0.9 if look == OTHER_GROUPS else 1.5,
            elinewidth=0.8,
            label=name,
        )
    axes.axline((0, 0), slope=1, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlabel(f"predicted risk of {wrapped(found.positive, 30)}, %")
    axes.set_ylabel("happened, %")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    group_legend(figure, looks, layout)
    return figure


def accuracies(found: Evaluation, layout: Layout) -> Figure | None:
    """Draw accuracy of each group and of all, with intervals over test examples; None without classes."""
    if "accuracy" not in found.groups:
        return None
    figure, axes = _groups_down(found.groups.dropna(subset="accuracy"), "accuracy", layout)
    axes.set_xlabel("accuracy, %")
    return figure


def _groups_down(table: pd.DataFrame, column: str, layout: Layout) -> tuple[Figure, Axes]:
    """Draw a share and its interval, in %, a row for each group."""
    sizes = zip(table["group"], table["count"], strict=True)
    heads = [wrapped(f"{name} ({size:,})", layout.letters(0.3)) for name, size in sizes]
    lines = max((1 + head.count("\n") for head in heads), default=1)
    figure = empty_figure(layout, 0.6 + len(heads) * layout.lines(lines + 0.7))
    axes, rows = figure.subplots(), range(len(table))
    axes.hlines(rows, 100 * table[f"{column}_low"], 100 * table[f"{column}_high"], color=INK, linewidth=1.2)
    axes.plot(100 * table[column], rows, "|", color=INK, markersize=9, markeredgewidth=1.6)
    axes.grid(axis="y", visible=False)
    axes.set_yticks(rows, heads)
    axes.set_ylim(len(table) - 0.5, -0.5)
    return figure, axes
