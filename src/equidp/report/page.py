"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from equidp._files import check_writable, write_whole
from equidp.data.dataset import ALL
from equidp.evaluation.groups import METRICS, summary
from equidp.report import diagnosis_section as diagnosis
from equidp.report import individual_section as individual
from equidp.report import words
from equidp.report.plots import style as plots
from equidp.report.render import filled

if TYPE_CHECKING:
    from equidp.comparison.result import Comparison


def write_report(
    comparison: Comparison, path: str | os.PathLike[str], *, include_sensitive: bool = False
) -> None:
    """Writes the report of a comparison, whole or not at all."""
    check_writable(path)
    write_whole(path, render(comparison, include_sensitive=include_sensitive).encode())


def render(comparison: Comparison, *, include_sensitive: bool = False) -> str:
    """The page as text."""
    settings = comparison.settings
    details = summary(comparison.costs(), settings["level"])
    return filled(
        "comparison.html",
        settings=settings,
        finding=words.finding(comparison),
        overview=words.overview(comparison).to_dict("records"),
        tests=words.test_sentences(comparison),
        plots=_plots(comparison),
        methods=[
            words.label(*key)
            for key in dict.fromkeys(zip(details["method"], details["setting"], strict=True))
        ],
        details=_details(comparison),
        individual=individual.section(comparison, include_sensitive=include_sensitive),
        diagnosis=diagnosis.section(comparison),
        guarantee=words.guarantee(comparison),
        not_covered=words.not_covered(comparison),
    )


def _plots(comparison: Comparison) -> list[dict[str, str]]:
    """Title, explanation and SVG of each plot that has something to show."""
    several = len({setting for setting in comparison.results["setting"] if setting}) > 1
    drawn = [
        {
            "title": "What privacy cost each group",
            "text": "Accuracy lost against the non-private run of the same seed. Bars: interval over seeds. "
            "In brackets: training examples. Points side by side mean an equal price.",
            "svg": plots.by_group(comparison, "privacy_cost", "points of accuracy lost to privacy"),
        },
        {
            "title": "Accuracy of each group",
            "text": "On the test set.",
            "svg": plots.by_group(comparison, "accuracy", "accuracy, %"),
        },
    ]
    if several:
        text = "More privacy is to the left. Dotted: the gap that counts as equal."
        drawn.append({"title": "Privacy against its price", "text": text, "svg": plots.trade_off(comparison)})
    for column, title, text, axis in (
        ("loss", "Loss by group over training", "On the test set, mean over seeds.", "loss"),
        (
            "mean_norm",
            "Gradient norms by group over training",
            "Mean norm over a sample of test examples. Longer gradients are clipped more.",
            "mean gradient norm",
        ),
        (
            "share_clipped",
            "Share of gradients clipped",
            "Share of test examples whose gradient the method shortens.",
            "share clipped",
        ),
        (
            "clipping_bound",
            "How much an example of each group may contribute",
            "The largest contribution per example that the method allows, from released values.",
            "bound",
        ),
    ):
        if comparison.epochs[column].replace([float("inf")], float("nan")).notna().any():
            svg = plots.over_epochs(comparison, column, axis)
            drawn.append({"title": title, "text": text, "svg": svg})
    return drawn


def _details(comparison: Comparison) -> list[dict[str, object]]:
    """Rows of the detail table: group, training examples, and per method mean and interval of each metric."""
    settings = comparison.settings
    rows = summary(comparison.costs(), settings["level"])
    sizes = [
        *zip(settings["group_names"], settings["train_group_sizes"], strict=True),
        (ALL, settings["num_train"]),
    ]
    return [
        {
            "group": name,
            "size": size,
            "cells": [
                {
                    metric: {end: row[f"{metric}_{end}"] for end in ("mean", "low", "high")}
                    for metric in METRICS
                }
                for row in rows[rows["group"] == name].to_dict("records")
            ],
        }
        for name, size in sizes
    ]
