"""Plot of the metric and the largest gap over each swept setting."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from equidp._extras import require_extra
from equidp.comparison.sweep import Kind, value_text
from equidp.data.dataset import ALL
from equidp.report.format import unit
from equidp.report.plots.style import (
    INK,
    SETTING_MARKERS,
    Layout,
    Look,
    empty_figure,
    kind_legend,
    method_looks,
    scale_intervals,
    wrapped,
)
from equidp.report.summary import Summary

with require_extra("report"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import ScaledTranslation

_LOG_FROM = 10
"""Values that span more than this factor are on a logarithmic axis."""
_APART = 4
"""Points between the intervals of two lines at one value."""


def sweep(summary: Summary, axis: str, layout: Layout) -> Figure | None:
    """Draw, for each swept setting, the metric over all test examples and the largest gap between groups.

    A method has a line for each epsilon. With several swept settings, the other settings have the values
    of the method's best mean of the metric; thin lines have other values. A method without the
    setting is a dashed line, at its best. None where no setting has two values.
    """
    swept = {name: places for name in summary.setup.swept if len(places := _places(summary, name)) > 1}
    if not swept:
        return None
    columns = min(2, layout.columns)
    figure = empty_figure(layout, (2.6 if columns == 2 else 4.0) * len(swept))
    panels = figure.subplots(2 * len(swept) // columns, columns, squeeze=False).reshape(-1, 2)
    lines = _lines(summary)
    looks = _looks(lines)
    gaps = {row.kind: row.gap for row in summary.overview}
    overall = {kind: summary.interval(kind, ALL, summary.metric.name) for kind in summary.kinds}
    for (name, places), pair in zip(swept.items(), panels, strict=True):
        for panel, intervals in zip(pair, (overall, gaps), strict=True):
            _set_axis(panel, name, places, layout.letters(0.75 / columns))
            for at, (line, kinds) in enumerate(lines.items()):
                colour, marker, _ = looks[line]
                style = {"color": colour, "marker": marker, "markersize": 4, "label": line.label}
                best, *others = _slices(kinds, places) or [{}]
                if best:
                    means, errors = scale_intervals((intervals[kind] for kind in best.values()), summary)
                    shift = _APART / 72 * (at - (len(lines) - 1) / 2)
                    beside = panel.transData + ScaledTranslation(shift, 0, figure.dpi_scale_trans)
                    panel.errorbar(list(best), means, yerr=errors, transform=beside, **style)
                    for ends in (means - errors[0], means + errors[1]):  # not seen to through the shift
                        panel.update_datalim(np.column_stack([list(best), ends]))
                elif np.isfinite(level := summary.scale * intervals[kinds[0]].value):
                    across = panel.get_yaxis_transform()
                    panel.plot([0.01, 0.99], [level, level], "--", transform=across, **style)
                for other in others:
                    means, _ = scale_intervals((intervals[kind] for kind in other.values()), summary)
                    panel.plot(list(other), means, color=colour, linewidth=0.8, alpha=0.5)
        pair[0].set_ylabel(wrapped(axis, 28))
        pair[1].set_ylabel(wrapped(f"largest gap, {unit(summary.metric)}", 28))
        pair[1].axhline(summary.scale * summary.setup.gap_tolerance, color=INK, linewidth=0.8, linestyle=":")
    kind_legend(figure, looks, layout)
    return figure


def _slices(kinds: Sequence[Kind], places: Mapping[str, float]) -> list[dict[float, Kind]]:
    """Place on the axis -> kind, for each combination of the other settings, the first kind's first."""
    slices: dict[frozenset[str], dict[float, Kind]] = {}
    for kind in kinds:
        for part in _parts(kind) & set(places):
            slices.setdefault(_parts(kind) - {part}, {})[places[part]] = kind
    return [dict(sorted(each.items())) for each in slices.values()]


def _set_axis(panel: Axes, name: str, places: Mapping[str, float], letters: int) -> None:
    if list(places.values()) != list(range(len(places))):
        panel.set_xscale("log")
    texts = [wrapped(part.removeprefix(f"{name}="), max(6, letters // len(places))) for part in places]
    panel.set_xticks(list(places.values()), texts)
    panel.minorticks_off()
    panel.margins(x=0.08)
    panel.set_xlabel(name.replace("_", " "))


def _places(summary: Summary, name: str) -> dict[str, float]:
    """Part of a kind's setting, such as "clipping_bound=2" -> its place on the axis, in order of places."""
    values: list[Any] = list({value_text(value): value for value in summary.setup.swept[name]}.values())
    if all(isinstance(value, Real) and not isinstance(value, bool) for value in values):
        values.sort()
        if values[0] > 0 and values[-1] > _LOG_FROM * values[0]:
            return {f"{name}={value_text(value)}": float(value) for value in values}
    return {f"{name}={value_text(value)}": place for place, value in enumerate(values)}


def _parts(kind: Kind) -> frozenset[str]:
    return frozenset(kind.setting.split(", ")) - {""}


def _lines(summary: Summary) -> dict[Kind, list[Kind]]:
    """Method, with epsilon if there are several -> its kinds, the best by the metric first."""
    best = {
        row.kind: np.nan_to_num(summary.metric.sign * row.accuracy, nan=-np.inf) for row in summary.overview
    }
    lines: dict[Kind, list[Kind]] = {}
    for kind in sorted(summary.kinds, key=best.__getitem__, reverse=True):
        epsilon = next((part for part in _parts(kind) if part.startswith("epsilon=")), "")
        lines.setdefault(Kind(kind.method, epsilon), []).append(kind)
    order = [kind.method for kind in summary.kinds]
    return dict(sorted(lines.items(), key=lambda line: (order.index(line[0].method), _epsilon(line[0]))))


def _epsilon(line: Kind) -> float:
    return float(line.setting.partition("=")[2] or 0)


def _looks(lines: Mapping[Kind, Sequence[Kind]]) -> dict[Kind, Look]:
    """Look of each line: the method's colour; several epsilons have a marker each."""
    methods = method_looks(line.method for line in lines)
    epsilons = [line.setting for line in sorted(lines, key=_epsilon) if line.setting]
    markers = dict(zip(dict.fromkeys(epsilons), itertools.cycle(SETTING_MARKERS), strict=False))
    return {
        line: methods[line.method]._replace(marker=markers.get(line.setting, methods[line.method].marker))
        for line in lines
    }
