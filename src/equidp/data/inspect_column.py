"""What there is to know about one column of a table before it is used, without a cell of any row."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pandas as pd

from equidp.data.checks import LARGEST_NUMBER, MOST_CATEGORIES
from equidp.data.columns import MISSING_TEXTS, as_numbers, days, is_time, read_dates, without_codes
from equidp.data.guesses import FEW_TEXTS, MANY_ROWS, MISSING_NUMBERS, MISSING_WORDS
from equidp.data.plain import MARKS
from equidp.data.recipe import Recipe

RARE_ROWS = 20
"""A class, group or category of fewer rows is counted, but not named."""
MANY_CATEGORIES = 50
FAR = 20
"""Numbers farther from the median than this many interquartile ranges are outliers."""
_MARKS = ((".", None), (".", ","), (",", None), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
_TIMES = ("", " %H:%M", " %H:%M:%S")
_DAYS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%y"),
    *("%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_FORMATS = ("iso", *(day + time for day in _DAYS for time in _TIMES))
_LIKE_A_DATE = r"\d.*[-./ ].*\d"
_SAMPLE = 500

_Option = TypeVar("_Option")


@dataclass(frozen=True)
class Finding:
    """Something to know about a column.

    Attributes:
        says: a phrase, such as "leading zeros: a code, not a number".
        option: of a recipe, which settles it; "": none does.
        value: of the option, for this column.
    """

    says: str
    option: str = ""
    value: str = ""

    def flag(self, column: str) -> str:
        """The option as it is typed; "" where there is none."""
        if not self.option:
            return ""
        if self.option == "positive":
            return f"--positive {shlex.quote(self.value)}"
        value = _word(self.value) if self.option in ("thousands", "decimal") else self.value
        return f"--{self.option} {shlex.quote(f'{column}={value}' if value else column)}"


@dataclass(frozen=True)
class ColumnReport:
    """One column: how it would be read, and what to know about it.

    Attributes:
        name: of the column.
        kind: "number", "category", "date", "text" (too many to be categories), "constant" or "empty".
        missing: rows without a value.
        distinct: number of different values.
        span: powers of ten that numbers lie between, such as "0 to 100"; "" for others.
        findings: what to know, with the options that settle it.
        names: frequent values and their rows, the most frequent first; of a target or group alone.
        rare: number of values in fewer than `RARE_ROWS` rows.
    """

    name: str
    kind: str
    missing: int
    distinct: int
    span: str = ""
    findings: tuple[Finding, ...] = ()
    names: tuple[tuple[str, int], ...] = field(default=(), kw_only=True)
    rare: int = field(default=0, kw_only=True)


def inspect_column(name: str, column: pd.Series, recipe: Recipe) -> ColumnReport:
    """Returns what there is to know about a column of `read_as_written`.

    >>> report = inspect_column("zip", pd.Series(["01067", "99084"] * 20), Recipe())
    >>> report.kind, report.findings[0].flag("zip")
    ('category', '--categorical zip')
    """
    if is_time(column):
        column = days(column)
        found = [] if name in recipe.columns("date") else [Finding("dates by type", "date", "iso")]
        known = column.dropna()
        return ColumnReport(name, "date", len(column) - len(known), known.nunique(), "", tuple(found))
    try:
        counts = _counted(column)
    except TypeError:  # bytes; lists and dictionaries, which have no hash
        return ColumnReport(name, "text", 0, 0, "", (Finding("neither numbers nor texts", "drop"),))
    codes, texts = recipe.missing_texts(name), pd.Series(counts.index, dtype="string")
    gone = counts.index.isin(MISSING_TEXTS.union(codes))
    if codes:
        numbers = as_numbers(texts, recipe.decimal_of(name), recipe.thousands_of(name))
        gone |= (numbers.notna() & without_codes(numbers, codes).isna()).to_numpy()
    known = counts[~gone]
    missing, found = len(column) - int(known.sum()), []
    written = [f"{text!r} in {rows:,}" for text, rows in counts[gone].items() if text]
    if written:
        found.append(Finding(f"missing values written {', '.join(written)}"))
    if known.empty:
        return ColumnReport(name, "empty", missing, 0, "", (*found, Finding("no value at all", "drop")))
    kind, span, further = _judged(name, known, recipe)
    if len(known) == 1 and not missing and name not in (recipe.target, *recipe.group):
        kind, span, further = "constant", "", [Finding("one value in all rows", "drop")]
    settled = {option for option, columns in recipe.named().items() if name in columns}
    if settled & {"target", "group", "weight"}:  # a class may be anything
        further = [finding for finding in further if finding.option not in ("drop", "bounds", "numeric")]
    further = [finding for finding in further if finding.option not in settled]
    return ColumnReport(
        name,
        kind,
        missing,
        len(known),
        span,
        (*found, *further),
        names=tuple((str(text), int(rows)) for text, rows in known.items() if rows >= RARE_ROWS)[
            :MANY_CATEGORIES
        ]
        if settled & {"target", "group"}
        else (),
        rare=int((known < RARE_ROWS).sum()) if kind == "category" or settled & {"target", "group"} else 0,
    )


def _counted(column: pd.Series) -> pd.Series:
    """Rows of each text, the most frequent first."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        counts = column.astype(float).value_counts()
        return counts.set_axis(pd.Index([f"{value:.12g}" for value in counts.index], dtype=object))
    counts = column.value_counts()  # fewer texts are stripped so
    if any(isinstance(value, bytes) for value in counts.index):
        raise TypeError("bytes")
    return counts.groupby(counts.index.astype("string").str.strip()).sum().sort_values(ascending=False)


def _judged(name: str, known: pd.Series, recipe: Recipe) -> tuple[str, str, list[Finding]]:
    """Kind, span and findings of the known values, given as rows by text."""
    text, rows = pd.Series(known.index, dtype="string"), known.to_numpy()
    if name in recipe.categorical:
        return _texts(text, rows)
    if name not in recipe.columns("date"):
        german = sorted(_MARKS, key=lambda pair: pair[0] != ",") if recipe.sep == ";" else _MARKS
        marks = [(recipe.decimal_of(name), recipe.thousands_of(name)), *german]
        decimal, thousands = _best(marks, lambda pair: _share(as_numbers(text[:_SAMPLE], *pair), rows))
        numbers = as_numbers(text, decimal, thousands)
        if _share(numbers, rows) >= 1 - FEW_TEXTS or name in recipe.numeric:
            found = _marks_found(name, text, decimal, thousands, recipe)
            return _numbers(text, numbers, rows, found)
    stated = dict(recipe.date).get(name)
    if (
        stated is None
        and _share(text[:_SAMPLE].where(text[:_SAMPLE].str.contains(_LIKE_A_DATE)), rows) < 1 - FEW_TEXTS
    ):
        return _texts(text, rows)
    formats = _FORMATS if stated is None else (stated,)
    form = _best(formats, lambda each: _share(read_dates(text[:_SAMPLE], each), rows))
    dates = read_dates(text, form)
    if _share(dates, rows) >= 1 - FEW_TEXTS or stated is not None:
        return "date", "", [*_date_found(text, rows, form), *_slips(text, dates, rows, "date")]
    return _texts(text, rows)


def _best(options: Sequence[_Option], share: Callable[[_Option], float]) -> _Option:
    """The first option that reads all rows, or else the one that reads most."""
    shares: list[float] = []
    for option in options:
        shares.append(share(option))
        if shares[-1] == 1.0:
            return option
    return options[int(np.argmax(shares))]


def _share(values: pd.Series, rows: np.ndarray) -> float:
    """The share of the rows whose value could be read."""
    rows = rows[: len(values)]
    return float(rows[values.notna().to_numpy()].sum() / max(1, rows.sum()))


def _marks_found(
    name: str, text: pd.Series, decimal: str, thousands: str | None, recipe: Recipe
) -> list[Finding]:
    """Marks within numbers other than those of the recipe."""
    found = []
    if thousands != recipe.thousands_of(name) and thousands is not None:
        found.append(Finding(f"{_word(thousands)} between thousands", "thousands", thousands))
    if decimal != recipe.decimal_of(name):
        found.append(Finding(f"decimal {_word(decimal)}", "decimal", decimal))
    if found and text.str.fullmatch(r"[+-]?([1-9]\d{0,2}([.,]\d{3})*|0)").all():
        found.append(Finding("the mark may be a decimal one or one between thousands: check"))
    return found


def _word(mark: str) -> str:
    return next(word for word, other in MARKS.items() if other == mark)


def _numbers(
    text: pd.Series, numbers: pd.Series, rows: np.ndarray, found: list[Finding]
) -> tuple[str, str, list[Finding]]:
    whole = text.str.fullmatch(r"\d+")
    if whole.all() and text.str.fullmatch(r"0\d+").any():
        if len(text) > MOST_CATEGORIES:
            says = f"leading zeros: a code, with {len(text):,} values too many for categories"
            return "category", "", [Finding(says, "drop")]
        return "category", "", [Finding("leading zeros: a code, not a number", "categorical")]
    if whole.all() and text.str.fullmatch(r"(19|20)\d{6}").all() and read_dates(text, "%Y%m%d").notna().all():
        return "date", "", [Finding("dates without separators", "date", "%Y%m%d")]
    found = [*found, *_slips(text, numbers, rows, "numeric")]
    values, weights = numbers[numbers.notna()].to_numpy(), rows[numbers.notna().to_numpy()]
    if np.isinf(values).any() or (np.abs(values) > LARGEST_NUMBER).any():
        return "number", "", [*found, Finding(f"infinite numbers, or beyond {LARGEST_NUMBER:g}", "drop")]
    if len(values) >= MANY_ROWS and (weights == 1).all() and (values % 1 == 0).all():
        return "number", "", [*found, Finding("another whole number in each row: names rows", "drop")]
    for code in MISSING_NUMBERS:
        others = values[values != code]
        if code in values and _apart(code, others):
            count = int(weights[values == code].sum())
            found.append(Finding(f"{code} in {count:,} rows, far from the others", "na", str(code)))
            values, weights = others, weights[values != code]
    order = np.argsort(values)
    ends = np.interp([0.25, 0.5, 0.75], np.cumsum(weights[order]) / weights.sum(), values[order])
    far = np.abs(values - ends[1]) > FAR * max(ends[2] - ends[0], 1e-300)
    if ends[2] > ends[0] and far.any():
        says = f"{int(weights[far].sum()):,} rows lie far out: state a public range"
        found.append(Finding(says, "bounds", "LOW:HIGH"))
    return "number", f"{_decade(values.min(), -1)} to {_decade(values.max(), 1)}", found


def _apart(code: int, others: np.ndarray) -> bool:
    """Tells whether a code for missing values lies apart from all other numbers."""
    if len(others) < 2:
        return False
    low, high, gap = others.min(), others.max(), 0.5 * np.ptp(others)
    if code < 0:
        return bool(code < low - gap or (low >= 0 and (others % 1 == 0).all()))
    return bool(code > high + max(gap, 1.0))


def _decade(value: float, towards: int) -> str:
    """The next power of ten below (towards=-1) or above (1), or 0: it tells no row's value."""
    if value == 0:
        return "0"
    outwards = (value > 0) == (towards > 0)
    power = math.log10(abs(value))
    tens = 10.0 ** (math.ceil(power) if outwards else math.floor(power))
    if abs(value) < 1:
        tens = 1.0 if outwards else 0.0
    return f"{math.copysign(tens, value) if tens else 0:,.0f}"


def _slips(text: pd.Series, values: pd.Series, rows: np.ndarray, option: str) -> list[Finding]:
    """Texts among numbers or dates: known words for missing values, and others."""
    lost = values.isna().to_numpy()
    words = lost & text.str.lower().isin(MISSING_WORDS).to_numpy()
    found = [
        Finding(f"{word!r} in {int(count):,} rows", "na", str(word))
        for word, count in zip(text[words], rows[words], strict=True)
    ]
    if others := int(rows[lost & ~words].sum()):
        kind = {"numeric": "numbers", "date": "dates"}[option]
        says = f"{others:,} of {int(rows.sum()):,} values are no {kind}; they would count as missing"
        found.append(Finding(says, option if option == "numeric" else ""))
    return found


def _date_found(text: pd.Series, rows: np.ndarray, form: str) -> list[Finding]:
    found = [Finding("dates", "date", form)]
    for first, second in (("%d/%m", "%m/%d"), ("%d-%m", "%m-%d")):
        other = form.replace(first, second)
        if other != form and _share(read_dates(text, other), rows) >= _share(read_dates(text, form), rows):
            found.append(Finding(f"{other} fits as well: check which is meant"))
    return found


def _texts(text: pd.Series, rows: np.ndarray) -> tuple[str, str, list[Finding]]:
    total, found = int(rows.sum()), []
    if len(text) > 1 and (rows == 1).all() and total >= RARE_ROWS:
        return "text", "", [Finding("another text in each row: names rows", "drop")]
    if len(text) > MOST_CATEGORIES:
        return "text", "", [Finding(f"{len(text):,} texts, too many for categories", "drop")]
    if len(text) > MANY_CATEGORIES:
        found.append(Finding(f"{len(text):,} categories, an input for each"))
    if rare := int((rows < RARE_ROWS).sum()):
        found.append(Finding(f"{rare:,} of {len(text):,} categories have fewer than {RARE_ROWS} rows"))
    if text.str.casefold().nunique() < len(text):
        found.append(Finding("some categories differ in capitals alone"))
    return "category", "", found
