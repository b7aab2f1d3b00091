"""The comparison on a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from equidp.data.dataset import ALL
from equidp.evaluation.groups import COSTS, summary
from equidp.report.individual_section import individual_means
from equidp.report.words import finding, label, number, overview, points, span, test_sentences

if TYPE_CHECKING:
    from equidp.comparison.result import Comparison

_Key = TypeVar("_Key")
_MARGIN, _NARROWEST = 3, 6  # characters
_DETAILS = (
    ("accuracy", "accuracy, %", points),
    ("privacy_cost", "privacy cost, points of accuracy", points),
    ("loss", "loss", number),
    ("excessive_risk", "excessive risk, loss beyond the non-private run's", number),
)


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Prints findings, one row per method, then metrics by group and method."""
    console = console or Console()
    settings = comparison.settings
    console.print()
    for sentence in finding(comparison):
        console.print(escape(sentence), highlight=False)
    console.print()
    console.print(_summary_table(comparison))
    console.print(
        f"{settings['level']:.0%} intervals over {len(settings['seeds'])} seeds; costs and gaps in points of accuracy against "
        f"{settings['baseline']}; delta {settings['delta']:g}.",
        highlight=False,
        style="dim",
    )
    for sentence in test_sentences(comparison):
        console.print(escape(sentence), highlight=False, style="dim")
    for metric, title, show in _DETAILS:
        for table in _detail_tables(comparison, metric, title, show, console.width):
            console.print()
            console.print(table)
    if not comparison.individual.empty:
        cost = number(comparison.individual["release_epsilon"].iloc[0])
        console.print(
            f"\nmean epsilon of a group's examples, released at epsilon {cost} a run", highlight=False
        )
        for table in _individual_tables(comparison, console.width):
            console.print(table)


def _summary_table(comparison: Comparison) -> Table:
    settings = comparison.settings
    table = Table(
        title=f"What privacy costs: {settings['data']}, {settings['model']}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("method", no_wrap=True)
    for heading in ("epsilon", "accuracy", "cost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("hit hardest", "largest gap", f"gap ≤ {points(settings['tau'])}?"):
        table.add_column(heading, overflow="fold")
    for row in overview(comparison).itertuples():
        hit = f"{row.worst_group}: {points(row.worst_cost)}" if row.worst_group else ""
        between = span(row.gap_low, row.gap_high)
        table.add_row(
            escape(row.method),
            number(row.epsilon),
            points(row.accuracy),
            points(row.cost),
            escape(hit),
            f"{points(row.gap)} ({between})" if between else points(row.gap),
            row.verdict,
        )
    return table


def _detail_tables(
    comparison: Comparison, metric: str, title: str, show: Callable[[float], str], width: int
) -> Iterator[Table]:
    """Means over seeds, groups down, methods across, as many at a time as fit; the report has the intervals."""
    settings = comparison.settings
    rows = summary(comparison.costs(), settings["level"])
    if metric in COSTS:
        rows = rows[rows["method"] != settings["baseline"]]
    keys = list(dict.fromkeys(zip(rows["method"], rows["setting"], strict=True)))
    means = rows.set_index(["method", "setting", "group"])[f"{metric}_mean"]
    sizes = dict(zip(settings["group_names"], settings["train_group_sizes"], strict=True))
    heads = {group: f"{group} ({size:,})" for group, size in {**sizes, ALL: settings["num_train"]}.items()}
    for shown in _fitting({key: _column_width(key) for key in keys}, width, heads.values()):
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
        table.add_column("group (in training)", overflow="fold")
        for key in shown:
            table.add_column(escape(label(*key)), justify="right", min_width=_column_width(key))
        for group, head in heads.items():
            cells = [show(means[(*key, group)]) for key in shown]
            table.add_row(escape(head), *cells, style="bold" if group == ALL else None)
        yield table


def _fitting(columns: dict[_Key, int], width: int, heads: Iterable[str]) -> Iterator[list[_Key]]:
    """Columns of so many characters each, as many at a time as fit beside the rows' heads."""
    room = width - 1 - min(max(map(len, heads)), width // 2) - _MARGIN
    shown: list[_Key] = []
    taken = 0
    for key, size in columns.items():
        if shown and taken + size + _MARGIN > room:
            yield shown
            shown, taken = [], 0
        shown.append(key)
        taken += size + _MARGIN
    if shown:
        yield shown


def _column_width(key: tuple[str, str]) -> int:
    """Characters of the longest word above a column, or of a figure."""
    return max(_NARROWEST, *map(len, label(*key).split()))


def _individual_tables(comparison: Comparison, width: int) -> Iterator[Table]:
    groups = comparison.settings["group_names"]
    columns = {
        label(*key): [
            f"{number(row.released_mean)} ± {number(row.standard_error)}"
            for row in part.set_index("group").loc[groups].itertuples()
        ]
        for key, part in individual_means(comparison).groupby(["method", "setting"], sort=False)
    }
    sizes = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
    for shown in _fitting(sizes, width, ("group", *groups)):
        table = Table(box=SIMPLE_HEAD)
        table.add_column("group", overflow="fold")
        for name in shown:
            table.add_column(name, justify="right", no_wrap=True)
        for group, *cells in zip(groups, *(columns[name] for name in shown), strict=True):
            table.add_row(escape(group), *cells)
        yield table


def ablation_table(summary: pd.DataFrame, method: str) -> Table:
    """Accuracy by error of clipping and group, in %, with its standard error over seeds; from `ablation_summary`."""
    table = Table(
        title=f"Accuracy, %, after training without noise and with one error of {method}'s clipping",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("group", no_wrap=True)
    errors = list(dict.fromkeys(summary["error"]))
    for error in errors:
        table.add_column(error, justify="right", no_wrap=True)
    cells = {(row.error, row.group): row for row in summary.itertuples()}
    for group in dict.fromkeys(summary["group"]):
        shown = (cells[error, group] for error in errors)
        table.add_row(escape(str(group)), *(_with_error(row.accuracy, row.accuracy_se) for row in shown))
    return table


def _with_error(value: float, error: float) -> str:
    return points(value) if math.isnan(error) else f"{points(value)} ± {points(error)}"
