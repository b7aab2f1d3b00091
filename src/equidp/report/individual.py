"""Privacy of each group's examples in a comparison: a table, and a section of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from equidp.data.dataset import ALL
from equidp.display import Cell, Column, Noted, Table, measured_number
from equidp.report.document import Block, Callout, Heading, Paragraph, paragraphs
from equidp.report.format import number, upper, whole_number
from equidp.report.summary import Summary

_ERRORS = 2
"""Standard errors on each side of a released mean."""


def individual_blocks(summary: Summary, *, include_sensitive: bool) -> Iterator[Block]:
    """Section of a report, with true epsilons on request; empty without epsilons."""
    found = summary.individual
    if not found:
        return
    yield Heading("The privacy of each group's examples")
    yield from paragraphs(_sentences(summary))
    yield Heading("Mean epsilon of a group's examples, released with noise", 3)
    yield individual_table(summary)
    yield Paragraph("Beside numbers: standard error of the noise.", small=True)
    if any((part["group_epsilon"] < part["epsilon"] * (1 - 1e-9)).any() for part in found.values()):
        yield Heading("The most that a member of a group can have", 3)
        yield Paragraph(
            "A method with a bound for each group holds its members to an epsilon below the run's. This "
            "follows from released values and costs nothing.",
            small=True,
        )
        yield individual_table(summary, "group_epsilon", lambda row: "")
    if include_sensitive:
        warning = (
            "Sensitive: the values of this section follow from raw training data. With them, this page must "
            "not be shared."
        )
        yield Heading("Mean epsilon of a group's examples, true values")
        yield Callout([Paragraph(warning)], warning=True)
        yield Paragraph("Beside numbers: median, and the value that 95% are below.", small=True)
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
        note: small print of a row of `Summary.individual`, "" for none; None: the standard error.
    """
    note = note or (lambda row: f"± {measured_number(row.standard_error)}")
    rows: list[list[Cell]] = []
    for group in summary.setup.data.group_names:
        row: list[Cell] = [group, summary.sizes()[group]]
        for part in summary.individual.values():
            value, text = part.loc[group, column], note(part.loc[group])
            row.append(Noted(value, text) if text else value)
        rows.append(row)
    columns = [
        Column("group", "name"),
        Column("in training", show=whole_number),
        *(Column(kind.label, show=measured_number) for kind in summary.individual),
    ]
    return Table(columns, rows)


def too_noisy(summary: Summary) -> list[str]:
    """Return the kinds of run whose released means differ between no two groups by more than their noise."""
    noisy = []
    for kind, part in summary.individual.items():
        groups = part.drop(index=ALL, errors="ignore")
        means, noise = groups["released_mean"].to_numpy(), _ERRORS * groups["standard_error"].to_numpy()
        gaps = np.abs(np.subtract.outer(means, means))
        if not (gaps > np.hypot.outer(noise, noise)).any():
            noisy.append(kind.label)
    return noisy


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
