"""Plots: their colours, markers and sizes, and their drawing for a page and a paper's column.

Markers repeat what colours say, for colour-blind readers and prints in grey. Text stays text, and legends are
outside the axes.
"""

from __future__ import annotations

import io
import re
import textwrap
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.display import Interval
from equidp.policies.table import BASELINE, METHODS
from equidp.report.document import Drawn
from equidp.report.format import unit

with require_extra("report"):
    import matplotlib as mpl
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

if TYPE_CHECKING:  # a card of one run draws too, without a comparison
    from equidp.comparison.plan import Kind
    from equidp.report.summary import Summary


class Look(NamedTuple):
    """Look of a method, a class or a group: a colour, a marker of points, a style of lines."""

    colour: str
    marker: str = "o"
    line: Literal["-", "--", "-.", ":"] = "-"


PLAIN_LOOK = Look("#A3A8AF")
"""Look of training without privacy."""
ACCENT = "#0B5C93"
"""The accent colour of pages, which no method has."""
LOOKS = (
    *(Look("#0072B2", "o"), Look("#D55E00", "s"), Look("#009E73", "^"), Look("#E69F00", "D")),
    *(Look("#56B4E9", "P"), Look("#8C5A2B", "v"), Look("#5F7A0E", "X"), Look("#C7A800", ">")),
    *(Look("#14AEBF", "<"), Look("#3D5A66", "H"), Look("#B5179E", "*"), Look("#93B53C", "p")),
)
"""Looks of private methods."""
SETTING_MARKERS = "os^DvPX<>*"


def kind_looks(summary: Summary) -> dict[Kind, Look]:
    """Look of each kind of run: its method's colour; several settings, or baselines, have a marker each."""
    methods = method_looks(kind.method for kind in summary.kinds)
    parts = summary.private_kinds, summary.reference_kinds
    settings = dict.fromkeys(kind.setting for part in parts for kind in part)
    markers = dict(zip(settings, cycle(SETTING_MARKERS), strict=False))
    looks = {kind: methods[kind.method] for kind in summary.kinds}
    for part in parts:
        if len({kind.setting for kind in part}) > 1:
            looks |= {kind: Look(looks[kind].colour, markers[kind.setting]) for kind in part}
    return looks


def method_looks(names: Iterable[str]) -> dict[str, Look]:
    """Look of each method: by its place in `METHODS`, or by its name; the next one if that is in use."""
    names, places = list(dict.fromkeys(names)), {name: place - 1 for place, name in enumerate(METHODS)}
    looks: dict[str, Look] = {}
    for name in sorted(names, key=lambda name: (places.get(name, len(places)), name)):
        first = places.get(name, zlib.crc32(name.encode()))
        order = [LOOKS[(first + further) % len(LOOKS)] for further in range(len(LOOKS))]
        looks[name] = next((look for look in order if look not in looks.values()), order[0])
        if name == BASELINE:
            looks[name] = PLAIN_LOOK
    return {name: looks[name] for name in names}


Floats = npt.NDArray[np.float64]
GREY = "#9AA0A6"
"""Colour of grids."""
INK = "#010203"
"""Stands for the page's text colour, which differs between light and dark; nearly black on paper."""
_LETTER = 0.55
"""Width of a usual letter, as a share of the font's size."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.2,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor"), "white"),
}


@dataclass(frozen=True)
class Layout:
    """Width and font of a figure.

    Attributes:
        width: width in inches.
        font: size in points.
    """

    width: float
    font: float

    @property
    def columns(self) -> int:
        """Number of panels that fit in a row."""
        return int(min(3, max(1, self.width // 2.4)))

    def letters(self, share: float) -> int:
        """Number of letters that fit in a share of the width."""
        return max(6, int(share * self.width * 72 / (_LETTER * self.font)))

    def lines(self, number: float) -> float:
        """Height of lines of text, in inches."""
        return number * 1.45 * self.font / 72


PAGE, COLUMN = Layout(5.2, 9), Layout(3.4, 8)
"""Layouts of a page on a screen, and of a column of a paper."""


def drawn_as(layout: Layout, draw: Callable[[Layout], Figure | None]) -> Figure | None:
    """Return the figure that `draw` makes, in the style of all plots."""
    with mpl.rc_context({**_STYLE, "font.size": layout.font, "axes.titlesize": layout.font}):
        return draw(layout)


def svg(figure: Figure) -> str:
    """Return the figure as an SVG element for a page, which sets its size and the colour of its text."""
    file = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": "equidp"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(r' (width|height)="[^"]*"', "", text, count=2)


def saved(figure: Figure, kind: str) -> bytes:
    """Return the figure as a file "pdf" or "svg", the same bytes each time, with text as text."""
    file = io.BytesIO()
    dates = {"CreationDate": None} if kind == "pdf" else {"Date": None}
    with mpl.rc_context({**_STYLE, "svg.hashsalt": "equidp"}):
        figure.savefig(file, format=kind, metadata=dates)
    return file.getvalue()


def empty_figure(layout: Layout, height: float) -> Figure:
    """Make a figure of the layout's width with room for labels and for a legend outside its axes."""
    return Figure(figsize=(layout.width, height), layout="constrained")


def titled_panels(
    titles: Sequence[str], layout: Layout, x: str, y: str, *, shared: bool = True
) -> tuple[Figure, list[Axes]]:
    """Make a figure with a panel for each title, without a legend.

    Args:
        titles: one per panel.
        layout: determines the number of panels in a row.
        x, y: labels of the axes.
        shared: True: all panels have one scale.
    """
    columns = min(layout.columns, len(titles))
    rows = -(-len(titles) // columns)
    figure = empty_figure(layout, (2.3 if columns > 1 else 1.75) * rows + 0.2)
    grid = figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False)
    for place, panel in enumerate(grid.flat):
        if place >= len(titles):
            panel.remove()
            continue
        panel.set_title(wrapped(titles[place], layout.letters(0.7 / columns)))
        if place % columns == 0:
            panel.set_ylabel(y)
        if place + columns >= len(titles):  # nothing below
            panel.set_xlabel(x)
            panel.tick_params(labelbottom=True)
    return figure, list(grid.flat[: len(titles)])


def kind_legend(figure: Figure, looks: Mapping[Kind, Look], layout: Layout) -> None:
    """Add a legend of kinds of run; with several settings, of methods, and of settings by marker."""
    settings = {kind.setting: look.marker for kind, look in looks.items() if kind.setting}
    entries: dict[str, Artist] = {}
    for kind, (colour, marker, _) in looks.items():
        if len(settings) > 1:
            entries[short(kind.method)] = Line2D([], [], color=colour, linewidth=3)
        else:
            entries[short(kind.label)] = Line2D([], [], color=colour, marker=marker, markersize=5)
    if len(settings) > 1:
        for setting, marker in settings.items():
            entries[short(setting)] = Line2D([], [], color=INK, marker=marker, linestyle="", markersize=5)
    legend(figure, entries, layout)


def legend(figure: Figure, entries: Mapping[str, Artist], layout: Layout) -> None:
    """Add a legend above the axes, in as many columns as fit, and make the figure higher by its height."""
    room = layout.letters(0.97)
    columns = max(1, min(len(entries), room // (max(map(len, entries)) + 6)))
    height = layout.lines(-(-len(entries) // columns) + 0.4)
    figure.set_figheight(figure.get_figheight() + height)
    figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=columns)


def scale_intervals(intervals: Iterable[Interval], summary: Summary) -> tuple[Floats, Floats]:
    """Return means, [n], and lengths of error bars below and above, [2, n], in the metric's display scale."""
    means, low, high = summary.scale * np.array(list(intervals)).T
    return means, np.abs(np.nan_to_num([means - low, high - means]))


def short(name: str, letters: int = 36) -> str:
    """Cut a name to `letters` letters, and escape dollar signs, which start formulas."""
    name = name if len(name) <= letters else name[: letters - 1] + "…"
    return name.replace("$", r"\$")


def wrapped(name: str, letters: int) -> str:
    """Break a name into at most two lines of `letters` letters."""
    return short("\n".join(textwrap.wrap(name, letters, max_lines=2, placeholder="…")), 2 * letters + 1)


class Plot(NamedTuple):
    """Plot of a comparison.

    Attributes:
        title: its heading. In it, caption and axis, {unit} stands for the unit of costs, {label} for the
            metric's label, and {metric} for the label with its unit.
        caption: content of the plot, in a sentence or two.
        axis: label of the axis with the figures.
        draw: summary, the label of the axis and the layout -> a figure, or None if there is nothing to show.
    """

    title: str
    caption: str
    axis: str
    draw: Callable[[Summary, str, Layout], Figure | None]

    def figure(self, summary: Summary, layout: Layout = PAGE) -> Figure | None:
        """Draw the figure, or None if there is nothing to show."""
        return drawn_as(layout, partial(self.draw, summary, filled_in(self.axis, summary)))


def filled_in(text: str, summary: Summary) -> str:
    """Fill in the metric of the comparison in a text. Its label begins a title, a sentence or an axis."""
    return text.format(unit=unit(summary.metric), label=summary.label, metric=summary.details[0].title)


def draw_plots(plots: Iterable[Plot], summary: Summary) -> list[Drawn]:
    """Draw the plots that have something to show."""
    drawn = []
    for plot in plots:
        title, caption = filled_in(plot.title, summary), filled_in(plot.caption, summary)
        drawn += drawn_for_page(title, caption, partial(plot.figure, summary))
    return drawn


def drawn_for_page(title: str, caption: str, draw: Callable[[Layout], Figure | None]) -> list[Drawn]:
    """Draw a figure of any results for pages, or none if there is nothing to show."""
    figure = drawn_as(PAGE, draw)
    return [] if figure is None else [Drawn(title, caption, svg(figure))]
