"""Plan of runs as a table: every setting with its value and its origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equidp.advice.chosen_plan import SettingRow
from equidp.display import Column, Table
from equidp.report.document import Block, Heading, Paragraph

_ORIGINS = (
    "Each setting and its origin: given, by a rule (for the kind of data, the dataset, the method, the "
    "target of the noise, or trials), or its default."
)


def plan_blocks(rows: Sequence[SettingRow]) -> list[Block]:
    """Table of a plan for a page, under its heading."""
    return [Heading("The plan"), Paragraph(_ORIGINS, small=True), plan_table(rows)]


def plan_table(rows: Sequence[SettingRow]) -> Table:
    """Table of a plan, with the methods of a setting if other methods have another value or none.

    >>> rows = [SettingRow("epochs", 20, "rule"), SettingRow("smoothing", 0.9, "given", ("dpsgd-f",))]
    >>> plan_table(rows).texts()
    [['epochs', '20', 'rule'], ['smoothing (dpsgd-f)', '0.9', 'given']]
    """
    columns = (Column("setting", "name"), Column("value", "text"), Column("from", "text"))
    return Table(columns, [(_name(row), value_text(row.value), row.origin) for row in rows])


def _name(row: SettingRow) -> str:
    name = row.name.replace("_", " ")
    return f"{name} ({', '.join(row.methods)})" if row.methods else name


def value_text(value: Any) -> str:
    """Text of a setting's value."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={value_text(each)}" for name, each in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(value_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
