"""Texts of numbers and names, and tables of facts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from equidp.display import Column, Table, measured_number, points, three_digits

if TYPE_CHECKING:
    from equidp.evaluation.metrics import Metric


def whole_number(value: int) -> str:
    """Text of a whole number, such as "1,200"."""
    return f"{value:,}"


def number(value: float) -> str:
    """Text of a number to three digits, from 1,000 on without an exponent; a dash for NaN."""
    return three_digits(value, ".3g")


def upper(value: float) -> str:
    """Text of a number rounded up to three decimals, or to four digits below 0.1, never below the value."""
    if not math.isfinite(value) or value <= 0:
        return number(value)
    places = 3 if value >= 0.1 else 3 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10**places - 1e-9) / 10**places:.{places}f}"


def metric_text(metric: Metric, value: float) -> str:
    """Text of a metric's value: percentage points to a tenth, shares to a thousandth, else three digits."""
    if metric.percent:
        return points(value)
    return measured_number(value) if math.isnan(value) or metric.width > 1 else f"{round(value, 3) + 0.0:.3f}"


def capitalise(text: str) -> str:
    """Text with a capital first letter. The other letters stay, as in "AUC of each group"."""
    return text[:1].upper() + text[1:]


def unit(metric: Metric) -> str:
    """Unit of differences in a metric, such as "points of accuracy" or "AUC"."""
    return f"points of {metric.label}" if metric.percent else metric.label


def amount(metric: Metric, value: float) -> str:
    """Text of a difference in a metric, such as "1.5 points of accuracy" or "0.015 of AUC"."""
    return f"{metric_text(metric, value)} {'' if metric.percent else 'of '}{unit(metric)}"


def facts_table(
    facts: Mapping[str, object] | Sequence[tuple[str, object]], name: str = "name", value: str = "value"
) -> Table:
    """Table of facts, as texts, under these two headings."""
    pairs = facts.items() if isinstance(facts, Mapping) else facts
    return Table((Column(name, "name"), Column(value, "text")), [(key, str(each)) for key, each in pairs])
