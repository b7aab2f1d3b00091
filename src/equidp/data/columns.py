"""What the cells of a column mean: numbers, texts, dates or nothing, as a recipe says."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from equidp.data.recipe import Recipe

MISSING = "missing"
MISSING_TEXTS = frozenset(
    (
        *("", "?", "NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "NULL", "null", "None"),
        *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    )
)
"""Texts that stand for a missing value in every column: pandas' own, and the "?" of census files."""
DAY_ZERO = pd.Timestamp("2000-01-01")
"""Dates become days since this day."""
LIKE_DATES = r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[/.]\d{1,2}[/.]\d{4}"
UNREADABLE_SHARE = 0.5
"""Share of a column that may be unreadable as the numbers or dates that it was said to hold."""
_FIRST = 1000
_NOT_PLAIN = (list, tuple, dict, set, bytes, np.ndarray)


@dataclass(frozen=True)
class Columns:
    """A table as a recipe understands it.

    Attributes:
        table: columns of floats (NaN where missing) or of strings (None where missing).
        problems: a sentence for each column that cannot be used, which the table lacks.
        notes: a sentence for each column of which some cells counted as missing, or lost leading zeros.
    """

    table: pd.DataFrame
    problems: tuple[str, ...]
    notes: tuple[str, ...]


class _Problem(Exception):
    """Why a column cannot be used, and what to do."""


def understood(raw: pd.DataFrame, recipe: Recipe) -> Columns:
    """Returns the columns of a file, as `read_as_written` gives them, as a recipe understands them.

    Each cell is understood without regard to other rows, but in columns that the recipe names under none of
    categorical, numeric and date, which hold numbers where every known value is one.

    >>> understood(pd.DataFrame({"zip": ["01067"], "age": ["44"]}), Recipe(categorical=("zip",))).table
         zip   age
    0  01067  44.0
    """
    table, problems, notes = {}, [], []
    for name in raw.columns:
        try:
            table[name], note = _understood(name, raw[name], recipe)
            notes += [note] if note else []
        except _Problem as problem:
            problems.append(str(problem))
    return Columns(pd.DataFrame(table, index=raw.index), tuple(problems), tuple(notes))


def _understood(name: str, column: pd.Series, recipe: Recipe) -> tuple[pd.Series, str]:
    """A column of floats or of strings, and a note on cells that counted as missing."""
    codes = recipe.missing_texts(name)
    dates = dict(recipe.date)
    if is_time(column):
        if name not in dates:
            raise _Problem(_dates(name))
        return days(column), ""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        numbers = without_codes(column.astype(float), codes)
        if name not in (*recipe.categorical, *dates):
            return numbers, ""
        column = numbers.map(lambda value: None if np.isnan(value) else f"{value:.12g}").astype(object)
    odd = {type(value).__name__ for value in column.dropna() if isinstance(value, _NOT_PLAIN)}
    if odd:
        raise _Problem(
            f"column {name!r} holds values of type {', '.join(sorted(odd))}; expected numbers or texts. "
            "Spread it over columns, or drop it (--drop)."
        )
    text = as_cells(column, codes)
    known = text[text.notna()]
    if name in dates:
        return _readable(name, known, read_dates(known, dates[name]), f"dates ({dates[name]})", column.index)
    if name not in recipe.categorical:
        marks = recipe.decimal_of(name), recipe.thousands_of(name)
        stated = name in recipe.numeric
        # The first values tell most columns of texts, at a thousandth of the time.
        plain = stated or as_numbers(known.iloc[:_FIRST], *marks).notna().all()
        numbers = as_numbers(known, *marks) if plain else pd.Series(np.nan, index=known.index)
        if stated:
            numbers, note = _readable(name, known, numbers, "numbers", column.index)
            return without_codes(numbers, codes), note
        if numbers.notna().all():
            note = ""
            if known.str.fullmatch(r"0\d+").any():
                zeros = f"column {name!r} holds numbers with leading zeros, which are lost"
                note = f"{zeros}; if it is a code, such as a ZIP code, say so (--categorical {name!r})."
            return without_codes(numbers, codes).reindex(column.index), note
        if known.iloc[:_FIRST].str.fullmatch(LIKE_DATES).all() and known.str.fullmatch(LIKE_DATES).all():
            iso = known.str.contains(r"^\d{4}-").all()
            raise _Problem(_dates(name, "" if iso else "=dayfirst"))
    return text.astype(object).where(text.notna(), None), ""


def _readable(
    name: str, known: pd.Series, values: pd.Series, kind: str, index: pd.Index
) -> tuple[pd.Series, str]:
    """The values, and a note where some cells are none; raises where most are none."""
    lost = values[values.isna()]
    if len(lost) > UNREADABLE_SHARE * len(known):
        raise _Problem(
            f"column {name!r} is to hold {kind}, but {len(lost):,} of its {len(known):,} values are not, "
            f"{row_of(lost)}; equidp inspect shows what it holds."
        )
    note = (
        f"column {name!r} is to hold {kind}: {len(lost):,} of its {len(known):,} values are not, "
        f"{row_of(lost)}, and count as missing."
        if len(lost)
        else ""
    )
    return values.reindex(index), note


def is_time(column: pd.Series) -> bool:
    """Tells whether a column holds points in time or durations by its type."""
    kinds = pd.api.types
    return bool(kinds.is_datetime64_any_dtype(column) or kinds.is_timedelta64_dtype(column))


def days(column: pd.Series) -> pd.Series:
    """Returns points in time as days since `DAY_ZERO`, in UTC where they have a zone; durations as days."""
    if pd.api.types.is_datetime64_any_dtype(column):
        column = (column if column.dt.tz is None else column.dt.tz_convert(None)) - DAY_ZERO
    return (column / pd.Timedelta(days=1)).astype(float)


def as_cells(column: pd.Series, codes: Collection[str] = ()) -> pd.Series:
    """Returns texts without space around them, missing ones as NA."""
    text = column.astype("string").str.strip()
    return text.mask(text.isin(MISSING_TEXTS.union(codes)))


def without_codes(numbers: pd.Series, codes: Collection[str]) -> pd.Series:
    """Returns numbers with NaN in place of those that stand for a missing value."""
    values = pd.to_numeric(pd.Series(list(codes), dtype=object), errors="coerce").dropna().astype(float)
    return numbers.mask(numbers.isin(values)) if len(values) else numbers


def as_numbers(text: pd.Series, decimal: str, thousands: str | None) -> pd.Series:
    """Returns floats, NaN where a text is no number with these marks.

    Marks between thousands must stand between groups of three digits.

    >>> as_numbers(pd.Series(["28,746.52", "1,5"], dtype="string"), ".", ",").tolist()
    [28746.52, nan]
    """
    if thousands is not None:
        mark = r"\s" if thousands == " " else re.escape(thousands)
        grouped = text.str.fullmatch(rf"[+-]?\d{{1,3}}({mark}\d{{3}})+({re.escape(decimal)}\d*)?")
        text = text.where(~grouped, text.str.replace(mark, "", regex=True))
    if decimal != ".":
        text = text.mask(text.str.contains(".", regex=False)).str.replace(decimal, ".", regex=False)
    return pd.to_numeric(text, errors="coerce").astype(float)


def read_dates(text: pd.Series, form: str) -> pd.Series:
    """Returns days since `DAY_ZERO`, NaN where a text is no date of this form.

    >>> read_dates(pd.Series(["02.01.2000"]), "dayfirst").tolist()
    [1.0]
    """
    how = {"iso": "ISO8601", "dayfirst": "mixed", "monthfirst": "mixed"}.get(form, form)
    found = pd.to_datetime(text, format=how, dayfirst=form == "dayfirst", errors="coerce", utc=True)
    return days(found)


def row_of(column: pd.Series) -> str:
    """Tells the row of the first of these cells, without its value, which may be private."""
    return f"the first in row {int(column.index[0]) + 1:,}"


def _dates(name: str, form: str = "") -> str:
    numbers = f"column {name!r} holds dates; make them numbers (--date '{name}{form}')"
    return f"{numbers}, or drop it (--drop {name!r})."
