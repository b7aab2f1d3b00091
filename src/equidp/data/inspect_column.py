"""What there is to know about one column of a table before it is used, without a cell of any row."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from equidp.data.checks import LARGEST_NUMBER, MOST_CATEGORIES
from equidp.data.columns import (
    CODES,
    DAY_ZERO,
    MISSING_TEXTS,
    as_numbers,
    days,
    folded,
    is_number,
    is_time,
    long_numbers,
    read_dates,
    texts,
    without_codes,
    without_dates,
)
from equidp.data.guesses import (
    MANY_ROWS,
    MISSING_NUMBERS,
    MISSING_WORDS,
    Written,
    days_for_none,
    fall_together,
    share_of,
    word_of,
    written_dates,
    written_numbers,
)
from equidp.data.plain import as_key
from equidp.data.recipe import Recipe
from equidp.data.understood import odd_types

RARE_ROWS = 20
"""A class, group or category of fewer rows is counted, but not named."""
MANY_CATEGORIES = 50
FAR = 20
"""Numbers farther from the median than this many interquartile ranges are outliers."""


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
        value = word_of(self.value) if self.option in ("thousands", "decimal") else self.value
        option = self.option.replace("_", "-")
        return f"--{option} {shlex.quote(f'{as_key(column)}={value}' if value else column)}"


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
        known, durations = days(column).dropna(), pd.api.types.is_timedelta64_dtype(column)
        form = "duration" if durations else "iso"
        further = [Finding("durations by type" if durations else "dates by type", "date", form)]
        further += [] if durations else _days_found(name, known, recipe, "iso")
        settled = {option for option in ("date", "categorical", "drop") if name in recipe.columns(option)}
        found = [finding for finding in further if finding.option not in settled]
        return ColumnReport(name, "date", len(column) - len(known), known.nunique(), "", tuple(found))
    try:
        counts = _counted(column)
    except TypeError:  # bytes; lists and dictionaries, which have no hash
        return ColumnReport(name, "text", 0, 0, "", (Finding("neither numbers nor texts", "drop"),))
    codes, found = recipe.missing_texts(name), []
    written, gone = (
        pd.Series(counts.index, dtype="string"),
        counts.index.isin(MISSING_TEXTS.union(codes).difference(recipe.known_texts(name))),
    )
    if codes:
        numbers = as_numbers(written, recipe.decimal_of(name), recipe.thousands_of(name))
        gone |= (numbers.notna() & without_codes(numbers, codes).isna()).to_numpy()
    if name in recipe.fold and not gone.all():
        counts = counts[~gone].groupby(folded(written[~gone]).to_numpy()).sum().sort_values(ascending=False)
        known = counts
    else:
        known = counts[~gone]
    missing = len(column) - int(known.sum())
    told = (
        [f"{text!r} in {rows:,}" for text, rows in counts[gone].items() if text]
        if name not in recipe.fold
        else []
    )
    if told:
        words = any(map(str.isalpha, "".join(counts[gone].index)))
        value = "; a value of its own, such as a country? Say so (--not-na)" * (
            words and not is_number(column) and name not in recipe.columns("not_na")
        )
        found.append(Finding(f"missing values written {', '.join(told)}{value}"))
    if known.empty:
        return ColumnReport(name, "empty", missing, 0, "", (*found, Finding("no value at all", "drop")))
    kind, span, further = _judged(name, known, recipe)
    if len(known) == 1 and not missing and name not in (recipe.target, *recipe.group):
        kind, span, further = "constant", "", [Finding("one value in all rows", "drop")]
    settled = {option for option, columns in recipe.named().items() if name in columns}
    if settled & {"target", "group", "weight"}:  # a class may be anything
        further = [finding for finding in further if finding.option not in ("drop", "bounds", "numeric")]
    if "person" in settled:
        further = []
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
    if odd_types(column):
        raise TypeError("bytes, lists and the like")
    counts = column.value_counts()  # fewer texts are stripped so
    written = texts(pd.Series(counts.index)).str.strip()
    return counts.groupby(written.to_numpy(dtype=object)).sum().sort_values(ascending=False)


def _judged(name: str, known: pd.Series, recipe: Recipe) -> tuple[str, str, list[Finding]]:
    """Kind, span and findings of the known values, given as rows by text."""
    text, rows = pd.Series(known.index, dtype="string"), known.to_numpy()
    if name in recipe.categorical or name in recipe.fold:
        return _texts(name, text, rows, recipe)
    stated = dict(recipe.date).get(name)
    if stated is None:
        numeric = name in recipe.numeric
        if (written := written_numbers(name, text, rows, recipe, stated=numeric)) is not None:
            found = _marks_found(name, text, written, recipe)
            return _numbers(text, written, rows, found)
    form = written_dates(text, rows) if stated is None else stated
    if form is None:
        return _texts(name, text, rows, recipe)
    dates = without_dates(read_dates(text, form), recipe.missing_texts(name), form)
    repeated = dates.repeat(rows).dropna()
    found = [*_date_found(text, rows, form), *_days_found(name, repeated, recipe, form)]
    return "date", "", [*found, *_slips(text, dates, rows, "date")]


def _days_found(name: str, known: pd.Series, recipe: Recipe, form: str) -> list[Finding]:
    """Dates that stand for none, as a cell may write them."""
    stated = {
        float(np.floor(day))
        for day in read_dates(pd.Series(recipe.missing_texts(name), dtype="string"), f"iso|{form}").dropna()
    }
    return [
        Finding(f"{day} in {rows:,} rows, apart from the other dates", "na", day)
        for day, rows in days_for_none(known).items()
        if float((pd.Timestamp(day) - DAY_ZERO) / pd.Timedelta(days=1)) not in stated
    ]


def _marks_found(name: str, text: pd.Series, written: Written, recipe: Recipe) -> list[Finding]:
    """Marks within and around numbers other than those of the recipe."""
    options, found = written.options(name, recipe), []
    if written.amounts:
        found.append(
            Finding("numbers with marks, such as a currency, a unit, percent or brackets", "numeric")
        )
    if "thousands" in options:
        found.append(
            Finding(f"{word_of(options['thousands'])} between thousands", "thousands", options["thousands"])
        )
    if "decimal" in options:
        found.append(Finding(f"decimal {word_of(options['decimal'])}", "decimal", options["decimal"]))
    if options and text.str.fullmatch(r"[+-]?([1-9]\d{0,2}([.,]\d{3})*|0)").all():
        found.append(Finding("the mark may be a decimal one or one between thousands: check"))
    return found


def _numbers(
    text: pd.Series, written: Written, rows: np.ndarray, found: list[Finding]
) -> tuple[str, str, list[Finding]]:
    numbers, whole = written.values, text.str.fullmatch(r"\d+")
    code = ""
    if whole.all() and text.str.fullmatch(r"0\d+").any():
        code = "leading zeros"
    elif long_numbers(text, numbers).any() and not found:
        code = "more digits than numbers tell apart"
    elif text.str.fullmatch(CODES).any() and text.str.fullmatch(rf"{CODES}|\d+").all():
        code = "written as 3E2 or +49"
    if code and len(text) > MOST_CATEGORIES:
        says = f"{code}: a code, with {len(text):,} values too many for categories"
        return "category", "", [Finding(says, "drop")]
    if code:
        return "category", "", [Finding(f"{code}: a code, not a number", "categorical")]
    if not found and numbers.nunique() < int(numbers.notna().sum()) <= MANY_CATEGORIES:
        found = [
            Finding("one number written in several ways, as 1.1 and 1.10 are: a code? Say so (--categorical)")
        ]
    if whole.all() and text.str.fullmatch(r"(19|20)\d{6}").all() and read_dates(text, "%Y%m%d").notna().all():
        return "date", "", [Finding("dates without separators", "date", "%Y%m%d")]
    found = [*found, *_slips(text, numbers, rows, "numeric")]
    if not numbers.notna().any():
        return "number", "", found
    values, weights = numbers[numbers.notna()].to_numpy(), rows[numbers.notna().to_numpy()]
    if np.isinf(values).any() or (np.abs(values) > LARGEST_NUMBER).any():
        return "number", "", [*found, Finding(f"infinite numbers, or beyond {LARGEST_NUMBER:g}", "drop")]
    if not written.amounts and len(values) >= MANY_ROWS and (weights == 1).all() and (values % 1 == 0).all():
        return "number", "", [*found, Finding("another whole number in each row: names rows", "drop")]
    for number in MISSING_NUMBERS:
        others = values[values != number]
        if number in values and _apart(number, others):
            count = int(weights[values == number].sum())
            found.append(Finding(f"{number} in {count:,} rows, far from the others", "na", str(number)))
            values, weights = others, weights[values != number]
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
    found = [Finding("durations" if form == "duration" else "dates", "date", form)]
    for first, second in (("%d/%m", "%m/%d"), ("%d-%m", "%m-%d")):
        other = form.replace(first, second)
        if other != form and share_of(read_dates(text, other), rows) >= share_of(
            read_dates(text, form), rows
        ):
            found.append(Finding(f"{other} fits as well: check which is meant"))
    return found


def _texts(name: str, text: pd.Series, rows: np.ndarray, recipe: Recipe) -> tuple[str, str, list[Finding]]:
    total, found = int(rows.sum()), []
    fewer = 0 if name in recipe.fold else fall_together(text)
    if len(text) > 1 and (rows == 1).all() and total >= RARE_ROWS:
        return "text", "", [Finding("another text in each row: names rows", "drop")]
    if len(text) > MOST_CATEGORIES and len(text) - fewer > MOST_CATEGORIES:
        return "text", "", [Finding(f"{len(text):,} texts, too many for categories", "drop")]
    if fewer:
        says = (
            f"{fewer:,} of {len(text):,} texts differ from others in capitals, spaces or leading zeros alone"
        )
        crowded = len(text) > MOST_CATEGORIES
        found.append(
            Finding(f"{says}: the same?{'' if crowded else ' Say so (--fold)'}", "fold" if crowded else "")
        )
    if len(text) > MANY_CATEGORIES:
        found.append(Finding(f"{len(text):,} categories, an input for each"))
    if rare := int((rows < RARE_ROWS).sum()):
        found.append(Finding(f"{rare:,} of {len(text):,} categories have fewer than {RARE_ROWS} rows"))
    return "category", "", found
