"""Plot of an evaluated run: predicted probability beside what happened, by group."""

from __future__ import annotations

from functools import partial

from equidp._extras import require_extra
from equidp.evaluation.evaluation import Evaluation
from equidp.report.plots.style import INK, Layout, drawn_for_page, empty_figure, legend, wrapped
from equidp.report.render import Drawn

with require_extra("report"):
    from matplotlib.figure import Figure

_BLUE = "#0B5C93"
"""Colour of predictions: the accent of pages, which stands for no method."""


def draw_calibration(found: Evaluation) -> Drawn | None:
    """Return the plot for a card; None without two classes."""
    return drawn_for_page(
        f"Predicted probability of {found.positive!r} beside what happened",
        "By group, in brackets: test examples. Where the two differ, the probabilities cannot be taken as "
        "they are.",
        partial(calibration, found),
    )


def calibration(found: Evaluation, layout: Layout) -> Figure | None:
    """Draw mean predicted probability and the share of positives with interval, groups down."""
    table = found.calibration
    if table.empty:
        return None
    sizes = zip(table["group"], table["count"], strict=True)
    heads = [wrapped(f"{name} ({size:,})", layout.letters(0.3)) for name, size in sizes]
    lines = max(1 + head.count("\n") for head in heads)
    figure = empty_figure(layout, 0.6 + len(heads) * layout.lines(lines + 0.7))
    axes, rows = figure.subplots(), range(len(table))
    low, high = (100 * table[f"observed_{end}"] for end in ("low", "high"))
    axes.hlines(rows, low, high, color=INK, linewidth=1.2)
    (happened,) = axes.plot(100 * table["observed"], rows, "|", color=INK, markersize=9, markeredgewidth=1.6)
    (predicted,) = axes.plot(100 * table["mean_predicted"], rows, "D", color=_BLUE, markersize=6)
    axes.grid(axis="y", visible=False)
    axes.set_yticks(rows, heads)
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"probability of {wrapped(found.positive, 30)}, %")
    legend(figure, {"mean predicted": predicted, "happened, with interval": happened}, layout)
    return figure
