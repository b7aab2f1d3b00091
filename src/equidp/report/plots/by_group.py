"""A metric by group and method, with intervals over seeds."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from equidp.evaluation.costs import COSTS
from equidp.report.plots.style import GREY, INK, in_points, kind_colour, short
from equidp.report.summary import Summary


def by_group(summary: Summary, axis: str, *, metric: str) -> Figure:
    """A metric in percentage points: groups down, one colour per kind of run."""
    cost = metric in COSTS
    kinds = summary.private_kinds if cost else summary.kinds
    names = list(summary.sizes())
    figure = Figure(figsize=(8.2, 0.9 + len(names) * max(0.34, 0.11 * len(kinds))))
    axes = figure.subplots()
    for at, kind in enumerate(kinds):
        means, errors = in_points(summary.interval(kind, name, metric) for name in names)
        axes.errorbar(
            means,
            np.arange(len(names)) + 0.7 * ((at + 0.5) / len(kinds) - 0.5),
            xerr=errors,
            fmt="o",
            markersize=5,
            linewidth=1.2,
            color=kind_colour(summary, kind),
            label=kind.label,
        )
    for edge in np.arange(len(names) - 1) + 0.5:
        axes.axhline(edge, color=GREY, linewidth=0.6, alpha=0.5 if edge < len(names) - 1.6 else 1.0)
    axes.grid(axis="y", visible=False)
    heads = [f"{short(name)}  ({size:,})" for name, size in summary.sizes().items()]
    axes.set_yticks(range(len(names)), heads)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(axis)
    if cost:
        axes.axvline(0, color=INK, linewidth=0.8)
    columns = min(5, len(kinds))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, handletextpad=0.2)
    return figure
