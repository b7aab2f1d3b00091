"""Tables of a comparison for papers: means with intervals over seeds, as texts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from equidp._validate import unknown_name
from equidp.data.dataset import ALL
from equidp.errors import SettingError
from equidp.evaluation.costs import equal_cost, summary
from equidp.evaluation.metric import Metric

TABLES = {
    "methods": "What privacy costs by method",
    "costs": "Privacy cost by group",
    "metric": "The metric by group",
}
"""Name of a table -> its caption."""


def text_table(
    name: str, costs: pd.DataFrame, baseline: str, tau: float, level: float, metric: Metric
) -> pd.DataFrame:
    """Table with a row per method and setting, or with a row per group and a column per method and setting.

    Args:
        name: of TABLES.
        costs: from `equidp.evaluation.costs.privacy_costs`.
        baseline: the method without privacy, which has no cost.
        tau: largest gap that counts as equal.
        level: of the intervals.
        metric: the metric of costs and gaps.

    Raises:
        SettingError: an unknown table.
    """
    if name not in TABLES:
        raise unknown_name("table", name, TABLES)
    rows = summary(costs, level, metric)
    rows.insert(0, "label", [_label(*key) for key in zip(rows["method"], rows["setting"], strict=True)])
    if name == "methods":
        return _methods(rows, equal_cost(costs, tau, level, metric), baseline, tau, metric)
    column = "privacy_cost" if name == "costs" else metric.name
    shown = rows[rows["method"] != baseline] if name == "costs" else rows
    texts = shown.assign(text=[_interval(row, column, metric) for row in shown.to_dict("records")])
    table = texts.pivot(index="group", columns="label", values="text")
    groups, labels = (list(dict.fromkeys(shown[key])) for key in ("group", "label"))
    return table.loc[groups, labels].rename_axis(columns=None).reset_index()


def checked_ending(path: str | os.PathLike[str]) -> str:
    """Return ".tex" or ".md"; SettingError: another ending."""
    ending = Path(path).suffix.lower()
    if ending not in (".tex", ".md"):
        raise SettingError(f"{os.fspath(path)!r} ends in {ending!r}; tables are written to .tex or .md.")
    return ending


def unit(metric: Metric) -> str:
    """Name of the metric, with its unit if it is a percentage."""
    return f"{metric.label}, %" if metric.percent else metric.label


def _methods(
    rows: pd.DataFrame, gaps: pd.DataFrame, baseline: str, tau: float, metric: Metric
) -> pd.DataFrame:
    verdicts, points = gaps.set_index(["method", "setting"]), ", points" if metric.percent else ""
    table = []
    for (method, setting), part in rows.groupby(["method", "setting"], sort=False):
        part = part.set_index("group")
        overall = part.loc[ALL]
        row = {
            "method": _label(method, setting),
            "epsilon": "∞" if math.isinf(overall["epsilon"]) else f"{overall['epsilon']:.3g}",
            unit(metric): _interval(overall, metric.name, metric),
        }
        if method != baseline:
            by_group = part["privacy_cost_mean"].drop(ALL)
            gap = verdicts.loc[(method, setting)]
            row |= {
                f"cost{points}": _interval(overall, "privacy_cost", metric),
                "hit hardest": f"{by_group.idxmax()}: {_text(by_group.max(), metric)}",
                f"largest gap{points}": _interval(gap, "gap", metric),
                f"gap at most {_text(tau, metric)}": gap["verdict"],
            }
        table.append(row)
    return pd.DataFrame(table).fillna("")


def _label(method: str, setting: str) -> str:
    return f"{method} ({setting})" if setting else method


def _interval(row: Mapping[str, float] | pd.Series, name: str, metric: Metric) -> str:
    mean, low, high = (_text(row[f"{name}_{end}"], metric) for end in ("mean", "low", "high"))
    return mean if low == "–" else f"{mean} [{low}, {high}]"


def _text(value: float, metric: Metric) -> str:
    if math.isnan(value):
        return "–"
    return f"{round(100 * value, 1) + 0.0:.1f}" if metric.percent else f"{value:.3g}"
