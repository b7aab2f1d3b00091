"""The report's page on what privacy each group's examples got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from equidp.report.plots import style as plots
from equidp.report.words import label, number, upper

if TYPE_CHECKING:
    from equidp.comparison.result import Comparison


def section(comparison: Comparison, *, include_sensitive: bool) -> dict[str, Any] | None:
    """What the template shows: sentences, and one table and plot of released figures, and of true ones where asked for."""
    if comparison.individual.empty:
        return None
    means = individual_means(comparison)
    tables = [
        _table(
            comparison,
            means,
            "released_mean",
            title="Mean epsilon of a group's examples, released with noise",
            text="Small print: standard error of the noise. In the picture, up is more accurate and left is more private.",
        )
    ]
    if (means["group_epsilon"] < means["epsilon"] * (1 - 1e-9)).any():
        tables.append(
            _table(
                comparison,
                means,
                "group_epsilon",
                title="The most that a member of a group can have",
                text="Where a method has a bound for each group, it holds members to an epsilon below the run's. This follows from "
                "released values and costs nothing. Small print: the bound's share of the largest times the run's epsilon, as "
                "papers read it; no guarantee.",
            )
        )
    if include_sensitive:
        tables.append(
            _table(
                comparison,
                means,
                "sensitive_mean",
                title="Mean epsilon of a group's examples, as it is",
                text="Small print: median, and what 95% of the group are below.",
            )
        )
    return {
        "sentences": _sentences(comparison, means),
        "methods": [label(*key) for key in _runs(means)],
        "tables": tables,
    }


def individual_means(comparison: Comparison) -> pd.DataFrame:
    """Means over seeds, one row per method, setting and group."""
    rows = comparison.individual
    keys = ["method", "setting", "group"]
    means = rows.drop(columns=["seed", "target_epsilon"]).groupby(keys, sort=False).mean().reset_index()
    seeds = rows.groupby(keys, sort=False)["seed"].nunique().to_numpy()
    return means.assign(standard_error=means["standard_error"] / seeds**0.5)


def _runs(means: pd.DataFrame) -> list[tuple[str, str]]:
    return list(dict.fromkeys(zip(means["method"], means["setting"], strict=True)))


def _sentences(comparison: Comparison, means: pd.DataFrame) -> list[str]:
    first = means.iloc[0]
    spent = ", ".join(
        f"{label(*key)} {upper(part['epsilon'].iloc[0])} (with the release {upper(part['epsilon_with_release'].iloc[0])})"
        for key, part in means.groupby(["method", "setting"], sort=False)
    )
    return [
        "A run's epsilon holds for every example. Most gave less than they could have: their gradient was short, or their "
        "group's bound low. Their own epsilon, for the way that this training went, is lower.",
        f"The released figures cost epsilon {number(first['release_epsilon'])} for each run, at the run's delta. "
        f"Epsilon of each run: {spent}.",
        "Norms of all examples were taken once an epoch and held in between, so these figures are estimates. Noise comes "
        "from seeds in a comparison: publish figures of the model that you release alone.",
    ]


def _table(
    comparison: Comparison, means: pd.DataFrame, column: str, *, title: str, text: str
) -> dict[str, Any]:
    settings = comparison.settings
    sensitive = column.startswith("sensitive")
    cells = {(row["method"], row["setting"], row["group"]): row for row in means.to_dict("records")}

    return {
        "title": title,
        "text": text,
        "sensitive": sensitive,
        "rows": [
            {
                "group": name,
                "size": size,
                "cells": [_cell(cells[(*key, name)], column) for key in _runs(means)],
            }
            for name, size in zip(settings["group_names"], settings["train_group_sizes"], strict=True)
        ],
        "svg": "" if column == "group_epsilon" else plots.accuracy_and_epsilon(comparison, means, column),
    }


def _cell(row: dict[str, Any], column: str) -> dict[str, Any]:
    small = {
        "released_mean": f"± {number(row['standard_error'])}",
        "group_epsilon": number(row["linear_group_epsilon"]),
        "sensitive_mean": f"{number(row['sensitive_median'])}, {number(row['sensitive_q95'])}",
    }
    return {"value": row[column], "small": small[column]}
