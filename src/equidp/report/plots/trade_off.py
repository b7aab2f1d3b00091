"""Plot of the cost of privacy at several epsilons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equidp._extras import require_extra
from equidp.data.dataset import ALL
from equidp.report.format import number
from equidp.report.plots.style import INK, Layout, empty_figure, legend, method_looks, scale_intervals, short

with require_extra("report"):
    from matplotlib.figure import Figure

if TYPE_CHECKING:
    from equidp.report.summary import Summary


def trade_off(summary: Summary, axis: str, layout: Layout) -> Figure | None:
    """Draw cost and largest gap against epsilon, a colour per method, or None if no method has two epsilons.

    If a method has several settings at one epsilon, no line joins its points.
    """
    rows = {row.kind: row for row in summary.overview}
    epsilons = {
        method: [f"{rows[kind].epsilon:.2g}" for kind in summary.private_kinds if kind.method == method]
        for method in dict.fromkeys(kind.method for kind in summary.private_kinds)
    }
    if max(len(set(each)) for each in epsilons.values()) < 2:
        return None
    columns = min(2, layout.columns)
    figure = empty_figure(layout, 2.9 if columns == 2 else 4.2)
    panels = figure.subplots(2 // columns, columns, sharex=True, squeeze=False).flatten()
    looks = method_looks(kind.method for kind in summary.kinds)
    drawn = {}
    for method, own in epsilons.items():
        kinds = [kind for kind in summary.private_kinds if kind.method == method]
        kinds.sort(key=lambda kind: rows[kind].epsilon)
        shown = (
            [summary.interval(kind, ALL, "privacy_cost") for kind in kinds],
            [rows[kind].gap for kind in kinds],
        )
        for panel, intervals in zip(panels, shown, strict=True):
            means, errors = scale_intervals(intervals, summary)
            drawn[short(method)] = panel.errorbar(
                [rows[kind].epsilon for kind in kinds],
                means,
                yerr=errors,
                fmt=looks[method].marker + ("-" if len(set(own)) == len(own) else ""),
                markersize=4,
                color=looks[method].colour,
                label=method,
            )
    panels[0].set_title("cost over all test examples")
    panels[1].set_title("largest gap between groups")
    panels[1].axhline(summary.scale * summary.setup.gap_tolerance, color=INK, linewidth=0.8, linestyle=":")
    ticks = sorted({number(rows[kind].epsilon) for kind in summary.private_kinds}, key=float)
    for place, panel in enumerate(panels):
        panel.set_xscale("log")
        panel.set_xticks([float(tick) for tick in ticks], ticks)
        panel.minorticks_off()
        if place % columns == 0:
            panel.set_ylabel(axis)
        if place + columns >= len(panels):
            panel.set_xlabel("epsilon")
    legend(figure, drawn, layout)
    return figure
