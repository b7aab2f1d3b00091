"""Privacy of each group's examples in a comparison: a table, and a section of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from equidp.display import Cell, Column, Noted, Table, measured_number
from equidp.report.document import Block, Callout, Heading, Paragraph, paragraphs
from equidp.report.format import number, upper, whole_number
from equidp.report.plots import INDIVIDUAL_PLOTS
from equidp.report.plots.style import draw_plots
from equidp.report.summary import Summary


def individual_blocks(summary: Summary, *, include_sensitive: bool) -> Iterator[Block]:
    """Section of a report, with true epsilons on request; empty without epsilons."""
    found = summary.individual
    if not found:
        return
    yield Heading("The privacy of each group's examples")
    yield from paragraphs(_sentences(summary))
    yield from draw_plots([INDIVIDUAL_PLOTS["released"]], summary)
    yield individual_table(summary)
    if any((part["group_epsilon"] < part["epsilon"] * (1 - 1e-9)).any() for part in found.values()):
        yield Heading("The most that a member of a group can have", 3)
        yield Paragraph(
            "A method with a bound for each group holds its members to an epsilon below the run's. This "
            "follows from released values and costs nothing. Small print: the bound as a share of the "
            "largest, times the run's epsilon, as papers read it; no guarantee.",
            small=True,
        )
        yield individual_table(summary, "group_epsilon", lambda row: number(row.linear_group_epsilon))
    if include_sensitive:
        warning = (
            "Sensitive: the values of this section follow from raw training data. With them, this page must "
            "not be shared."
        )
        yield Heading("True epsilons of each group's examples")
        yield Callout([Paragraph(warning)], warning=True)
        yield from draw_plots([INDIVIDUAL_PLOTS["sensitive_epsilon"]], summary)
        yield individual_table(
            summary,
            "sensitive_mean",
            lambda row: f"{number(row.sensitive_median)}, {number(row.sensitive_q95)}",
        )


def individual_table(
    summary: Summary, column: str = "released_mean", note: Callable[[Any], str] | None = None
) -> Table:
    """Table of epsilons of groups' examples, groups down and private kinds across.

    Args:
        summary: with individual privacy.
        column: of `Summary.individual`; by default the released mean, with its standard error.
        note: small print of a row of `Summary.individual`; None: the standard error.
    """
    note = note or (lambda row: f"± {measured_number(row.standard_error)}")
    rows: list[list[Cell]] = [
        [group, summary.sizes()[group], *(Noted(row[column], note(row)) for row in found)]
        for group in summary.setup.data.group_names
        for found in [[part.loc[group] for part in summary.individual.values()]]
    ]
    columns = [
        Column("group", "name"),
        Column("in training", show=whole_number),
        *(Column(kind.label, show=measured_number) for kind in summary.individual),
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
        f"The released values cost epsilon {cost} for each run, at the run's delta. Epsilon of each run: "
        f"{spent}.",
        "Norms of all examples were taken once an epoch and assumed constant in between, so these values "
        "are estimates. In a comparison the noise comes from seeds: publish values only of the model that "
        "you release.",
    ]
