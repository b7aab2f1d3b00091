"""Plot of a metric by group and method, with intervals over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equidp._extras import require_extra
from equidp.evaluation.costs import COSTS
from equidp.report.plots.style import (
    GREY,
    INK,
    Layout,
    empty_figure,
    kind_legend,
    kind_looks,
    scale_intervals,
    wrapped,
)

with require_extra("report"):
    from matplotlib.figure import Figure

if TYPE_CHECKING:
    from equidp.report.summary import Summary


def by_group(summary: Summary, axis: str, layout: Layout, *, metric: str) -> Figure:
    """Draw a cost, or with "" the metric: groups down, one colour per method, one marker per setting."""
    cost = metric in COSTS
    kinds = summary.private_kinds if cost else summary.kinds
    looks = kind_looks(summary)
    heads = [wrapped(f"{name} ({size:,})", layout.letters(0.3)) for name, size in summary.sizes().items()]
    row = max(layout.lines(max(1 + head.count("\n") for head in heads) + 0.7), 0.09 * len(kinds))
    figure = empty_figure(layout, 0.6 + len(heads) * row)
    axes = figure.subplots()
    for at, kind in enumerate(kinds):
        means, errors = scale_intervals(
            (summary.interval(kind, name, metric or summary.metric.name) for name in summary.sizes()), summary
        )
        axes.errorbar(
            means,
            np.arange(len(heads)) + 0.7 * ((at + 0.5) / len(kinds) - 0.5),
            xerr=errors,
            fmt=looks[kind].marker,
            markersize=5,
            linewidth=1.2,
            color=looks[kind].colour,
            label=kind.label,
        )
    for edge in np.arange(len(heads) - 1) + 0.5:
        axes.axhline(edge, color=GREY, linewidth=0.6, alpha=0.5 if edge < len(heads) - 1.6 else 1.0)
    axes.grid(axis="y", visible=False)
    axes.set_yticks(range(len(heads)), heads)
    axes.set_ylim(len(heads) - 0.5, -0.5)
    axes.set_xlabel(wrapped(axis, layout.letters(0.7)))
    if cost:
        axes.axvline(0, color=INK, linewidth=0.8)
    kind_legend(figure, {kind: looks[kind] for kind in kinds}, layout)
    return figure
