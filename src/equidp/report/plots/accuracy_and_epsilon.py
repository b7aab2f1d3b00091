"""Accuracy of each group against the privacy of its examples (Yu et al. 2022, Figure 2)."""

from __future__ import annotations

import numpy as np

from equidp._extras import require_extra
from equidp.report.plots.style import INK, MOST_COLOURED, OTHER_GROUPS, Layout, group_looks, panels, short
from equidp.report.summary import Summary

with require_extra("tables"):
    import pandas as pd

with require_extra("report"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ERRORS = 2
"""Standard errors on each side of a released mean."""


def accuracy_and_epsilon(summary: Summary, axis: str, layout: Layout, *, column: str) -> Figure | None:
    """Draw test accuracy against the mean epsilon of training examples, a panel per private kind of run.

    A released mean is a line of twice its standard error on each side, within what can happen: 0 to the run's
    epsilon. It has a point only where some groups of its panel differ by more than their noise.

    Args:
        summary: of a comparison with individual privacy.
        axis: label of the accuracies.
        layout: width and font of the figure.
        column: of `Summary.individual`.
    """
    if not summary.individual or column not in next(iter(summary.individual.values())):
        return None
    largest = max(part["epsilon"].max() for part in summary.individual.values())
    looks = group_looks(
        summary.setup.data.group_names, summary.sizes(), summary.setup.data.highlighted_groups or ()
    )
    figure, axes = panels(list(summary.individual), layout, "mean epsilon; dotted: the run's", axis, looks)
    for panel, (kind, part) in zip(axes, summary.individual.items(), strict=True):
        part = part.loc[list(looks)]
        noise = ERRORS * part["standard_error"] * (not column.startswith("sensitive"))
        noisy = noise.any() and too_noisy(part[column], noise)
        heights = {name: 100 * summary.interval(kind, name, "accuracy").value for name in looks}
        for name, look in looks.items():
            value, spread = part.at[name, column], noise[name]
            low, high = np.clip([value - spread, value + spread], 0, part.at[name, "epsilon"])
            panel.hlines(heights[name], low, high, color=look.colour, linewidth=3 if noisy else 1.2)
            if not noisy:
                small = look == OTHER_GROUPS
                panel.plot(value, heights[name], look.marker, color=look.colour, markersize=4 if small else 6)
        if noisy:
            panel.text(0.03, 0.03, "too noisy to compare", transform=panel.transAxes)
        elif len(looks) > MOST_COLOURED:
            _name(panel, {name: (part.at[name, column], heights[name]) for name in looks}, largest, layout)
        panel.axvline(part["epsilon"].iloc[0], color=INK, linewidth=0.8, linestyle=":")
        panel.set_xlim(0, 1.06 * largest)
    return figure


def too_noisy(means: pd.Series, noise: pd.Series) -> bool:
    """True where no two released means differ by more than their joint noise."""
    gaps = np.abs(np.subtract.outer(means.to_numpy(), means.to_numpy()))
    return not (gaps > np.hypot.outer(noise.to_numpy(), noise.to_numpy())).any()


def _name(panel: Axes, places: dict[str, tuple[float, float]], largest: float, layout: Layout) -> None:
    """Write the names of groups beside their points, without names that would cover another name."""
    heights = [height for _, height in places.values()]
    line = 0.13 * max(np.ptp(heights), 1.0)  # of text, in the panel's units
    letter = 0.028 * largest * (3 / layout.columns) ** 0.5
    taken: list[tuple[float, float, float]] = []
    for name, (x, y) in places.items():
        text = short(name, 8)
        end = x + letter * len(text)
        if all(abs(y - other) > line or x > right or end < left for left, right, other in taken):
            panel.annotate(text, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=layout.font - 1)
            taken.append((x, end, y))
