"""Plot of accuracy against the largest gap between groups, for the choice of a method."""

from __future__ import annotations

from collections.abc import Sequence

from equidp._extras import require_extra
from equidp.comparison.sweep import Kind
from equidp.data.dataset import ALL
from equidp.evaluation.costs import RUN, group_gaps
from equidp.report.format import unit
from equidp.report.plots.style import INK, Layout, empty_figure, kind_legend, kind_looks, wrapped
from equidp.report.summary import Summary

with require_extra("report"):
    from matplotlib.figure import Figure


def choice(summary: Summary, axis: str, layout: Layout) -> Figure | None:
    """Draw every run as a small point, means as large points, and the edge that no other mean beats in both.

    Accuracy without privacy is a dashed line: its gap is 0 by definition. None for a single private kind.
    """
    if len(summary.private_kinds) < 2:
        return None
    gaps = group_gaps(summary.costs).query("pair == 'largest'")
    runs = summary.costs[summary.costs["group"] == ALL].merge(gaps, on=RUN)
    figure = empty_figure(layout, 3.6 if layout.columns > 1 else 2.9)
    axes = figure.subplots()
    looks, means = kind_looks(summary), {}
    for kind in summary.private_kinds:
        part = runs[(runs["method"] == kind.method) & (runs["setting"] == kind.setting)]
        x, y = summary.scale * part["cost_gap"], summary.scale * part[summary.metric.name]
        look, means[kind] = looks[kind], (x.mean(), y.mean())
        axes.plot(x, y, look.marker, color=look.colour, markersize=4, alpha=0.45, markeredgewidth=0)
        axes.plot(
            *means[kind],
            look.marker,
            color=look.colour,
            markersize=9,
            markeredgecolor="white",
            label=kind.label,
        )
    for advised in summary.comparison.recommendation():
        if place := means.get(Kind(advised.method, advised.setting)):
            axes.plot(*place, "o", color=INK, fillstyle="none", markersize=15, label="recommended")
    sign = summary.metric.sign
    edge = [(gap, sign * value) for gap, value in best_edge([(x, sign * y) for x, y in means.values()])]
    axes.plot(*zip(*edge, strict=True), color=INK, linewidth=0.8, zorder=1, label="edge")
    for kind in set(summary.kinds) - set(summary.private_kinds):
        level = summary.scale * summary.interval(kind, ALL, summary.metric.name).value
        axes.axhline(level, color=looks[kind].colour, linestyle="--", label=kind.label)
    axes.axvline(summary.scale * summary.setup.gap_tolerance, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(left=0)
    label = f"largest gap in cost between groups, {unit(summary.metric)}"
    axes.set_xlabel(wrapped(label, layout.letters(0.7)))
    axes.set_ylabel(axis)
    kind_legend(figure, looks, layout)
    return figure


def best_edge(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the (gap, accuracy) pairs on the Pareto front, by gap."""
    edge: list[tuple[float, float]] = []
    for gap, accuracy in sorted(places, key=lambda place: (place[0], -place[1])):
        if not edge or accuracy > edge[-1][1]:
            edge.append((gap, accuracy))
    return edge
