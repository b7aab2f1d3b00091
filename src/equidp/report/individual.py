"""Privacy of each group's examples in a comparison: a section of the report."""

from __future__ import annotations

from collections.abc import Iterator

from equidp.comparison.cells import ExampleEpsilons
from equidp.display import Cell, Column, Noted, Table, measured_number
from equidp.report.document import Block, Callout, Heading, Paragraph
from equidp.report.format import number
from equidp.report.summary import Summary, by_kind


def individual_blocks(summary: Summary) -> Iterator[Block]:
    """Section of a report, or empty without epsilons of single examples."""
    rows = summary.comparison.tables.get(ExampleEpsilons.name)
    if rows is None or rows.empty:
        return
    warning = "Must not be shared: this part follows from raw training data, and no epsilon covers it."
    yield Heading("The privacy of each group's examples")
    yield Callout([Paragraph(warning)], warning=True)
    yield Paragraph(
        "A run's epsilon holds for every example. Most examples contributed less than the method allows: "
        "their gradient was short, or the bound of their group low. Their own epsilon, given how this "
        "training went, is lower. Norms of all examples were taken once an epoch and assumed constant in "
        "between, so these values are estimates."
    )
    kinds = by_kind(rows)
    means = {
        kind: part.groupby("group", sort=False)[["mean", "median", "q95", "group_epsilon", "epsilon"]].mean()
        for kind, part in kinds.items()
    }

    def table(column: str, *notes: str) -> Table:
        lines: list[list[Cell]] = []
        for group in summary.setup.group_names:
            values = [part.loc[group] for part in means.values()]
            lines.append(
                [
                    group,
                    *(
                        Noted(each[column], ", ".join(number(each[note]) for note in notes))
                        if notes
                        else each[column]
                        for each in values
                    ),
                ]
            )
        columns = [Column("group", "name"), *(Column(kind.label, show=measured_number) for kind in means)]
        return Table(columns, lines)

    yield Heading("Mean epsilon of a group's examples", 3)
    yield Paragraph("Small numbers are the median, and the value that 95% are below.", small=True)
    yield table("mean", "median", "q95")
    if any((part["group_epsilon"] < part["epsilon"] * (1 - 1e-9)).any() for part in means.values()):
        yield Heading("The most that a member of a group can have", 3)
        yield Paragraph(
            "A method with a bound for each group holds its members to an epsilon below the run's. This "
            "follows from released values and costs nothing.",
            small=True,
        )
        yield table("group_epsilon")
