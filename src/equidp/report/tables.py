"""Tables of a comparison and of an evaluation, for terminals and pages alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd

from equidp.data.dataset import ALL
from equidp.display import Cell, Column, Interval, Table
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.metric import Metric
from equidp.report.figures import columns as figure_columns
from equidp.report.format import metric_text, number, points, unit
from equidp.report.summary import Detail, Kind, Summary

_HEADINGS: dict[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy, %", points),
    "loss": ("loss", number),
    "rmse": ("RMSE", number),
    "mae": ("MAE", number),
    "recall": ("recall, %", points),
    "recall_cost": ("recall lost, points", points),
    "excessive_risk": ("excessive risk, loss", number),
}
_grouped = "{:,}".format


def overview_table(summary: Summary) -> Table:
    """Table with a row per kind of run of a comparison, with its verdict on equal cost of privacy."""
    setup, text = summary.setup, summary.text
    columns = (
        Column("method", "name" if setup.swept else "label"),
        Column("epsilon", show=number),
        Column(summary.metric.label, show=text),
        Column("cost", show=text),
        Column("hit hardest", "text"),
        Column("largest gap", "text", text),
        Column(f"gap ≤ {text(setup.tau)}?", "verdict"),
    )
    rows = [
        (
            row.kind.label if setup.swept else row.kind.method,
            row.epsilon,
            row.accuracy,
            row.cost,
            f"{row.worst_group}: {text(row.worst_cost)}" if row.worst_group else "",
            row.gap,
            row.verdict,
        )
        for row in summary.overview
    ]
    return Table(columns, rows, f"What privacy costs: {setup.data.name}, {setup.training.model}")


def detail_table(summary: Summary, detail: Detail, kinds: Sequence[Kind]) -> Table:
    """Table of means over seeds with intervals, groups down and kinds of run across."""
    rows: list[list[Cell]] = [
        [group, size, *(summary.interval(kind, group, detail.column) for kind in kinds)]
        for group, size in summary.sizes().items()
    ]
    columns = [
        Column("group", "name"),
        Column("in training", show=_grouped),
        *(Column(kind.label, show=detail.show) for kind in kinds),
    ]
    return Table(columns, rows, detail.title, total=ALL)


def groups_table(rows: pd.DataFrame, metric: Metric) -> Table:
    """Table with a row per group, or per group and class, with each figure present and its interval.

    Args:
        rows: a table of an `Evaluation`.
        metric: the metric of privacy_cost.
    """
    headings: dict[str, tuple[str, Callable[[float], str]]] = {
        **_HEADINGS,
        "privacy_cost": (f"privacy cost, {unit(metric)}", partial(metric_text, metric)),
    }
    names = [name for name in ("group", "class") if name in rows]
    present = [name for name in headings if name in rows]
    columns = [
        *(Column(name, "name") for name in names),
        Column("test examples", show=_grouped),
        *(Column(headings[name][0], show=headings[name][1]) for name in present),
    ]
    cells = [
        [
            *(str(row[name]) for name in names),
            row["count"],
            *(_interval(row, name) for name in present),
        ]
        for row in rows.to_dict("records")
    ]
    return Table(columns, cells, total=ALL)


def figures_table(found: Evaluation) -> Table | None:
    """Table of metrics other than accuracy and loss by group; None without such metrics."""
    figures = figure_columns(found)
    if not figures:
        return None
    rows = [
        [str(name), *(_small(*figure.cells.get(name, ("–", ""))) for figure in figures)]
        for name in found.groups["group"]
    ]
    return Table([Column("group", "name"), *(Column(figure.head) for figure in figures)], rows, total=ALL)


def _small(value: str, ends: str) -> str:
    return f"{value} ({ends})" if ends else value


def reliability_table(found: Evaluation) -> Table:
    """Table of mean predicted and observed risk, by group and predicted risk."""
    columns = (
        Column("group", "name"),
        Column("risk, %"),
        Column("test examples", show=_grouped),
        Column("mean predicted risk, %", show=points),
        Column("happened, %", show=points),
    )
    rows = [
        (
            str(row["group"]),
            f"{points(row['risk_from'])} to {points(row['risk_to'])}",
            row["count"],
            row["mean_predicted"],
            _interval(row, "observed"),
        )
        for row in found.reliability.to_dict("records")
    ]
    return Table(columns, rows, total=ALL)


def individual_table(summary: Summary) -> Table:
    """Table of released mean epsilons of groups' examples, with standard errors, private kinds across."""
    rows = [
        [
            group,
            *(
                f"{number(part.at[group, 'released_mean'])} ± {number(part.at[group, 'standard_error'])}"
                for part in summary.individual.values()
            ),
        ]
        for group in summary.setup.data.group_names
    ]
    columns = [Column("group", "name"), *(Column(kind.label) for kind in summary.individual)]
    return Table(columns, rows)


def _interval(row: dict[Any, Any], name: str) -> Interval:
    return Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
