"""Privacy of each group's examples in a comparison: a table, and a section of the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from equidp.display import Cell, Column, Noted, Table
from equidp.report.format import number, upper, whole_number
from equidp.report.plots import INDIVIDUAL_PLOTS
from equidp.report.plots.style import Drawn, draw_plots
from equidp.report.summary import Summary


class Part(NamedTuple):
    """Part of the section: a table with a title and a text, and its plot."""

    title: str
    text: str
    table: Table
    plot: Drawn | None = None
    sensitive: bool = False


def individual_section(summary: Summary, *, include_sensitive: bool) -> dict[str, Any] | None:
    """Values of the section for its template, with true epsilons if requested; None without epsilons."""
    found = summary.individual
    if not found:
        return None
    parts = [_plot_part("released", summary, individual_table(summary))]
    if any((part["group_epsilon"] < part["epsilon"] * (1 - 1e-9)).any() for part in found.values()):
        parts.append(
            Part(
                "The most that a member of a group can have",
                "A method with a bound for each group holds its members to an epsilon below the run's. This "
                "follows from released values and costs nothing. Small print: the bound as a share of the "
                "largest, times the run's epsilon, as papers read it; no guarantee.",
                individual_table(summary, "group_epsilon", lambda row: number(row.linear_group_epsilon)),
            )
        )
    if include_sensitive:
        table = individual_table(
            summary,
            "sensitive_mean",
            lambda row: f"{number(row.sensitive_median)}, {number(row.sensitive_q95)}",
        )
        parts.append(_plot_part("sensitive_epsilon", summary, table)._replace(sensitive=True))
    return {"sentences": _sentences(summary), "parts": parts}


def _plot_part(name: str, summary: Summary, table: Table) -> Part:
    (plot,) = draw_plots([INDIVIDUAL_PLOTS[name]], summary)
    return Part(plot.title, plot.caption, table, plot)


def individual_table(
    summary: Summary, column: str = "released_mean", note: Callable[[Any], str] | None = None
) -> Table:
    """Table of epsilons of groups' examples, groups down and private kinds across.

    Args:
        summary: with individual privacy.
        column: of `Summary.individual`; by default the released mean, with its standard error.
        note: small print of a row of `Summary.individual`; None: the standard error.
    """
    note = note or (lambda row: f"± {number(row.standard_error)}")
    rows: list[list[Cell]] = [
        [group, summary.sizes()[group], *(Noted(row[column], note(row)) for row in found)]
        for group in summary.setup.data.group_names
        for found in [[part.loc[group] for part in summary.individual.values()]]
    ]
    columns = [
        Column("group", "name"),
        Column("in training", show=whole_number),
        *(Column(kind.label, show=number) for kind in summary.individual),
    ]
    return Table(columns, rows)


def _sentences(summary: Summary) -> list[str]:
    firsts = {kind: part.iloc[0] for kind, part in summary.individual.items()}
    spent = ", ".join(
        f"{kind.label} {upper(first['epsilon'])} (with the release {upper(first['epsilon_with_release'])})"
        for kind, first in firsts.items()
    )
    cost = number(next(iter(firsts.values()))["release_epsilon"])
    return [
        "A run's epsilon holds for every example. Most examples contributed less than the method allows: "
        "their gradient was short, or the bound of their group low. Their own epsilon, given how this "
        "training went, is lower.",
        f"The released figures cost epsilon {cost} for each run, at the run's delta. Epsilon of each run: "
        f"{spent}.",
        "Norms of all examples were taken once an epoch and assumed constant in between, so these figures "
        "are estimates. In a comparison the noise comes from seeds: publish figures only of the model that "
        "you release.",
    ]
