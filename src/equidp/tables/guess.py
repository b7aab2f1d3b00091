"""Guesses of what texts are where nothing is stated: numbers with marks, or dates of a format.

They name what a recipe may say, and change no value. The first lines hold their limits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.tables.cells import LIKE_DATES, LIKE_DURATIONS, MISSING_WORDS, as_amounts, as_numbers, read_dates
from equidp.tables.recipe import NUMBER

with require_extra("tables"):
    import pandas as pd

_FEW_SLIPS = 0.1
"""Share of a column's values that may be slips among numbers; a column with more holds texts."""
_MANY_NUMBERS = 50
"""With more different numbers than this, a column measures something, whatever else it holds."""
_SAMPLE = 500
_MARKS = ((".", None), (".", ","), (",", None), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
_MARK_WORDS = {",": "commas", ".": "points", " ": "spaces", "'": "apostrophes"}
_FORMATS = (
    *("iso", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y"),
    *("%m-%d-%Y", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "duration", "%H:%M", "%H:%M:%S"),
)
"""Formats of dates that are sought; a recipe takes any other of strptime's."""
_EITHER_MARK = r"[+-]?([1-9]\d{0,2}([.,]\d{3})*|0)"
"""Numbers whose mark may be a decimal one or one between thousands."""
_LIKE_A_DATE = r"\d.*[-./ :].*\d|-?\d+ days?"
_FIRST = 100

Ints = npt.NDArray[np.int64]
Options = tuple[tuple[str, str], ...]


def are_words(text: pd.Series) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = text.str.lower().isin(MISSING_WORDS).to_numpy(dtype=bool)
    return found


def guess_numbers(
    text: pd.Series, rows: Ints, own: tuple[str, str | None], sep: str
) -> tuple[pd.Series, Options, str, str] | None:
    """Return how distinct texts write numbers; None if few of them do.

    Known words for missing values, and error texts of spreadsheets, are ignored.

    Args:
        text: distinct texts, [k].
        rows: number of rows of each, [k].
        own: decimal mark and mark between thousands that are stated.
        sep: separator of the file: a semicolon speaks for decimal commas.

    Returns:
        Floats, NaN where a text is not a number; the options that the recipe lacks to read them; these in
        words; and a word on marks that can be read in two ways.
    """
    words = are_words(text)
    plain, counts = text[~words], rows[~words]
    if plain.empty or counts.sum() * 2 < rows.sum():
        return None
    marks_first = sorted(_MARKS, key=lambda pair: pair[0] != ",") if sep == ";" else _MARKS
    for read in (as_numbers, as_amounts):
        sample = plain[:_SAMPLE]
        shares = {pair: _share_of(read(sample, *pair), counts) for pair in dict.fromkeys((own, *marks_first))}
        marks = max(shares, key=lambda pair: shares[pair])
        values = read(text, *marks)
        share = _share_of(values[~words], counts)
        many = values.nunique() > _MANY_NUMBERS and share >= 0.5
        if share < 1 - _FEW_SLIPS and not (many and read is as_amounts):
            continue
        amounts = read is as_amounts and not as_numbers(text, *marks).notna().equals(values.notna())
        return values, *_marks(values, marks, own, amounts, text, rows)
    return None


def _marks(
    values: pd.Series,
    marks: tuple[str, str | None],
    own: tuple[str, str | None],
    amounts: bool,
    text: pd.Series,
    rows: Ints,
) -> tuple[Options, str, str]:
    """Return the options for marks that a recipe lacks, in words too, and whether to check them."""
    options, detail = [], []
    if amounts:
        options.append(("kind", NUMBER))
        detail.append("marks (a currency, a unit, %, k for thousands, M for millions, or brackets)")
    if marks[1] is not None and marks[1] != own[1]:
        options.append(("thousands", marks[1]))
        detail.append(f"{_MARK_WORDS[marks[1]]} between thousands")
    if marks[0] != own[0]:
        options.append(("decimal", marks[0]))
        detail.append(f"decimal {_MARK_WORDS[marks[0]]}")
    readable = int(rows[values.notna().to_numpy()].sum())
    where = f", in {readable:,} of its {int(rows.sum()):,} values"
    known = text[values.notna()]
    either = options and not amounts and known.str.fullmatch(_EITHER_MARK).all()
    check = " (the mark may be a decimal one or one between thousands: check)" if either else ""
    return tuple(options), " and ".join(detail) + where, check


def _share_of(values: pd.Series, rows: Ints) -> float:
    """Return the share of the rows whose value could be read."""
    rows = rows[: len(values)]
    return float(rows[values.notna().to_numpy()].sum() / max(1, rows.sum()))


def are_like_dates(text: pd.Series) -> bool:
    like = f"(?:{LIKE_DATES})|(?:{LIKE_DURATIONS})"
    return all(part.str.fullmatch(like).all() for part in (text[:_FIRST], text))


def guess_dates(text: pd.Series, rows: Ints) -> str | None:
    """Return the date format of distinct texts with these row counts, or two formats with | between them.

    None if most of the texts are not dates.

    >>> guess_dates(pd.Series(["31.01.2024", "2024-02-01"], dtype="string"), np.array([1, 1]))
    'iso|%d.%m.%Y'
    """
    words = are_words(text)
    text, rows = text[~words], rows[~words]
    sample = text[:_SAMPLE]
    if _share_of(sample.where(sample.str.contains(_LIKE_A_DATE, regex=True)), rows) < 1 - _FEW_SLIPS:
        return None
    form = _best_format(sample, rows)
    found = read_dates(text, form)
    if (lost := found.isna()).any() and found.notna().any():
        rest, left = text[lost], rows[lost.to_numpy()]
        other = _best_format(rest[:_SAMPLE], left)
        both = f"{form}|{other}"
        of_rest, of_all = _share_of(read_dates(rest, other), left), _share_of(read_dates(text, both), rows)
        if of_rest > 0.5 and of_all >= 1 - _FEW_SLIPS:
            return both
    return form if _share_of(found, rows) >= 1 - _FEW_SLIPS else None


def _best_format(text: pd.Series, rows: Ints) -> str:
    """Return the first format that reads all rows, or else the one that reads most."""
    shares: list[float] = []
    for form in _FORMATS:
        shares.append(_share_of(read_dates(text, form), rows))
        if shares[-1] == 1.0:
            return form
    return _FORMATS[int(np.argmax(shares))]


def noun_of_dates(form: str) -> str:
    """Return what columns of a format hold, in words."""
    if form == "duration":
        return "durations"
    return "times of day" if form in ("%H:%M", "%H:%M:%S") else "dates"


def other_order(text: pd.Series, rows: Ints, form: str) -> str:
    """Return a word on the format with day and month in the other order, if it reads as many rows."""
    for first, second in (("%d/%m", "%m/%d"), ("%d-%m", "%m-%d")):
        other = form.replace(first, second)
        if other != form and _share_of(read_dates(text, other), rows) >= _share_of(
            read_dates(text, form), rows
        ):
            return f" ({other} fits as well: check which is meant)"
    return ""
