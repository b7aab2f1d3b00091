"""Guesses of what texts are if nothing is stated: numbers with marks, or dates of a format.

They name what a recipe may say, and change no value. The first lines hold their limits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.tables.cells import LIKE_DATES, LIKE_DURATIONS, MISSING_WORDS, as_amounts, as_numbers, read_dates
from equidp.tables.recipe import NUMBER

with require_extra("tables"):
    import pandas as pd

_FEW_SLIPS = 0.1
"""Share of a column's values that may be slips among numbers or dates. A column with more holds texts."""
_MANY_NUMBERS = 50
"""With more different numbers than this, half of a column measures something, for any other half."""
_SAMPLE = 500
_MARKS = ((".", None), (".", ","), (",", None), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
_MARK_WORDS = {",": "commas", ".": "points", " ": "spaces", "'": "apostrophes"}
_FORMATS = (
    *("iso", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y"),
    *("%m-%d-%Y", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "duration", "%H:%M", "%H:%M:%S"),
)
"""Formats of dates that are sought. A recipe takes any other of strptime's."""
_EITHER_MARK = r"[+-]?([1-9]\d{0,2}([.,]\d{3})*|0)"
"""Numbers whose mark may be a decimal one or one between thousands."""
_LIKE_A_DATE = r"\d.*[-./ :].*\d|-?\d+ days?"

Ints = npt.NDArray[np.int64]
Options = tuple[tuple[str, str], ...]


class Guess(NamedTuple):
    """Numbers or dates that distinct texts may be.

    Attributes:
        values: floats or days, [k], NaN if a text is none.
        options: fields of a column's section that read them so, or () if nothing is missing.
        says: these in words.
        check: a word on options that would read as many, or "" without any.
    """

    values: pd.Series
    options: Options
    says: str
    check: str = ""


def are_words(text: pd.Series) -> npt.NDArray[np.bool_]:
    """Return which texts are known words for missing values, or errors of spreadsheets, [k]."""
    words: npt.NDArray[np.bool_] = text.str.lower().str.fullmatch(MISSING_WORDS).to_numpy(dtype=bool)
    return words


def guess_numbers(text: pd.Series, rows: Ints, stated: tuple[str, str | None], sep: str) -> Guess | None:
    """Return how distinct texts write numbers, or None if few of them do.

    Args:
        text: distinct texts, [k].
        rows: number of rows of each, [k].
        stated: decimal mark and mark between thousands.
        sep: separator of the file: a semicolon speaks for decimal commas.
    """
    words = are_words(text)
    plain, counts = text[~words], rows[~words]
    if not counts.sum() or counts.sum() * 2 < rows.sum():
        return None
    likely = sorted(_MARKS, key=lambda pair: pair[0] != ",") if sep == ";" else _MARKS
    marks = max((stated, *likely), key=lambda pair: _share(as_amounts(plain[:_SAMPLE], *pair), counts))
    values = as_amounts(text, *marks)
    share = _share(values[~words], counts)
    if share < 1 - _FEW_SLIPS and not (share >= 0.5 and values.nunique() > _MANY_NUMBERS):
        return None
    options, says = [], []
    amounts = as_numbers(text, *marks).count() < values.count()
    if amounts:
        options.append(("kind", NUMBER))
        says.append("marks (a currency, a unit, %, k for thousands, M for millions, or brackets)")
    if marks[1] is not None and marks[1] != stated[1]:
        options.append(("thousands", marks[1]))
        says.append(f"{_MARK_WORDS[marks[1]]} between thousands")
    if marks[0] != stated[0]:
        options.append(("decimal", marks[0]))
        says.append(f"decimal {_MARK_WORDS[marks[0]]}")
    either = options and not amounts and text[values.notna()].str.fullmatch(_EITHER_MARK).all()
    check = " (the mark may be a decimal one or one between thousands: check)" if either else ""
    return Guess(values, tuple(options), " and ".join(says), check)


def are_like_dates(text: pd.Series) -> bool:
    return bool(text.str.fullmatch(f"(?:{LIKE_DATES})|(?:{LIKE_DURATIONS})").all())


def guess_dates(text: pd.Series, rows: Ints) -> Guess | None:
    """Return the date format of distinct texts with these row counts, or two formats with | between them.

    None if most of the texts are not dates.

    >>> guess_dates(pd.Series(["31.01.2024", "2024-02-01"], dtype="string"), np.array([1, 1])).options
    (('format', 'iso|%d.%m.%Y'),)
    """
    words = are_words(text)
    plain, counts = text[~words], rows[~words]
    sample = plain[:_SAMPLE]
    if _share(sample.where(sample.str.contains(_LIKE_A_DATE)), counts) < 1 - _FEW_SLIPS:
        return None

    def share_of(form: str) -> float:
        return _share(read_dates(plain, form), counts)

    form = _best_format(sample, counts)
    lost = read_dates(plain, form).isna()
    if lost.any() and not lost.all():
        other = _best_format(plain[lost][:_SAMPLE], counts[lost])
        form = max((form, f"{form}|{other}"), key=share_of)
    if share_of(form) < 1 - _FEW_SLIPS:
        return None
    swapped = form.replace("%d", "%D").replace("%m", "%d").replace("%D", "%m")
    check = f" ({swapped} fits as well: check which is meant)"
    ambiguous = form[:3] in ("%d/", "%d-") and share_of(swapped) >= share_of(form)
    return Guess(read_dates(text, form), (("format", form),), noun_of_dates(form), check * ambiguous)


def _share(values: pd.Series, rows: Ints) -> float:
    """Return the share of the rows whose value could be read."""
    rows = rows[: len(values)]
    return float(rows[values.notna().to_numpy()].sum() / max(1, rows.sum()))


def _best_format(text: pd.Series, rows: Ints) -> str:
    """Return the format that reads most rows, the first of several."""
    return max(_FORMATS, key=lambda form: _share(read_dates(text, form), rows))


def noun_of_dates(form: str) -> str:
    """Return what columns of a format hold, in words."""
    return {"duration": "durations", "%H:%M": "times of day", "%H:%M:%S": "times of day"}.get(form, "dates")
