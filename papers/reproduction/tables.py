"""Tables of an item: what was found, with standard errors, beside what the paper prints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import pandas as pd

from equidp.data.dataset import ALL
from papers.reproduction.result import Difference, Judged

_MOST_POINTS = 12
"""A quantity over more points than this is in a picture alone."""
_MOST_GROUPS = 11
_TITLES = {
    "accuracy": "Accuracy",
    "change": "Accuracy less that without privacy",
    "privacy_cost": "Privacy cost: accuracy lost against no privacy",
    "excessive_risk": "Excessive risk: loss beyond that without privacy",
    "loss": "Mean loss on the test data",
    "mean_norm": "Mean of gradient norms on the test data, last epoch",
    "mean_gradient_norm": "Norm of the mean gradient on the test data, last epoch",
    "epsilon": "Epsilon",
    "individual epsilon": "Mean epsilon of the examples",
}


@final
@dataclass(frozen=True)
class Table:
    """A table as texts.

    Attributes:
        title: the quantity and the data.
        header: of the columns.
        rows: of texts, as many as the header has.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(judged: Judged) -> list[Table]:
    """One for each quantity and dataset, a row for each method and point of a sweep."""
    if judged.result is None:
        return []
    found, differences = judged.result.found, {_key(each): each for each in judged.differences}
    made = []
    for quantity in judged.item.columns:
        rows = found.where(quantity=quantity)
        single = rows["at"].isna()
        has_single = single.groupby([rows["data"], rows["method"]]).transform("any")
        rows = rows[single | ~has_single]  # what a method has over training too is in pictures
        rows = rows[rows["at"].isna()] if rows["at"].nunique() > _MOST_POINTS else rows
        for data, part in rows.groupby("data", sort=False):
            made.append(_table(str(data), quantity, part, judged, differences))
    return made


def _key(each: Difference) -> tuple[str, ...]:
    printed = each.printed
    return (printed.data, printed.method, printed.group, printed.quantity, _point(printed.at))


def _table(
    data: str,
    quantity: str,
    part: pd.DataFrame,
    judged: Judged,
    differences: dict[tuple[str, ...], Difference],
) -> Table:
    groups = list(dict.fromkeys(part["group"]))
    if len(groups) > _MOST_GROUPS:
        named = {each.group for each in judged.item.printed}
        groups = [group for group in groups if group in named] or groups[:_MOST_GROUPS]
    groups.sort(key=lambda group: group != ALL)
    swept = bool(part["at"].notna().any())
    rows = []
    for (method, at), own in part.groupby(["method", "at"], sort=False, dropna=False):
        cells = own.set_index("group")
        texts = [
            _cell(cells.loc[group], differences.get((data, str(method), group, quantity, _point(float(at)))))
            if group in cells.index
            else ""
            for group in groups
        ]
        if any(texts):
            rows.append((str(method), *([_point(float(at))] if swept else []), *texts))
    header = ("", *(["at"] if swept else []), *groups)
    return Table(f"{_TITLES.get(quantity, quantity.capitalize())}: {data}", header, tuple(rows))


def _point(at: float) -> str:
    return "" if math.isnan(at) else f"{at:g}"


def _cell(row: pd.Series, difference: Difference | None) -> str:
    text = number(row["mean"])
    if row["error"] == row["error"]:
        text += f" ± {number(row['error'])}"
    if difference is None:
        return text
    sign = "≠" if difference.differs else "="
    return f"{text} {sign} {number(difference.printed.value)}"


def number(value: float) -> str:
    """A number in a few digits.

    >>> number(0.81423), number(-5.4291), number(12.04), number(-0.0)
    ('0.8142', '-5.429', '12.04', '0.0000')
    """
    return f"{round(value, 4) + 0.0:.4f}" if abs(value) < 1 else f"{value:.4g}"


def markdown(table: Table) -> str:
    """The table in Markdown, under its title."""
    lines = ["| " + " | ".join(name or " " for name in table.header) + " |"]
    lines.append("| --- |" + " ---: |" * (len(table.header) - 1))
    lines += ["| " + " | ".join(row) + " |" for row in table.rows]
    return f"{table.title}\n\n" + "\n".join(lines)
