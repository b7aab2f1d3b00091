"""What privacy costs at several epsilons."""

from __future__ import annotations

import itertools

from matplotlib.figure import Figure

from equidp.data.dataset import ALL
from equidp.report.format import number
from equidp.report.plots.style import COLOURS, INK, in_points
from equidp.report.summary import Summary


def trade_off(summary: Summary, axis: str) -> Figure | None:
    """Cost and largest gap against epsilon, one colour per method; None for a single epsilon."""
    if len({kind.setting for kind in summary.private_kinds}) < 2:
        return None
    figure = Figure(figsize=(8.2, 3.1))
    panels = figure.subplots(1, 2, sharex=True)
    rows = {row.kind: row for row in summary.overview}
    methods = dict.fromkeys(kind.method for kind in summary.private_kinds)
    for method, colour in zip(methods, itertools.cycle(COLOURS), strict=False):
        kinds = [kind for kind in summary.private_kinds if kind.method == method]
        kinds.sort(key=lambda kind: rows[kind].epsilon)
        shown = (
            [summary.interval(kind, ALL, "privacy_cost") for kind in kinds],
            [rows[kind].gap for kind in kinds],
        )
        for panel, intervals in zip(panels, shown, strict=True):
            means, errors = in_points(intervals)
            panel.errorbar(
                [rows[kind].epsilon for kind in kinds],
                means,
                yerr=errors,
                fmt="o-",
                markersize=4,
                color=colour,
                label=method,
            )
    panels[0].set_title("cost over all test examples")
    panels[1].set_title("largest gap between groups")
    panels[1].axhline(100 * summary.setup.tau, color=INK, linewidth=0.8, linestyle=":")
    ticks = sorted({number(rows[kind].epsilon) for kind in summary.private_kinds}, key=float)
    for panel in panels:
        panel.set_xscale("log")
        panel.set_xticks([float(tick) for tick in ticks], ticks)
        panel.minorticks_off()
        panel.set_xlabel("epsilon")
    panels[0].set_ylabel(axis)
    figure.tight_layout(rect=(0, 0, 1, 0.91))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="upper left", ncols=6)
    return figure
