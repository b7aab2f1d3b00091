"""Diagnosis of a comparison: its findings, and a section of the report. Everything in it is sensitive."""

from __future__ import annotations

from collections.abc import Iterator

from equidp._extras import require_extra
from equidp.comparison.result import Comparison
from equidp.diagnostics.findings import average_column, find_causes
from equidp.display import Cell, Column, Noted, Table, measured_number
from equidp.report.document import Block, Callout, Heading, Paragraph, paragraphs
from equidp.report.format import number
from equidp.report.summary import Summary, by_kind

with require_extra("tables"):
    import pandas as pd

_RISKS = {
    "excess": "all",
    "direction": "direction",
    "magnitude": "magnitude",
    "noise": "noise",
    "direction_alternative": "direction, other split",
    "magnitude_alternative": "magnitude, other split",
}
_GRADIENTS = {
    "group_gradient_norm": "norm of the mean",
    "mean_norm": "mean norm",
    "share_clipped": "share clipped",
    "cosine_before": "cosine before",
    "cosine_after": "after",
    "error_bias": "bias",
    "error_variance": "variance",
    "best_bound": "best bound",
}
"""Columns of the tables, without sensitive_ -> headings."""


def diagnosis_blocks(summary: Summary) -> Iterator[Block]:
    """Section of a report, or empty without a diagnosis."""
    diagnosis = summary.comparison.sensitive_diagnosis
    if diagnosis is None:
        return
    parts = by_kind(diagnosis.sensitive_groups)
    warning = (
        "Must not be shared: everything in this part is computed from raw training data, and no epsilon "
        "covers it."
    )
    yield Heading("Where the disparity comes from")
    yield Callout([Paragraph(warning)], warning=True)
    yield Callout([Paragraph(f"{kind.label}: {' '.join(find_causes(part))}") for kind, part in parts.items()])
    yield Paragraph(
        "Excess risk: what clipping and noise add to a group's mean training loss in one step, to second "
        "order. Averages over the diagnosed steps; differences within two standard errors are not "
        "mentioned.",
        small=True,
    )
    for kind, part in parts.items():
        for table in (_risk_table(kind.label, part), _gradient_table(kind.label, part)):
            yield Heading(table.caption, 3)
            yield table
            yield from paragraphs(table.notes, small=True)


def _risk_table(name: str, part: pd.DataFrame) -> Table:
    means = [average_column(part, column) for column in _RISKS]
    rows: list[list[Cell]] = [
        [group, *(Noted(mean[group].mean, f"± {measured_number(mean[group].error)}") for mean in means)]
        for group in means[0]
    ]
    columns = [Column("group", "name"), *(Column(head, show=measured_number) for head in _RISKS.values())]
    return Table(columns, rows, f"{name}: excess risk a step")


def _gradient_table(name: str, part: pd.DataFrame) -> Table:
    means = part.groupby("group", sort=False)[[f"sensitive_{column}" for column in _GRADIENTS]].mean()
    best = number(float(part["sensitive_best_bound_all"].mean()))
    note = (
        "Bias and variance: bounds on the error of the group's private gradient (Xu et al.); best bound: the "
        f"clipping bound that balances the two for this group. For all examples together it is {best}."
    )
    columns = [Column("group", "name"), *(Column(head, show=measured_number) for head in _GRADIENTS.values())]
    rows: list[list[Cell]] = [
        [str(group), *row] for group, row in zip(means.index, means.to_numpy(), strict=True)
    ]
    return Table(columns, rows, f"{name}: gradients", [note])


def sensitive_findings(comparison: Comparison) -> list[str]:
    """Return a warning and a line for each diagnosed kind of run; an empty list without a diagnosis."""
    if comparison.sensitive_diagnosis is None:
        return []
    parts = by_kind(comparison.sensitive_diagnosis.sensitive_groups)
    return [
        "Where the disparity comes from (computed from raw training data; must not be shared):",
        *(f"{kind.label}: {' '.join(find_causes(part))}" for kind, part in parts.items()),
    ]
