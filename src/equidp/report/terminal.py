"""Printing of results on the terminal."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.markup import escape

from equidp.comparison.result import Comparison
from equidp.data.dataset import ALL
from equidp.display import Column, Interval, Table
from equidp.evaluation.costs import COSTS
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.metric import Metric
from equidp.evaluation.metrics import METRICS
from equidp.report.figures import how_measured
from equidp.report.format import count_text, number
from equidp.report.summary import summarise
from equidp.report.tables import (
    detail_table,
    figures_table,
    groups_table,
    individual_table,
    overview_table,
    reliability_table,
)
from equidp.report.words import finding, test_sentences

_MOST_RECALLS = 40


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print findings, one row per method, metrics by group and method, then which method to take.

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
    overview_table(summary).print(console)
    console.print(
        f"{setup.level:.0%} intervals over {count_text(len(setup.seeds), 'seed')}; costs and gaps in "
        f"{summary.unit} against {setup.baseline}; delta {setup.training.delta:g}.",
        highlight=False,
        style="dim",
    )
    for sentence in test_sentences(summary):
        console.print(escape(sentence), highlight=False, style="dim")
    for detail in summary.details:
        console.print()
        kinds = summary.private_kinds if detail.column in COSTS else summary.kinds
        _means_alone(detail_table(summary, detail, kinds)).print(console, split=True)
    if summary.individual:
        cost = number(comparison.individual["release_epsilon"].iloc[0])
        heading = f"\nmean epsilon of a group's examples, released at epsilon {cost} a run"
        console.print(heading, highlight=False)
        individual_table(summary).print(console, split=True)
    console.print("\nWhich method to take", style="bold")
    for each in comparison.recommendation():
        console.print(escape(each.reason), highlight=False)


def print_groups(rows: pd.DataFrame, metric: Metric = METRICS["accuracy"]) -> None:
    """Print one row per group, or per group and class, with each figure present and its interval.

    Args:
        rows: a table of an `Evaluation`.
        metric: the metric of privacy_cost.
    """
    groups_table(rows, metric).print(split=True)


def print_recalls(rows: pd.DataFrame) -> None:
    """Print recall by group and class, or by class alone if that would take more than 40 rows."""
    if not rows.empty:
        print_groups(rows if len(rows) <= _MOST_RECALLS else rows[rows["group"] == ALL])


def print_figures(found: Evaluation, console: Console | None = None) -> None:
    """Print the metrics other than accuracy and loss by group, in tables that fit, and how to read them."""
    console = console or Console()
    table = figures_table(found)
    if table is not None:
        table.print(console, split=True)
    for sentence in how_measured(found):
        console.print(escape(sentence), highlight=False, style="dim")


def print_reliability(found: Evaluation) -> None:
    """Print mean predicted and observed risk, by group and predicted risk."""
    reliability_table(found).print()


def _means_alone(table: Table) -> Table:
    """Table of one row's name and size in one column, without intervals; the page has the intervals."""
    name, size, *figures = table.columns
    rows = [
        [
            f"{group} ({size.show(count)})",
            *(cell[0] if isinstance(cell, Interval) else cell for cell in cells),
        ]
        for group, count, *cells in table.rows
    ]
    columns = [Column("group (in training)", name.kind), *figures]
    return Table(columns, rows, table.caption, table.notes, total=str(rows[-1][0]))
