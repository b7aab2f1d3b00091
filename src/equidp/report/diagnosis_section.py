"""The report's pages on where the disparity comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from equidp.report import words
from equidp.report.findings import averaged, findings
from equidp.report.plots import style as plots

if TYPE_CHECKING:
    from equidp.comparison.result import Comparison

_PLOTS = (
    (
        "direction",
        "Excess risk from gradients turned by clipping",
        "What a step adds to a group's loss because the clipped gradient points elsewhere. Above zero: the group loses.",
        "loss a step",
    ),
    (
        "magnitude",
        "Excess risk from gradients shortened by clipping",
        "What a step adds to a group's loss because the clipped gradient is shorter. A higher learning rate makes up for it.",
        "loss a step",
    ),
    (
        "noise",
        "Excess risk from noise",
        "What noise adds to a group's loss in a step, on average.",
        "loss a step",
    ),
    (
        "cosine_before",
        "How well a batch's gradient serves each group, before clipping",
        "Cosine of a batch's gradient with the group's own. At 1 a step is the best one for the group, below 0 it does harm.",
        "cosine",
    ),
    ("cosine_after", "How well it serves each group after clipping", "The same after clipping.", "cosine"),
    (
        "group_gradient_norm",
        "Length of each group's mean gradient",
        "What is still to be learnt of a group. Where it does not fall, the group is left behind.",
        "norm",
    ),
)
_RISKS = ("excess", "direction", "magnitude", "noise", "direction_alternative", "magnitude_alternative")
_FIGURES = (
    "group_gradient_norm",
    "mean_norm",
    "share_clipped",
    "cosine_before",
    "cosine_after",
    "error_bias",
    "error_variance",
    "best_bound",
)


def section(comparison: Comparison) -> dict[str, Any] | None:
    """What the template shows; None where nothing was diagnosed."""
    if comparison.sensitive_diagnosis is None:
        return None
    groups = comparison.sensitive_diagnosis.sensitive_groups
    pairs = comparison.sensitive_diagnosis.sensitive_pairs
    methods = []
    for key, part in groups.groupby(["method", "setting"], sort=False):
        of_pairs = pairs[(pairs["method"] == key[0]) & (pairs["setting"] == key[1])] if len(pairs) else pairs
        methods.append(
            {
                "name": words.label(*key),
                "finding": [*findings(part), *_cautions(part)],
                "risks": _risk_rows(part),
                "figures": _figure_rows(part),
                "best_bound_all": float(part["sensitive_best_bound_all"].mean()),
                "bounds": bound_sentences(of_pairs),
            }
        )
    return {"methods": methods, "plots": _drawn(comparison, groups)}


def _cautions(part: pd.DataFrame) -> list[str]:
    """Where second-order terms cannot be taken at their word: plain gradient descent would leave the region they describe."""
    too_long = part["learning_rate"] * part["sensitive_largest_eigenvalue"] > 2
    steps = int(too_long.groupby([part["seed"], part["step"]]).any().sum())
    if not steps:
        return []
    every = len(part[["seed", "step"]].drop_duplicates())
    return [
        f"Caution: in {steps} of {every} diagnosed steps the learning rate is above 2 / largest eigenvalue, so a step without "
        "privacy may raise the loss, and second-order terms are rough."
    ]


def sensitive_findings(comparison: Comparison) -> list[str]:
    """A line for each diagnosed method, after one that says whom it is for; nothing where nothing was diagnosed."""
    pages = section(comparison)
    if pages is None:
        return []
    lines = [f"{method['name']}: {' '.join(method['finding'])}" for method in pages["methods"]]
    return ["Where the disparity comes from (of raw training data; must not leave the house):", *lines]


def _risk_rows(part: pd.DataFrame) -> list[dict[str, Any]]:
    figures = {name: averaged(part, name) for name in _RISKS}
    return [
        {"group": group, "cells": [figures[name][group] for name in _RISKS]} for group in figures["excess"]
    ]


def _figure_rows(part: pd.DataFrame) -> list[dict[str, Any]]:
    means = part.groupby("group", sort=False)[[f"sensitive_{name}" for name in _FIGURES]].mean()
    return [{"group": group, "cells": row.to_list()} for group, row in means.iterrows()]


def bound_sentences(pairs: pd.DataFrame) -> list[str]:
    """How the papers' bounds fared against what was measured, over all pairs and diagnosed steps."""
    if pairs.empty:
        return []
    pairs = pairs.rename(columns=lambda name: name.removeprefix("sensitive_"))
    assumed = int((pairs["convex"] & pairs["step_small"]).sum())
    below = int((pairs["direction_bound"] <= pairs["direction_gap"]).sum())
    clear = pairs[pairs["direction_gap"] > 2 * pairs["direction_gap_se"]]
    foreseen = int((clear["direction_bound"] > 0).sum())
    return [
        "Esipova et al.'s lower bound on how much more one group loses by direction than another (Proposition 3) lay below the "
        f"measured difference in {below:,} of {len(pairs):,} cases (ordered pairs of groups at diagnosed steps). Its assumptions, "
        f"convex losses and a step no longer than 1 / largest eigenvalue, held as far as can be seen in {assumed:,}. "
        f"Of {len(clear):,} clear differences it foresaw {foreseen:,}; Tran et al.'s condition on norms alone held in "
        f"{int(pairs['norm_condition'].sum()):,} cases."
    ]


def _drawn(comparison: Comparison, groups: pd.DataFrame) -> list[dict[str, str]]:
    settings = comparison.settings
    names = list(dict.fromkeys(groups["group"]))
    sizes = dict(zip(settings["group_names"], settings["train_group_sizes"], strict=True))
    highlighted = settings["highlighted_groups"]
    narrowed = {
        **settings,
        "group_names": names,
        "train_group_sizes": [sizes[name] for name in names],
        "highlighted_groups": highlighted if highlighted and set(highlighted) <= set(names) else None,
    }
    # An epoch is a share of the data, whose size may differ between seeds.
    epochs = groups.assign(epoch=groups.groupby("step")["epoch"].transform("mean"))
    shown = replace(comparison, settings=narrowed, epochs=epochs)
    return [
        {
            "title": title,
            "text": f"{text} Means over batches and seeds, at the diagnosed steps.",
            "svg": plots.over_epochs(shown, f"sensitive_{column}", axis),
        }
        for column, title, text, axis in _PLOTS
    ]
