"""Effects of columns on a model's outputs, as blocks of a card: a plot and a table."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from equidp._extras import require_extra
from equidp.display import Cell, Column, Table
from equidp.evaluation.effects import Effect
from equidp.report.document import Block, Heading, Paragraph
from equidp.report.plots.style import ACCENT, INK, Layout, drawn_for_page, short, titled_panels

with require_extra("report"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_PANELS, _MOST_TEXTS, _MOST_DECIMALS = 12, 12, 7
_MEANING = (
    "Each interval or text of a column adds a number to {what}. These numbers follow from the released "
    "weights, so they cost no privacy. Only differences within a column have a meaning. They are effects "
    "given all other columns, not causes, and noise of training is in them."
)
_MISSING = (
    " The effect of a missing value is only noise if no training row lacks one, which the card cannot say."
)
_HIDDEN = (
    "The edges or texts of {names} come from training rows, so they are not shown: intervals are numbered "
    "from lowest to highest. Public ranges or private preprocessing would show them."
)


def effect_blocks(
    effects: Sequence[Effect], classes: Sequence[str], positive: str, dates: Collection[str] = ()
) -> Iterator[Block]:
    """Blocks of the effects of columns, or none without effects, and a plot only of two classes.

    Args:
        effects: effects of one model, the largest spread first.
        classes: names of the classes.
        positive: one of two classes, to whose log odds the effects add, or "" for the second.
        dates: names of the columns that hold days since 1 January 2000.
    """
    if not effects:
        return
    what, two = "the logit of each class, relative to the mean of all classes", len(classes) == 2
    if two:
        what = f"the log odds of {positive or classes[1]!r}"
    yield Heading("Effect of each column")
    missing = _MISSING if any(effect.missing for effect in effects) else ""
    yield Paragraph(_MEANING.format(what=what) + missing)
    if two:
        few = f" The {_MOST_PANELS} columns with the largest effects." if len(effects) > _MOST_PANELS else ""
        draw = partial(draw_effects, effects[:_MOST_PANELS], dates)
        yield from drawn_for_page("What each column adds", f"To {what}.{few}", draw)
    yield _effect_table(effects, classes, dates)
    if hidden := [effect.column for effect in effects if not effect.public]:
        yield Paragraph(_HIDDEN.format(names=", ".join(hidden)), small=True)


def _effect_table(effects: Sequence[Effect], classes: Sequence[str], dates: Collection[str]) -> Table:
    """Table of all columns: size of the effect, and the parts that add least and most."""
    several, flagged = len(classes) > 2, any(effect.missing for effect in effects)
    columns = [
        Column("column", "name"),
        Column("root mean square", show="{:.2f}".format),
        *([Column("class", "text")] if several else []),
        *(Column(head, "text") for head in ("adds least", "adds most", *["missing"] * flagged)),
    ]
    rows: list[list[Cell]] = []
    for effect in effects:
        output = int((effect.known**2).mean(axis=0).argmax())
        known, texts = effect.known[:, output], part_texts(effect, is_date=effect.column in dates)
        ends = [f"{texts[at]} ({known[at]:+.2f})" for at in (known.argmin(), known.argmax())]
        ends += [f"{effect.values[-1, output]:+.2f}" if effect.missing else ""] * flagged
        rows.append([effect.column, effect.spread, *([classes[output]] if several else []), *ends])
    return Table(columns, rows)


def part_texts(effect: Effect, *, is_date: bool = False) -> list[str]:
    """Text of each part of a column: a range of numbers, or a text; its number if these are not public."""
    count = len(effect.known)
    if not effect.public:
        part = "text" if effect.edges is None else "interval"
        return [f"{part} {number} of {count}" for number in range(1, count + 1)]
    if effect.edges is None:
        return [*effect.texts]
    if not effect.edges:
        return ["any number"]
    edges = edge_texts(effect.edges, is_date=is_date)
    between = [f"{low} to {high}" if low != high else f"about {low}" for low, high in pairwise(edges)]
    return [f"below {edges[0]}", *between, f"from {edges[-1]}"]


def edge_texts(edges: Sequence[float], *, is_date: bool = False) -> list[str]:
    """Return the texts of rising edges; dates as dates.

    Rounding moves none by more than a twentieth of the narrowest interval, so whole numbers stay whole.

    >>> edge_texts([5.0, 10.0, 65536.0]), edge_texts([0.012345, 0.013]), edge_texts([2.188, 2.5])
    (['5', '10', '65,536'], ['0.01234', '0.01300'], ['2.2', '2.5'])
    >>> edge_texts([-33650.0, 0.4], is_date=True)
    ['1907-11-15', '2000-01-01']
    """
    if is_date:
        first = np.datetime64("2000-01-01")
        return [str((first + np.timedelta64(math.floor(edge), "D")).item()) for edge in edges]
    exact = np.asarray(edges)
    least = np.diff(exact).min(initial=np.inf) / 20
    for decimals in range(_MOST_DECIMALS):
        rounded = exact.round(decimals) + 0.0
        if np.abs(rounded - exact).max(initial=0.0) <= least:
            return [f"{edge:,.{decimals}f}" for edge in rounded]
    return [f"{edge:.4g}" if abs(edge) > 1e-7 else "0" for edge in edges]


def draw_effects(effects: Sequence[Effect], dates: Collection[str], layout: Layout) -> Figure:
    """Draw the effects of columns on one output, a panel each; `dates`: columns of days since 2000."""
    figure, axes = titled_panels([each.column for each in effects], layout, "", "adds", shared=False)
    values = np.concatenate([each.values[:, 0] for each in effects])
    room = 0.06 * max(np.ptp(values), 1e-6)
    for place, (panel, effect) in enumerate(zip(axes, effects, strict=True)):
        _draw_panel(panel, effect, is_date=effect.column in dates)
        panel.set_ylim(values.min() - room, values.max() + room)
        panel.tick_params(labelleft=place % min(layout.columns, len(effects)) == 0)
    return figure


def _draw_panel(panel: Axes, effect: Effect, *, is_date: bool) -> None:
    """Draw steps of intervals or points of texts; missing numbers are a point behind them."""
    panel.axhline(0, color=INK, linewidth=0.6, linestyle=":")
    known, count = effect.known[:, 0], len(effect.known)
    if effect.edges is None:
        panel.plot(range(count), known, "o", color=ACCENT, markersize=3.5)
    else:
        panel.stairs(known, np.arange(count + 1) - 0.5, color=ACCENT, baseline=None, linewidth=1.5)
    ticks, labels = _ticks(effect, is_date=is_date)
    if effect.missing:
        panel.plot(count + 0.5, effect.values[-1, 0], "o", color=ACCENT, markersize=4)
        ticks, labels = [*ticks, count + 0.5], [*labels, "missing"]
    panel.set_xticks(ticks, labels, rotation=45, ha="right", rotation_mode="anchor")
    panel.set_xlim(-0.7, count + (1.0 if effect.missing else -0.3))
    panel.grid(axis="x", visible=False)


def _ticks(effect: Effect, *, is_date: bool) -> tuple[list[float], list[str]]:
    """Places and texts below the axis: some edges, or the texts; their numbers if these are not public."""
    count = len(effect.known)
    if effect.edges is None:
        if count > _MOST_TEXTS or not effect.public:
            return [], []
        return [float(at) for at in range(count)], [short(text, 14) for text in part_texts(effect)]
    if not effect.public:
        return [0.0, count - 1.0][: min(count, 2)], ["lowest", "highest"][: min(count, 2)]
    places = np.unique(np.linspace(0, len(effect.edges) - 1, min(4, len(effect.edges))).round().astype(int))
    texts = edge_texts(effect.edges, is_date=is_date)
    return [place + 0.5 for place in places.tolist()], [texts[place] for place in places]
