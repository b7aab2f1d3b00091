"""Results as tables on the terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from equidp.comparison.result import Comparison
from equidp.data.dataset import ALL
from equidp.evaluation.costs import COSTS
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.metric import Metric
from equidp.evaluation.metrics import METRICS
from equidp.report.console_tables import print_table
from equidp.report.figures import columns as figure_columns, how_measured, reliability_rows
from equidp.report.format import counted, number, points, shown, unit
from equidp.report.summary import Summary, summarise
from equidp.report.words import finding, test_sentences

_MARGIN, _NARROWEST = 3, 6  # characters
_MOST_RECALLS = 40
_COLUMNS = {
    "accuracy": ("accuracy, %", points),
    "loss": ("loss", number),
    "rmse": ("RMSE", number),
    "mae": ("MAE", number),
    "recall": ("recall, %", points),
    "recall_cost": ("recall lost, points", points),
    "excessive_risk": ("excessive risk, loss", number),
}


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Prints findings, one row per method, metrics by group and method, then which method to take.

    Args:
        comparison: from `equidp.compare`.
        console: where to print; None: standard output.

    Example:
        >>> import equidp
        >>> place = getfixture("tmp_path")
        >>> plan = equidp.Plan(batch_size=128, epochs=1)
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> equidp.print_comparison(comparison)  # doctest: +ELLIPSIS
        <BLANKLINE>
        In this one run, privacy by dpsgd costs group ...
    """
    console, summary = console or Console(), summarise(comparison)
    setup = summary.setup
    console.print()
    for sentence in finding(summary):
        console.print(escape(sentence), highlight=False)
    console.print()
    print_table(_overview_table(summary), console)
    console.print(
        f"{setup.level:.0%} intervals over {counted(len(setup.seeds), 'seed')}; costs and gaps in "
        f"{summary.unit} against {setup.baseline}; delta {setup.training.delta:g}.",
        highlight=False,
        style="dim",
    )
    for sentence in test_sentences(summary):
        console.print(escape(sentence), highlight=False, style="dim")
    for table in _detail_tables(summary, console.width):
        console.print()
        print_table(table, console)
    if summary.individual:
        cost = number(comparison.individual["release_epsilon"].iloc[0])
        heading = f"\nmean epsilon of a group's examples, released at epsilon {cost} a run"
        console.print(heading, highlight=False)
        for table in _individual_tables(summary, console.width):
            print_table(table, console)
    console.print("\nWhich method to take", style="bold")
    for each in comparison.recommendation():
        console.print(escape(each.reason), highlight=False)


def print_groups(rows: pd.DataFrame, metric: Metric = METRICS["accuracy"]) -> None:
    """Prints one row per group, or per group and class, with each figure present and its interval.

    Args:
        rows: a table of an `Evaluation`.
        metric: what privacy_cost is a cost in.
    """
    names = [name for name in ("group", "class") if name in rows]
    shows: dict[str, tuple[str, Callable[[float], str]]] = {
        **_COLUMNS,
        "privacy_cost": (f"privacy cost, {unit(metric)}", partial(shown, metric)),
    }
    columns = {"test examples": [f"{count:,}" for count in rows["count"]]}
    for name, (head, show) in shows.items():
        if name in rows:
            columns[head] = [_with_interval(row, name, show) for row in rows.to_dict("records")]
    heads = list(zip(*(rows[name] for name in names), strict=True))
    console = Console()
    for table in _grids("", names, heads, columns, console.width, bold=ALL):
        print_table(table, console)


def print_recalls(rows: pd.DataFrame) -> None:
    """Prints recall by group and class, or by class alone if that would take more than 40 rows."""
    if not rows.empty:
        print_groups(rows if len(rows) <= _MOST_RECALLS else rows[rows["group"] == ALL])


def print_figures(found: Evaluation, console: Console | None = None) -> None:
    """Prints the metrics beside accuracy and loss by group, as many columns as fit, and how to read them."""
    console = console or Console()
    groups = list(found.groups["group"])
    cells = {
        column.head: [" ".join(_small(*column.cells.get(name, ("–", "")))) for name in groups]
        for column in figure_columns(found)
    }
    if cells:
        for table in _grids("", ["group"], _single(groups), cells, console.width, bold=ALL):
            print_table(table, console)
    for sentence in how_measured(found):
        console.print(escape(sentence), highlight=False, style="dim")


def print_reliability(found: Evaluation) -> None:
    """Prints mean predicted risk beside what happened, by group and predicted risk."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("group")
    for head in ("risk, %", "test examples", "mean predicted risk, %", "happened, %"):
        table.add_column(head, justify="right")
    for name, *cells in reliability_rows(found.reliability):
        table.add_row(escape(name), *cells, style="bold" if name == ALL else None)
    print_table(table)


def _small(value: str, ends: str) -> tuple[str, ...]:
    return (value, f"({ends})") if ends else (value,)


def _overview_table(summary: Summary) -> Table:
    setup = summary.setup
    title = f"What privacy costs: {setup.data.name}, {setup.training.model}"
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD)
    table.add_column("method", no_wrap=not setup.swept, overflow="fold")
    text = summary.text
    for heading in ("epsilon", summary.metric.label, "cost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("hit hardest", "largest gap", f"gap ≤ {text(setup.tau)}?"):
        table.add_column(heading, overflow="fold")
    for row in summary.overview:
        ends = "" if math.isnan(row.gap.low) else f" ({text(row.gap.low)} to {text(row.gap.high)})"
        table.add_row(
            escape(row.kind.label if setup.swept else row.kind.method),
            number(row.epsilon),
            text(row.accuracy),
            text(row.cost),
            escape(f"{row.worst_group}: {text(row.worst_cost)}" if row.worst_group else ""),
            f"{text(row.gap.mean)}{ends}",
            row.verdict,
        )
    return table


def _detail_tables(summary: Summary, width: int) -> Iterator[Table]:
    """Means over seeds, groups down and kinds of run across; the page has the intervals."""
    sizes = summary.sizes()
    heads = [f"{group} ({size:,})" for group, size in sizes.items()]
    for column, title, show in summary.details:
        kinds = summary.private_kinds if column in COSTS else summary.kinds
        columns = {
            kind.label: [show(summary.interval(kind, group, column).mean) for group in sizes]
            for kind in kinds
        }
        yield from _grids(title, ["group (in training)"], _single(heads), columns, width, bold=heads[-1])


def _individual_tables(summary: Summary, width: int) -> Iterator[Table]:
    groups = list(summary.setup.data.group_names)
    columns = {
        kind.label: [
            f"{number(row.released_mean)} ± {number(row.standard_error)}"
            for row in part.loc[groups].itertuples()
        ]
        for kind, part in summary.individual.items()
    }
    return _grids("", ["group"], _single(groups), columns, width)


def _single(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Names of rows that have one each."""
    return [(name,) for name in names]


def _grids(
    title: str,
    corners: Sequence[str],
    heads: Sequence[Sequence[str]],
    columns: dict[str, list[str]],
    width: int,
    bold: str = "",
) -> Iterator[Table]:
    """Tables with as many columns each as fit beside the names of the rows, which each table has."""
    most = width // (2 * len(corners))
    named = [min(max(map(len, names)), most) + _MARGIN for names in zip(corners, *heads, strict=True)]
    left = list(columns)
    while left:
        ends = itertools.accumulate(_column_width(name, columns[name]) + _MARGIN for name in left)
        fitting = max(1, sum(end <= width - 1 - sum(named) for end in ends))
        yield _grid(title, corners, heads, {name: columns[name] for name in left[:fitting]}, bold)
        left = left[fitting:]


def _grid(
    title: str,
    corners: Sequence[str],
    heads: Sequence[Sequence[str]],
    columns: dict[str, list[str]],
    bold: str = "",
) -> Table:
    table = Table(title=escape(title) or None, title_justify="left", box=SIMPLE_HEAD)
    for corner in corners:
        table.add_column(corner, overflow="fold")
    for name, cells in columns.items():
        table.add_column(escape(name), justify="right", min_width=_column_width(name, cells))
    for names, *cells in zip(heads, *columns.values(), strict=True):
        table.add_row(*map(escape, [*names, *cells]), style="bold" if names[0] == bold else None)
    return table


def _column_width(name: str, cells: list[str]) -> int:
    """Characters of the longest word above a column, or of a figure."""
    return max(_NARROWEST, *map(len, [*name.split(), *cells]))


def _with_interval(row: dict[str, Any], name: str, show: Callable[[float], str]) -> str:
    value, low, high = (show(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
    return f"{value} ({low} to {high})"
