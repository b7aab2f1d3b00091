"""Plots of an item's figures: bars by group, curves, and points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from equidp.data.dataset import ALL
from equidp.report.plots.style import (
    Layout,
    Look,
    legend,
    method_looks,
    short,
    titled_panels,
    wrapped,
)

GROUP_LOOKS = (
    *(Look("#C2185B"), Look("#6A4FC4", line="--"), Look("#E58AC8", line="-."), Look("#9A6FA0", line=":")),
    *(Look("#C2185B", line=":"), Look("#6A4FC4", line="-.")),
)
"""Looks of groups, pinks and purples, which no method has; the first group is the one to look at."""
OTHER_GROUPS = Look("#BBAFC4")
"""Look of all other groups."""
_LONGEST_BARS = 6
"""Up to this many groups are set apart by their names beneath the bars."""


class Plot(Protocol):
    """A plot of figures."""

    @property
    def title(self) -> str:
        """Title of the plot."""

    @property
    def quantities(self) -> tuple[str, ...]:
        """Names of the quantities that it shows."""

    def draw(self, table: pd.DataFrame, layout: Layout) -> Figure | None:
        """Draw the table of a `Found`; None where it has nothing to show."""


def _panel_names(table: pd.DataFrame, column: str) -> list[str]:
    return list(dict.fromkeys(table[column]))


def _titles(table: pd.DataFrame, column: str) -> list[str]:
    """Titles of panels; a single panel needs none."""
    names = _panel_names(table, column)
    return names if len(names) > 1 else [""]


@final
@dataclass(frozen=True)
class Bars:
    """A bar for each group and method, with two standard errors; a panel for each dataset.

    Attributes:
        title: what the plot shows.
        quantity: what the bars show.
        axis: its label.
        at: which point of a sweep; None: figures that belong to no point.
        sort: the groups by the mean of this quantity; "": as the data has them.
    """

    title: str
    quantity: str
    axis: str
    at: float | None = None
    sort: str = ""

    @property
    def quantities(self) -> tuple[str, ...]:
        return self.quantity, self.sort

    def draw(self, table: pd.DataFrame, layout: Layout) -> Figure | None:
        """Draw the table of a `Found`; None where it has nothing to show."""
        rows = table[(table["quantity"] == self.quantity) & (table["group"] != ALL)]
        rows = rows[rows["at"].isna() if self.at is None else rows["at"] == self.at]
        if rows.empty:
            return None
        looks = method_looks(rows["method"])
        figure, axes = titled_panels(_titles(rows, "data"), layout, "", self.axis, shared=False)
        for panel, (_, part) in zip(axes, rows.groupby("data", sort=False), strict=True):
            self._panel(panel, part, table, looks, layout)
        entries = {short(name): Patch(color=look.colour) for name, look in looks.items()}
        legend(figure, dict(entries), layout)
        return figure

    def _panel(
        self, panel: Axes, part: pd.DataFrame, table: pd.DataFrame, looks: dict[str, Look], layout: Layout
    ) -> None:
        groups = _panel_names(part, "group")
        if self.sort:
            order = table[(table["quantity"] == self.sort) & table["group"].isin(groups)]
            order = order[order["data"].isin(part["data"])].groupby("group")["mean"].mean()
            groups.sort(key=lambda group: order.get(group, np.inf))
        methods = [name for name in looks if name in set(part["method"])]
        width = 0.84 / len(methods)
        for place, method in enumerate(methods):
            own = part[part["method"] == method].set_index("group").reindex(groups)
            left = np.arange(len(groups)) - 0.42 + width * (place + 0.5)
            panel.bar(left, own["mean"], width, color=looks[method].colour)
            panel.errorbar(
                left, own["mean"], 2 * own["error"].fillna(0), fmt="none", ecolor="#555555", elinewidth=0.7
            )
        letters = max(4, layout.letters(0.8) // max(1, len(groups)))
        panel.set_xticks(range(len(groups)), [wrapped(name, letters) for name in groups])
        if len(groups) > _LONGEST_BARS and max(map(len, groups)) > letters:
            panel.tick_params(axis="x", labelrotation=90)
        panel.grid(visible=False, axis="x")
        panel.axhline(0, color="#888888", linewidth=0.8)


@final
@dataclass(frozen=True)
class Curves:
    """A quantity over `at`: a panel for each method with a line for each group, or the other way round.

    Attributes:
        title: what the plot shows.
        quantity: what the lines show.
        axis: its label.
        x: label of `at`.
        groups: to show; none: all.
        by: what a panel is of, "method" or "group".
        data: whose figures; "": those of all.
        logarithmic: whether the axis of the quantity is.
        methods: to show; none: all.
    """

    title: str
    quantity: str
    axis: str
    x: str = "epoch"
    groups: tuple[str, ...] = ()
    by: str = "method"
    data: str = ""
    logarithmic: bool = False
    methods: tuple[str, ...] = ()

    @property
    def quantities(self) -> tuple[str, ...]:
        return (self.quantity,)

    def draw(self, table: pd.DataFrame, layout: Layout) -> Figure | None:
        """Draw the table of a `Found`; None where it has nothing to show."""
        rows = table[(table["quantity"] == self.quantity) & table["at"].notna()]
        if self.data:
            rows = rows[rows["data"] == self.data]
        if self.groups:
            rows = rows[rows["group"].isin(self.groups)]
        if self.methods:
            rows = rows[rows["method"].isin(self.methods)]
        if rows.empty:
            return None
        line = "group" if self.by == "method" else "method"
        looks = self._group_looks(rows) if line == "group" else method_looks(rows["method"])
        figure, axes = titled_panels(_titles(rows, self.by), layout, self.x, self.axis)
        for panel, (_, part) in zip(axes, rows.groupby(self.by, sort=False), strict=True):
            for name in sorted(looks, key=lambda name: looks[name] != OTHER_GROUPS):
                own = part[part[line] == name].sort_values("at")
                look = looks[name]
                panel.plot(
                    own["at"], own["mean"], color=look.colour, linestyle=look.line,
                    linewidth=0.9 if look == OTHER_GROUPS else 1.7,
                    marker=look.marker if len(own) <= 12 else "", markersize=3.5,
                )  # fmt: skip
                if own["error"].notna().any():
                    panel.fill_between(
                        own["at"], own["mean"] - 2 * own["error"], own["mean"] + 2 * own["error"],
                        color=look.colour, alpha=0.15, linewidth=0,
                    )  # fmt: skip
            if self.logarithmic:
                panel.set_yscale("log")
        entries = {
            short(f"group {name}" if line == "group" and name != ALL else name): Line2D(
                [], [], color=look.colour, linestyle=look.line, linewidth=2
            )
            for name, look in looks.items()
            if look != OTHER_GROUPS
        }
        if OTHER_GROUPS in looks.values():
            entries["other groups"] = Line2D([], [], color=OTHER_GROUPS.colour)
        if len(entries) > 1:
            legend(figure, dict(entries), layout)
        return figure

    def _group_looks(self, rows: pd.DataFrame) -> dict[str, Look]:
        names = _panel_names(rows, "group")
        if len(names) <= len(GROUP_LOOKS):
            return dict(zip(names, GROUP_LOOKS, strict=False))
        return dict.fromkeys(names, OTHER_GROUPS) | dict(zip(("8", "2"), GROUP_LOOKS, strict=False))


@final
@dataclass(frozen=True)
class Points:
    """One quantity against another, a point for each `at`; a panel for each dataset or method.

    Attributes:
        title: what the plot shows.
        x, y: the quantities.
        x_axis, y_axis: their labels.
        by: what a panel is of: "data" or "method".
        logarithmic: whether the axis of x is.
        diagonal: whether to draw the line where both are equal.
    """

    title: str
    x: str
    y: str
    x_axis: str
    y_axis: str
    by: str = "data"
    logarithmic: bool = False
    diagonal: bool = False

    @property
    def quantities(self) -> tuple[str, ...]:
        return self.x, self.y

    def draw(self, table: pd.DataFrame, layout: Layout) -> Figure | None:
        """Draw the table of a `Found`; None where it has nothing to show."""
        key = ["data", "method", "group", "at"]
        pairs = (
            table[table["quantity"].isin((self.x, self.y))]
            .pivot_table("mean", key, "quantity", dropna=False, sort=False)
            .dropna()
            .reset_index()
        )
        if pairs.empty or self.x not in pairs or self.y not in pairs:
            return None
        figure, axes = titled_panels(_titles(pairs, self.by), layout, self.x_axis, self.y_axis, shared=False)
        for panel, (_, part) in zip(axes, pairs.groupby(self.by, sort=False), strict=True):
            panel.scatter(part[self.x], part[self.y], s=7, color="#0072B2", alpha=0.45, linewidths=0)
            if self.diagonal:
                ends = [part[[self.x, self.y]].min().min(), part[[self.x, self.y]].max().max()]
                panel.plot(ends, ends, color="#888888", linewidth=0.8)
            if self.logarithmic:
                panel.set_xscale("log")
        return figure
