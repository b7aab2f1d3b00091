"""Plots as inline SVG: no plotting state, no fonts of their own, colours that colour-blind readers tell apart."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equidp.data.dataset import ALL
from equidp.evaluation.groups import equal_cost, summary
from equidp.report.words import label, number

if TYPE_CHECKING:
    from equidp.comparison.result import Comparison

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C6BB1",
    "#7F7F7F",
    "#B2912F",
    "#4D4D4D",
)
_GREY = "#9AA0A6"
_INK = "#010203"
"""Stands for the page's own text colour, which differs between light and dark."""
_MOST_COLOURED = 4
_WIDE_RANGE = 30
"""Values that differ by a larger factor are shown on a logarithmic scale."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "equidp",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": _GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
}


def _plot(draw: Callable[..., Figure]) -> Callable[..., str]:
    """Runs `draw` in the house style and gives its figure as an SVG element."""

    def svg(*arguments: object) -> str:
        with mpl.rc_context(_STYLE):
            file = io.StringIO()
            draw(*arguments).savefig(
                file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None}
            )
        text = file.getvalue()
        text = text[text.index("<svg") :].replace(_INK, "currentColor")
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        return re.sub(
            r"<svg([^>]*?) width=\"[^\"]*\"",
            r"<svg\1",
            re.sub(r"<svg([^>]*?) height=\"[^\"]*\"", r"<svg\1", text, count=1),
            count=1,
        )

    svg.__doc__ = draw.__doc__
    return svg


@_plot
def by_group(comparison: Comparison, metric: str, axis: str) -> Figure:
    """A metric's mean and interval over seeds, groups down, one colour per method; in percentage points."""
    rows = summary(comparison.costs(), comparison.settings["level"])
    if metric == "privacy_cost":
        rows = rows[rows["method"] != comparison.settings["baseline"]]
    keys = list(dict.fromkeys(zip(rows["method"], rows["setting"], strict=True)))
    names = [*comparison.settings["group_names"], ALL]
    figure = Figure(figsize=(8.2, 0.9 + len(names) * max(0.34, 0.11 * len(keys))))
    axes = figure.subplots()
    for at, key in enumerate(keys):
        part = rows[(rows["method"] == key[0]) & (rows["setting"] == key[1])].set_index("group").loc[names]
        heights = np.arange(len(names)) + 0.7 * ((at + 0.5) / len(keys) - 0.5)
        means = 100 * part[f"{metric}_mean"].to_numpy()
        ends = 100 * np.abs(
            part[[f"{metric}_low", f"{metric}_high"]].to_numpy().T - part[f"{metric}_mean"].to_numpy()
        )
        axes.errorbar(
            means,
            heights,
            xerr=np.nan_to_num(ends),
            fmt="o",
            markersize=5,
            linewidth=1.2,
            color=_method_colour(comparison, *key),
            label=label(*key),
        )
    for edge in np.arange(len(names) - 1) + 0.5:
        axes.axhline(edge, color=_GREY, linewidth=0.6, alpha=0.5 if edge < len(names) - 1.6 else 1.0)
    axes.grid(axis="y", visible=False)
    axes.set_yticks(range(len(names)), _sized_names(comparison))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(axis)
    if metric == "privacy_cost":
        axes.axvline(0, color=_INK, linewidth=0.8)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=min(5, len(keys)), borderaxespad=0.2, handletextpad=0.2
    )
    return figure


@_plot
def over_epochs(comparison: Comparison, column: str, axis: str) -> Figure:
    """A column of the epochs' record by group, a panel per method, the same scale in all; means over seeds."""
    epochs = comparison.epochs[np.isfinite(comparison.epochs[column])]
    values = epochs[column]
    logarithmic = values.min() > 0 and values.max() > _WIDE_RANGE * values.min()
    keys = list(dict.fromkeys(zip(epochs["method"], epochs["setting"], strict=True)))
    columns = min(3, len(keys))
    lines = -(-len(keys) // columns)
    figure = Figure(figsize=(2.9 * columns + 0.4, 2.3 * lines + 0.3))
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    colours = _group_colours(comparison)
    for panel, key in zip(grid.flat, keys, strict=False):
        part = epochs[(epochs["method"] == key[0]) & (epochs["setting"] == key[1])]
        means = part.groupby(["group", "epoch"])[column].mean()
        for name in sorted(colours, key=lambda name: colours[name] != _GREY):
            plain = colours[name] == _GREY
            panel.plot(
                means.loc[name],
                color=colours[name],
                linewidth=0.9 if plain else 1.8,
                alpha=0.7 if plain else 1.0,
            )
        panel.set_title(label(*key))
        if logarithmic:
            panel.set_yscale("log")
    for panel in grid.flat[len(keys) :]:
        panel.remove()
    for panel in grid[-1]:
        panel.set_xlabel("epoch")
    for panel in grid[:, 0]:
        panel.set_ylabel(axis)
    _group_legend(figure, colours)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.28 / figure.get_figheight()))
    return figure


@_plot
def trade_off(comparison: Comparison) -> Figure:
    """Cost of all, and the largest gap between groups, against epsilon; one colour per method."""
    settings = comparison.settings
    costs = comparison.costs()
    overall = summary(costs, settings["level"])
    overall = overall[overall["group"] == ALL].set_index(["method", "setting"])
    gaps = equal_cost(costs, settings["tau"], settings["level"]).set_index(["method", "setting"])
    figure = Figure(figsize=(8.2, 3.1))
    panels = figure.subplots(1, 2, sharex=True)
    methods = [method for method in settings["methods"] if method != settings["baseline"]]
    for method in methods:
        part = overall.loc[method].sort_values("epsilon")
        colour = _method_colour(comparison, method, "")
        style = {"fmt": "o-", "markersize": 4, "color": colour, "label": method}
        _line(
            panels[0],
            part["epsilon"],
            part,
            "privacy_cost_mean",
            "privacy_cost_low",
            "privacy_cost_high",
            style,
        )
        _line(
            panels[1],
            part["epsilon"],
            gaps.loc[method].loc[part.index],
            "gap_mean",
            "gap_low",
            "gap_high",
            style,
        )
    panels[0].set_title("cost over all test examples")
    panels[1].set_title("largest gap between groups")
    panels[1].axhline(100 * settings["tau"], color=_INK, linewidth=0.8, linestyle=":")
    for panel in panels:
        panel.set_xscale("log")
        ticks = sorted({number(value) for value in overall["epsilon"] if np.isfinite(value)}, key=float)
        panel.set_xticks([float(tick) for tick in ticks], ticks)
        panel.minorticks_off()
        panel.set_xlabel("epsilon")
    panels[0].set_ylabel("points of accuracy")
    figure.tight_layout(rect=(0, 0, 1, 0.91))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="upper left", ncols=6)
    return figure


@_plot
def accuracy_and_epsilon(comparison: Comparison, means: pd.DataFrame, column: str) -> Figure:
    """Test accuracy of each group against the mean epsilon of its training examples, a panel per method (Yu et al., Figure 2).

    Args:
        comparison: whose accuracies are shown.
        means: one row per method, setting and group, with `column` and standard_error.
        column: which epsilon; a released one is shown with twice its standard error.
    """
    keys = list(dict.fromkeys(zip(means["method"], means["setting"], strict=True)))
    accuracies = comparison.results.groupby(["method", "setting", "group"])["accuracy"].mean()
    columns = min(3, len(keys))
    lines = -(-len(keys) // columns)
    figure = Figure(figsize=(2.9 * columns + 0.4, 2.5 * lines + 0.3))
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    colours = _group_colours(comparison)
    for panel, key in zip(grid.flat, keys, strict=False):
        part = means[(means["method"] == key[0]) & (means["setting"] == key[1])].set_index("group")
        for name, colour in colours.items():
            spread = 0.0 if column.startswith("sensitive") else 2 * part.loc[name, "standard_error"]
            place = part.loc[name, column], 100 * accuracies[(*key, name)]
            panel.errorbar(
                *place,
                xerr=spread,
                fmt="o",
                color=colour,
                markersize=4 if colour == _GREY else 6,
                linewidth=1,
            )
            if len(colours) > _MOST_COLOURED:
                panel.annotate(_short(name)[:8], place, xytext=(4, 3), textcoords="offset points", fontsize=7)
        panel.axvline(part["epsilon"].iloc[0], color=_INK, linewidth=0.8, linestyle=":")
        panel.set_xlim(0, 1.06 * means["epsilon"].max())
        panel.set_title(label(*key))
    for panel in grid.flat[len(keys) :]:
        panel.remove()
    for panel in grid[-1]:
        panel.set_xlabel("mean epsilon; dotted: the run's")
    for panel in grid[:, 0]:
        panel.set_ylabel("accuracy, %")
    _group_legend(figure, colours)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.28 / figure.get_figheight()))
    return figure


def _line(
    axes: Axes, x: pd.Series, part: pd.DataFrame, mean: str, low: str, high: str, style: dict[str, object]
) -> None:
    ends = np.abs(part[[low, high]].to_numpy().T - part[mean].to_numpy())
    axes.errorbar(x.to_numpy(), 100 * part[mean].to_numpy(), yerr=100 * np.nan_to_num(ends), **style)  # type: ignore[arg-type]


def _method_colour(comparison: Comparison, method: str, setting: str) -> str:
    """A method keeps its colour in every plot; at several epsilons, each of its runs does."""
    settings = comparison.settings
    if method == settings["baseline"]:
        return _GREY
    runs = comparison.results[comparison.results["method"] != settings["baseline"]]
    keys = list(
        dict.fromkeys(zip(runs["method"], runs["setting"] if setting else [""] * len(runs), strict=True))
    )
    return COLOURS[keys.index((method, setting)) % len(COLOURS)]


def _group_colours(comparison: Comparison) -> dict[str, str]:
    """All groups in colour where they are few; otherwise the smallest and the highlighted ones, the rest grey."""
    settings = comparison.settings
    names = settings["group_names"]
    if len(names) <= _MOST_COLOURED:
        return dict(zip(names, (COLOURS[1], COLOURS[0], *COLOURS[2:]), strict=False))
    smallest = names[int(np.argmin(settings["train_group_sizes"]))]
    chosen = list(dict.fromkeys([smallest, *(settings["highlighted_groups"] or ())]))
    return {
        name: (COLOURS[1], COLOURS[0], *COLOURS[2:])[chosen.index(name)] if name in chosen else _GREY
        for name in names
    }


def _group_legend(figure: Figure, colours: dict[str, str]) -> None:
    coloured = {name: colour for name, colour in colours.items() if colour != _GREY}
    handles = [mpl.lines.Line2D([], [], color=colour, linewidth=2) for colour in coloured.values()]
    names = [f"group {name}" for name in coloured]
    if len(coloured) < len(colours):
        handles.append(mpl.lines.Line2D([], [], color=_GREY))
        names.append("other groups")
    figure.legend(handles, names, loc="upper left", ncols=5)


def _sized_names(comparison: Comparison) -> list[str]:
    settings = comparison.settings
    sizes = zip(settings["group_names"], settings["train_group_sizes"], strict=True)
    return [*(f"{_short(name)}  ({size:,})" for name, size in sizes), f"all  ({settings['num_train']:,})"]


def _short(name: str) -> str:
    # A dollar sign would start a formula.
    name = name if len(name) <= 36 else name[:35] + "…"
    return name.replace("$", r"\$")
