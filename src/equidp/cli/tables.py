"""Figures by group on a terminal."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from equidp.data.dataset import ALL
from equidp.report.words import number, points

_SHOWN = {
    "accuracy": ("accuracy, %", points),
    "loss": ("loss", number),
    "recall": ("recall, %", points),
    "recall_cost": ("recall lost, points", points),
    "privacy_cost": ("privacy cost, points", points),
    "excessive_risk": ("excessive risk, loss", number),
}


_MOST_RECALLS = 40


def print_groups(rows: pd.DataFrame) -> None:
    """One row a group, or a group's class, with the metrics that there are and their intervals."""
    table = Table(box=SIMPLE_HEAD)
    names = [name for name in ("group", "class") if name in rows]
    for name in names:
        table.add_column(name)
    table.add_column("test examples", justify="right")
    metrics = [metric for metric in _SHOWN if metric in rows]
    for metric in metrics:
        table.add_column(_SHOWN[metric][0], justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        cells = [_cell(row, metric) for metric in metrics]
        style = "bold" if row["group"] == ALL else None
        table.add_row(*(escape(row[name]) for name in names), f"{row['count']:,}", *cells, style=style)
    Console().print(table)


def print_recalls(rows: pd.DataFrame) -> None:
    """Recall by group and class; where that is too long to read, by class alone."""
    if rows.empty:
        return
    print_groups(rows if len(rows) <= _MOST_RECALLS else rows[rows["group"] == ALL])


def _cell(row: dict[str, Any], metric: str) -> str:
    show = _SHOWN[metric][1]
    value, low, high = (show(row[f"{metric}{end}"]) for end in ("", "_low", "_high"))
    return f"{value} ({low} to {high})"
