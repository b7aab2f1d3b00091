"""The plots of a comparison: one plot a file, and one line in a table below."""

from __future__ import annotations

from functools import partial

from equidp.report.plots.accuracy_and_epsilon import accuracy_and_epsilon
from equidp.report.plots.by_group import by_group
from equidp.report.plots.choice import choice
from equidp.report.plots.over_epochs import over_diagnosed_steps, over_epochs
from equidp.report.plots.style import Plot
from equidp.report.plots.trade_off import trade_off

PLOTS = {
    "costs": Plot(
        "What privacy cost each group",
        "What is lost against the non-private run of the same seed. Bars: interval over seeds. In brackets: "
        "training examples. Points side by side mean an equal cost.",
        "privacy cost, {unit}",
        partial(by_group, metric="privacy_cost"),
    ),
    "accuracy": Plot("{label} by group", "On the test set.", "{metric}", partial(by_group, metric="")),
    "choice": Plot(
        "{label} against the largest gap",
        "Small: runs. Large: means over seeds; up and to the left is better. Line: what no other mean beats "
        "in both. Ring: recommended. Dotted: the gap that counts as equal.",
        "{metric}",
        choice,
    ),
    "trade_off": Plot(
        "Privacy against its cost",
        "More privacy is to the left. Dotted: the gap that counts as equal.",
        "privacy cost, {unit}",
        trade_off,
    ),
    "loss": Plot(
        "Loss by group over training",
        "On the test set, mean over seeds.",
        "loss",
        partial(over_epochs, column="loss"),
    ),
    "norms": Plot(
        "Gradient norms by group over training",
        "Mean norm over a sample of test examples. Longer gradients are clipped more.",
        "mean gradient norm",
        partial(over_epochs, column="mean_norm"),
    ),
    "clipped": Plot(
        "Share of gradients clipped",
        "Share of test examples whose gradient the method shortens.",
        "share clipped",
        partial(over_epochs, column="share_clipped"),
    ),
    "bounds": Plot(
        "How much an example of each group may contribute",
        "The largest contribution per example that the method allows, from released values.",
        "bound",
        partial(over_epochs, column="clipping_bound"),
    ),
}
"""Plots of every report."""

DIAGNOSIS_PLOTS = {
    "sensitive_direction": Plot(
        "Excess risk from gradients turned by clipping",
        "What a step adds to a group's loss because the clipped gradient points in another direction. Above "
        "zero, the group loses.",
        "loss a step",
        partial(over_diagnosed_steps, column="direction"),
    ),
    "sensitive_magnitude": Plot(
        "Excess risk from gradients shortened by clipping",
        "What a step adds to a group's loss because the clipped gradient is shorter. A higher learning rate "
        "makes up for it.",
        "loss a step",
        partial(over_diagnosed_steps, column="magnitude"),
    ),
    "sensitive_noise": Plot(
        "Excess risk from noise",
        "What noise adds to a group's loss in a step, on average.",
        "loss a step",
        partial(over_diagnosed_steps, column="noise"),
    ),
    "sensitive_cosine_before": Plot(
        "How well a batch's gradient serves each group, before clipping",
        "Cosine of a batch's gradient with the group's own. At 1 a step is the best one for the group; below "
        "0 it does harm.",
        "cosine",
        partial(over_diagnosed_steps, column="cosine_before"),
    ),
    "sensitive_cosine_after": Plot(
        "How well it serves each group after clipping",
        "The same after clipping.",
        "cosine",
        partial(over_diagnosed_steps, column="cosine_after"),
    ),
    "sensitive_gradient": Plot(
        "Length of each group's mean gradient",
        "What is still to be learnt about a group. Where it does not fall, the group is left behind.",
        "norm",
        partial(over_diagnosed_steps, column="group_gradient_norm"),
    ),
}
"""Plots of a diagnosis: means over batches and seeds, at the diagnosed steps. Sensitive."""

INDIVIDUAL_PLOTS = {
    "released": Plot(
        "Mean epsilon of a group's examples, released with noise",
        "Small print: standard error of the noise. In the plot, up is more accurate, left is more private, "
        "and lines are two standard errors to each side.",
        "accuracy, %",
        partial(accuracy_and_epsilon, column="released_mean"),
    ),
    "sensitive_epsilon": Plot(
        "Mean epsilon of a group's examples, true values",
        "Small print: median, and the value that 95% of the group are below.",
        "accuracy, %",
        partial(accuracy_and_epsilon, column="sensitive_mean"),
    ),
}
"""Plots of individual privacy: of released values, and of raw training data."""

ALL_PLOTS = {**PLOTS, **INDIVIDUAL_PLOTS, **DIAGNOSIS_PLOTS}
"""By the name that `equidp.plot` takes."""
