"""Plot of the effects of columns: a panel each, with a step for each interval or a point for each text."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from equidp._extras import require_extra
from equidp.evaluation.effects import Effect
from equidp.report.plots.style import (
    GREY,
    INK,
    Layout,
    Look,
    legend,
    short,
    titled_panels,
)

with require_extra("report"):
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MOST_PANELS = 12
_MOST_DECIMALS = 7
_BLUE = Look("#0B5C93")
CLASS_LOOKS = (
    *(Look("#0072B2", "o", "-"), Look("#D55E00", "s", "--"), Look("#009E73", "^", "-.")),
    *(Look("#CC79A7", "D", ":"), Look("#B38600", "v", "-"), Look("#56B4E9", "P", "--")),
    *(Look("#7A3E9D", "X", "-."), Look("#8A5A44", "*", ":")),
)
"""Looks of classes, which readers without a sense of colours tell apart by lines and markers."""
_MOST_TEXTS = 12
"""Texts of a column up to which each is named below the axis."""


def curves(
    effects: Sequence[Effect], classes: Sequence[str], dates: Collection[str], layout: Layout
) -> Figure | None:
    """Draw the effects of the first dozen columns, on one scale; `dates`: columns of days since 2000."""
    shown = effects[:MOST_PANELS]
    looks = _class_looks(classes) if len(classes) > 2 else {"": _BLUE}
    figure, axes = titled_panels([each.column for each in shown], layout, "", "adds", shared=False)
    low = min(float(each.values.min()) for each in shown)
    high = max(float(each.values.max()) for each in shown)
    room = 0.06 * max(high - low, 1e-6)
    for place, (panel, effect) in enumerate(zip(axes, shown, strict=True)):
        _draw_panel(panel, effect, list(looks.values()), is_date=effect.column in dates)
        panel.set_ylim(low - room, high + room)
        panel.tick_params(labelleft=place % min(layout.columns, len(shown)) == 0)
    if len(looks) > 1:
        entries: dict[str, Artist] = {
            short(name, layout.letters(0.8)): Line2D(
                [], [], color=look.colour, marker=look.marker, linestyle=look.line, linewidth=2, markersize=4
            )
            for name, look in looks.items()
        }
        legend(figure, entries, layout)
    return figure


def _class_looks(classes: Sequence[str]) -> dict[str, Look]:
    """Look of each class; of many classes, all but the first few are grey."""
    return {
        name: CLASS_LOOKS[place] if place < len(CLASS_LOOKS) else Look(GREY)
        for place, name in enumerate(classes)
    }


def _draw_panel(panel: Axes, effect: Effect, looks: Sequence[Look], *, is_date: bool) -> None:
    """Draw the curve of each output; a part for missing numbers is a point behind it."""
    panel.axhline(0, color=INK, linewidth=0.6, linestyle=":")
    known = effect.known
    count = len(known)
    for output, look in enumerate(looks):
        values = known[:, output]
        if effect.edges is None:
            panel.plot(range(count), values, look.marker, color=look.colour, markersize=3.5)
        else:
            edges, style = np.arange(count + 1) - 0.5, look.line
            panel.stairs(values, edges, color=look.colour, linestyle=style, baseline=None, linewidth=1.5)
        if effect.missing:
            place = [count + 0.5], effect.values[-1:, output]
            panel.plot(*place, look.marker, color=look.colour, markersize=4)
    ticks, labels = _ticks(effect, is_date=is_date)
    if effect.missing:
        ticks, labels = [*ticks, count + 0.5], [*labels, "missing"]
    panel.set_xticks(ticks, labels, rotation=45, ha="right", rotation_mode="anchor")
    panel.set_xlim(-0.7, count + (1.0 if effect.missing else -0.3))
    panel.grid(axis="x", visible=False)


def _ticks(effect: Effect, *, is_date: bool) -> tuple[list[float], list[str]]:
    """Places and texts below the axis: some edges, or the texts; their numbers where these are not public."""
    count = len(effect.known)
    if effect.edges is None:
        if count > _MOST_TEXTS:
            return [], []
        numbers = [f"text {number}" for number in range(1, count + 1)]
        names = [short(text, 14) for text in effect.texts] if effect.public else numbers
        return list(map(float, range(count))), names
    if not effect.public:
        return [0.0, count - 1.0][: min(count, 2)], ["lowest", "highest"][: min(count, 2)]
    places = np.unique(np.linspace(0, len(effect.edges) - 1, min(4, len(effect.edges))).round().astype(int))
    texts = edge_texts(effect.edges, is_date=is_date)
    return [place + 0.5 for place in places.tolist()], [texts[place] for place in places]


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
    found = np.asarray(edges)
    least = np.diff(found).min(initial=np.inf) / 20
    for decimals in range(_MOST_DECIMALS):
        rounded = found.round(decimals) + 0.0
        if np.abs(rounded - found).max(initial=0.0) <= least:
            return [f"{edge:,.{decimals}f}" for edge in rounded]
    return [f"{edge:.4g}" if abs(edge) > 1e-7 else "0" for edge in edges]
