"""Style of the plots: inline SVG without fonts, in colours that colour-blind readers can tell apart."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from equidp.comparison.result import DataFacts
from equidp.report.summary import Interval, Kind, Summary

Floats = npt.NDArray[np.float64]
COLOURS = [
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#8C6BB1", "#7F7F7F", "#B2912F", "#4D4D4D"),
]
GREY = "#9AA0A6"
INK = "#010203"
"""Stands for the page's text colour, which differs between light and dark."""
MOST_COLOURED = 4
"""Up to this many groups, each has a colour."""
_GROUP_COLOURS = (COLOURS[1], COLOURS[0], *COLOURS[2:])
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "equidp",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
}


def svg(draw: Callable[[], Figure | None]) -> str:
    """The figure that `draw` makes, as an SVG element in the house style; "" if it makes none."""
    with mpl.rc_context(_STYLE):
        figure = draw()
        if figure is None:
            return ""
        file = io.StringIO()
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(r' (width|height)="[^"]*"', "", text, count=2)  # the page sets the size


def panels(
    kinds: Sequence[Kind], height: float, x: str, y: str, colours: dict[str, str]
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel per kind of run, on one scale, up to three in a row, and a legend of groups.

    Args:
        kinds: one per panel.
        height: of a panel, in inches.
        x, y: labels of the axes.
        colours: of the groups.
    """
    columns = min(3, len(kinds))
    rows = -(-len(kinds) // columns)
    figure = Figure(figsize=(2.9 * columns + 0.4, height * rows + 0.3))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for place, panel in enumerate(grid.flat):
        if place >= len(kinds):
            panel.remove()
            continue
        panel.set_title(kinds[place].label)
        if place % columns == 0:
            panel.set_ylabel(y)
        if place + columns >= len(kinds):  # nothing below
            panel.set_xlabel(x)
            panel.tick_params(labelbottom=True)
    _group_legend(figure, colours)
    figure.set_layout_engine("tight", rect=(0, 0, 1, 1 - 0.28 / figure.get_figheight()))
    return figure, list(grid.flat[: len(kinds)])


def in_points(intervals: Iterable[Interval]) -> tuple[Floats, Floats]:
    """Means, [n], and lengths of the error bars below and above them, [2, n], in percentage points."""
    means, low, high = 100 * np.array(list(intervals)).T
    return means, np.abs(np.nan_to_num([means - low, high - means]))


def kind_colour(summary: Summary, kind: Kind) -> str:
    """The colour of a kind of run in every plot; grey for the baseline."""
    if kind.method == summary.setup.baseline:
        return GREY
    return COLOURS[summary.private_kinds.index(kind) % len(COLOURS)]


def group_colours(data: DataFacts, names: Sequence[str]) -> dict[str, str]:
    """A colour for each of a few groups; of many, only the smallest and the highlighted are not grey."""
    if len(names) <= MOST_COLOURED:
        return dict(zip(names, _GROUP_COLOURS, strict=False))
    sizes = dict(zip(data.group_names, data.train_group_sizes, strict=True))
    smallest = min(names, key=lambda name: sizes[name])
    chosen = list(dict.fromkeys([smallest, *(data.highlighted_groups or ())]))
    return {name: _GROUP_COLOURS[chosen.index(name)] if name in chosen else GREY for name in names}


def short(name: str) -> str:
    """A group's name for a plot: cut to 36 characters, with dollar signs, which start formulas, escaped."""
    name = name if len(name) <= 36 else name[:35] + "…"
    return name.replace("$", r"\$")


def _group_legend(figure: Figure, colours: dict[str, str]) -> None:
    coloured = {f"group {short(name)}": colour for name, colour in colours.items() if colour != GREY}
    handles = [Line2D([], [], color=colour, linewidth=2) for colour in coloured.values()]
    names = list(coloured)
    if len(coloured) < len(colours):
        handles.append(Line2D([], [], color=GREY))
        names.append("other groups")
    figure.legend(handles, names, loc="upper left", ncols=5)
