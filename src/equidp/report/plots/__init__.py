"""The plots of the report: one plot a file, and one line in a table below."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from matplotlib.figure import Figure

from equidp.report.plots.accuracy_and_epsilon import accuracy_and_epsilon
from equidp.report.plots.by_group import by_group
from equidp.report.plots.over_epochs import over_diagnosed_steps, over_epochs
from equidp.report.plots.style import svg
from equidp.report.plots.trade_off import trade_off
from equidp.report.summary import Summary


class Plot(NamedTuple):
    """A plot of the report.

    Attributes:
        title: its heading.
        caption: what it shows, in a sentence or two.
        axis: label of the axis with the figures.
        draw: the summary and the label of the axis -> a figure; None if there is nothing to show.
    """

    title: str
    caption: str
    axis: str
    draw: Callable[[Summary, str], Figure | None]

    def svg(self, summary: Summary) -> str:
        """An SVG element; "" if there is nothing to show."""
        return svg(partial(self.draw, summary, self.axis))


def drawn(plots: tuple[Plot, ...], summary: Summary) -> list[tuple[Plot, str]]:
    """The plots that have something to show, each with its SVG element."""
    return [(plot, text) for plot in plots if (text := plot.svg(summary))]


PLOTS = (
    Plot(
        "What privacy cost each group",
        "Accuracy lost against the non-private run of the same seed. Bars: interval over seeds. In brackets: "
        "training examples. Points side by side mean an equal price.",
        "points of accuracy lost to privacy",
        partial(by_group, metric="privacy_cost"),
    ),
    Plot("Accuracy of each group", "On the test set.", "accuracy, %", partial(by_group, metric="accuracy")),
    Plot(
        "Privacy against its price",
        "More privacy is to the left. Dotted: the gap that counts as equal.",
        "points of accuracy",
        trade_off,
    ),
    Plot(
        "Loss by group over training",
        "On the test set, mean over seeds.",
        "loss",
        partial(over_epochs, column="loss"),
    ),
    Plot(
        "Gradient norms by group over training",
        "Mean norm over a sample of test examples. Longer gradients are clipped more.",
        "mean gradient norm",
        partial(over_epochs, column="mean_norm"),
    ),
    Plot(
        "Share of gradients clipped",
        "Share of test examples whose gradient the method shortens.",
        "share clipped",
        partial(over_epochs, column="share_clipped"),
    ),
    Plot(
        "How much an example of each group may contribute",
        "The largest contribution per example that the method allows, from released values.",
        "bound",
        partial(over_epochs, column="clipping_bound"),
    ),
)
"""Of every report."""

DIAGNOSIS_PLOTS = (
    Plot(
        "Excess risk from gradients turned by clipping",
        "What a step adds to a group's loss because the clipped gradient points in another direction. Above "
        "zero, the group loses.",
        "loss a step",
        partial(over_diagnosed_steps, column="direction"),
    ),
    Plot(
        "Excess risk from gradients shortened by clipping",
        "What a step adds to a group's loss because the clipped gradient is shorter. A higher learning rate "
        "makes up for it.",
        "loss a step",
        partial(over_diagnosed_steps, column="magnitude"),
    ),
    Plot(
        "Excess risk from noise",
        "What noise adds to a group's loss in a step, on average.",
        "loss a step",
        partial(over_diagnosed_steps, column="noise"),
    ),
    Plot(
        "How well a batch's gradient serves each group, before clipping",
        "Cosine of a batch's gradient with the group's own. At 1 a step is the best one for the group; below "
        "0 it does harm.",
        "cosine",
        partial(over_diagnosed_steps, column="cosine_before"),
    ),
    Plot(
        "How well it serves each group after clipping",
        "The same after clipping.",
        "cosine",
        partial(over_diagnosed_steps, column="cosine_after"),
    ),
    Plot(
        "Length of each group's mean gradient",
        "What is still to be learnt about a group. Where it does not fall, the group is left behind.",
        "norm",
        partial(over_diagnosed_steps, column="group_gradient_norm"),
    ),
)
"""Of a diagnosis: means over batches and seeds, at the diagnosed steps. Sensitive."""

RELEASED_PLOT = Plot(
    "Mean epsilon of a group's examples, released with noise",
    "Small print: standard error of the noise. In the plot, up is more accurate and left is more private.",
    "accuracy, %",
    partial(accuracy_and_epsilon, column="released_mean"),
)
"""Of individual privacy."""

SENSITIVE_PLOT = Plot(
    "Mean epsilon of a group's examples, true values",
    "Small print: median, and the value that 95% of the group are below.",
    "accuracy, %",
    partial(accuracy_and_epsilon, column="sensitive_mean"),
)
"""Of individual privacy, from raw training data."""
