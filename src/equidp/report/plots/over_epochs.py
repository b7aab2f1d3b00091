"""Plots of a column of the epochs' records by group, over training."""

from __future__ import annotations

import numpy as np

from equidp._extras import require_extra
from equidp.report.plots.style import OTHER_GROUPS, Layout, group_looks, panels
from equidp.report.summary import Summary, by_kind

with require_extra("tables"):
    import pandas as pd

with require_extra("report"):
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

_WIDE_RANGE = 30
"""Values that differ by a larger factor are shown on a logarithmic scale."""


def over_epochs(summary: Summary, axis: str, layout: Layout, *, column: str) -> Figure | None:
    """Draw a column of `Comparison.epochs`, a panel per kind of run; None if it is empty."""
    return _figure(summary, summary.comparison.epochs, axis, layout, column)


def over_diagnosed_steps(summary: Summary, axis: str, layout: Layout, *, column: str) -> Figure | None:
    """Draw a column of the diagnosis in the same way; it may cover some groups only."""
    diagnosis = summary.comparison.sensitive_diagnosis
    if diagnosis is None:
        return None
    groups = diagnosis.sensitive_groups
    # The fraction of an epoch at a step depends on the size of the data, which may differ between seeds.
    epochs = groups.assign(epoch=groups.groupby("step")["epoch"].transform("mean"))
    return _figure(summary, epochs, axis, layout, f"sensitive_{column}")


def _figure(summary: Summary, epochs: pd.DataFrame, axis: str, layout: Layout, column: str) -> Figure | None:
    epochs = epochs[np.isfinite(epochs[column])]
    if epochs.empty:
        return None
    values = epochs[column]
    logarithmic = values.min() > 0 and values.max() > _WIDE_RANGE * values.min()
    parts = by_kind(epochs)
    names = [name for name in summary.setup.data.group_names if name in set(epochs["group"])]
    looks = group_looks(names, summary.sizes(), summary.setup.data.highlighted_groups or ())
    figure, axes = panels(list(parts), layout, "epoch", axis, looks)
    for panel, part in zip(axes, parts.values(), strict=True):
        for name in sorted(looks, key=lambda name: looks[name] != OTHER_GROUPS):
            look = looks[name]
            means = part[part["group"] == name].groupby("epoch")[column].mean()
            width = 0.9 if look == OTHER_GROUPS else 1.8
            panel.plot(means, color=look.colour, linestyle=look.line, linewidth=width, label=name)
        if (epochs["epoch"] % 1 == 0).all():
            panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        if logarithmic:
            panel.set_yscale("log")
    return figure
