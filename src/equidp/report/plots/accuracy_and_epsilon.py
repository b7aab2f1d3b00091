"""Accuracy of each group against the privacy of its examples (Yu et al. 2022, Figure 2)."""

from __future__ import annotations

from matplotlib.figure import Figure

from equidp.report.plots.style import GREY, INK, MOST_COLOURED, group_colours, panels, short
from equidp.report.summary import Summary


def accuracy_and_epsilon(summary: Summary, axis: str, *, column: str) -> Figure:
    """Test accuracy against the mean epsilon of training examples, a panel per private kind of run.

    Args:
        summary: of a comparison with individual privacy.
        axis: label of the accuracies.
        column: of `Summary.individual`; a released epsilon is shown with twice its standard error.
    """
    largest = max(part["epsilon"].max() for part in summary.individual.values())
    colours = group_colours(summary.setup.data, summary.setup.data.group_names)
    figure, axes = panels(list(summary.individual), 2.5, "mean epsilon; dotted: the run's", axis, colours)
    for panel, (kind, part) in zip(axes, summary.individual.items(), strict=True):
        for name, colour in colours.items():
            spread = 0.0 if column.startswith("sensitive") else 2 * part.at[name, "standard_error"]
            place = part.at[name, column], 100 * summary.interval(kind, name, "accuracy").mean
            panel.errorbar(
                *place, xerr=spread, fmt="o", color=colour, markersize=4 if colour == GREY else 6, linewidth=1
            )
            if len(colours) > MOST_COLOURED:
                panel.annotate(short(name[:8]), place, xytext=(4, 3), textcoords="offset points", fontsize=7)
        panel.axvline(part["epsilon"].iloc[0], color=INK, linewidth=0.8, linestyle=":")
        panel.set_xlim(0, 1.06 * largest)
    return figure
