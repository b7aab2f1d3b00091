"""Meaning of single cells: numbers, dates, texts or nothing."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial

import numpy as np

from equidp._extras import require_extra

with require_extra("tables"):
    import pandas as pd
    import pandas.core.arrays.arrow.extension_types  # so that Arrow knows pandas' periods and intervals
    import pyarrow as pa
    import pyarrow.compute as pc

MISSING = "missing"
MISSING_TEXTS = frozenset((
    "", "?", "NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "NULL", "null", "None", "NaN", "nan",
    "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
))  # fmt: skip
"""Texts that stand for a missing value in every column: pandas' own, and the "?" of census files."""
MISSING_WORDS = (
    r"-{1,2}|\.{1,2}|unk|unknown|unbekannt|k\. ?a\.|keine angabe|missing|none|nil|n\.?[ad]\.?|undefined|tbd|"
    r"error|not (available|applicable|known)|\((null|none)\)|(00|0000)[-/.]00[-/.](00|0000)|err:5\d\d|"
    r"#(ref|value|div/0|name|num|null|spill|calc|error|wert|bezug|zahl|nv|valeur)[!?]?"
)
"""Words that, among numbers or dates, stand for a missing value, as a pattern of small letters."""
DAY_ZERO = pd.Timestamp("2000-01-01")
"""Dates become days since this day."""
LIKE_DATES = r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})([T ].*)?"
LIKE_DURATIONS = r"-?\d+ days?( [+-]?\d{2}:\d{2}:\d{2}(\.\d+)?)?"
"""Durations in the form that pandas writes."""
INEXACT = 2.0**53
"""From here on, floats do not tell whole numbers apart."""

_CURRENCY = (
    r"(?:[A-Z]{0,3}[$¢£¤¥₩₪₫€₱₴₸₹₺₽₿]|EUR|USD|GBP|CHF|JPY|CNY|CAD|AUD|SEK|NOK|DKK|PLN|CZK|TRY|INR|BRL|Euro|euro|"
    r"[Kk]r\.?|zł|Kč|Fr\.?|Rs\.?)"
)
_UNIT = (
    r"(?:kg|lbs?|[ckm]?m|in|ft|d?l|d?L|m[lL]|mmHg|bpm|/min|°[CF]?|h|min|m?s|[kM]?Wh?|V|A|years?|yrs?|days?|Jahre?|Tage?|"
    r"(?:[mµμu]?g|[mµμ]?mol|U|IU)(?:/[dm]?[lL])?|kg/m[²2]|[%‰])"
)
_AMOUNT = (
    rf"^\s*(?P<open>\()?\s*(?P<sign>[+-])?\s*(?:{_CURRENCY})?\s*(?P<inner>[+-])?\s*"
    rf"(?P<number>[\d.,'’\s]*\d[.,]?)\s*(?:(?:{_CURRENCY}|{_UNIT})|"
    rf"(?P<power>[kKM]|[Mm]io\.?|[Mm]rd\.?|bn)\s*(?:{_CURRENCY})?)?\s*(?P<last>-)?\s*(?P<close>\))?\s*$"
)
_POWERS = {"k": 1e3, "m": 1e6, "mio": 1e6, "bn": 1e9, "mrd": 1e9}


def days(column: pd.Series) -> pd.Series:
    """Return points in time as days since `DAY_ZERO`, in UTC if they have a time zone; durations as days."""
    if pd.api.types.is_datetime64_any_dtype(column):
        column = (column if column.dt.tz is None else column.dt.tz_convert(None)) - DAY_ZERO
    return (column / pd.Timedelta(days=1)).astype(float)


def number_text(value: float) -> str:
    """Return the shortest text of a number that reads back as the same number; whole numbers have no point.

    >>> number_text(20240101000001.0), number_text(0.1), number_text(-0.0)
    ('20240101000001', '0.1', '0')
    """
    if value.is_integer() and abs(value) < INEXACT:
        return str(int(value))
    short = f"{value:.12g}"
    return short if float(short) == value or value != value else repr(value)


def plain_cells(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str]:
    """Return cells as texts or as floats, and what else their type says.

    Returns:
        Cells of any type as texts, as a CSV file would have them. Whole numbers have all their digits, and
        points in time have no hours if these are zero. Numbers by type that floats represent exactly become
        floats. And "" for texts, "number" for numbers by type, "iso" or "duration" for times by type. For all
        others, the name of the type, with the cells as they are.

    >>> [plain_cells(pa.chunked_array([[each]]))[0].to_pylist() for each in (True, 7)]
    [['True'], [7.0]]
    """
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        return plain_cells(column.cast(kind.value_type))
    if types.is_boolean(kind):
        return pc.if_else(column, "True", "False"), ""
    if types.is_integer(kind):
        span = pc.min_max(column).as_py()
        exact = (span["min"] or 0) > -INEXACT and (span["max"] or 0) < INEXACT
        return column.cast(pa.float64() if exact else pa.string()), "number"
    if types.is_floating(kind):
        return column.cast(pa.float64()), "number"
    if types.is_decimal(kind):
        return column.cast(pa.string()), "number"
    if types.is_date(kind):
        return plain_cells(column.cast(pa.timestamp("s" if types.is_date32(kind) else "ms")))
    if types.is_timestamp(kind):
        text = column.to_pandas().astype("string").str.replace(r" 00:00:00(\.0+)?$", "", regex=True)
        return _as_arrow(text), "iso"
    if types.is_duration(kind):
        return _as_arrow(column.to_pandas().astype("string")), "duration"
    if types.is_time(kind) or isinstance(kind, pa.BaseExtensionType):  # also periods, intervals, UUIDs
        values = column.to_pandas()
        return _as_arrow(
            (pd.Series(values, dtype=object) if types.is_time(kind) else values).astype("string")
        ), ""
    if (
        types.is_null(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
    ):
        return column.cast(pa.large_string()), ""
    if types.is_struct(kind) or types.is_map(kind):
        return column, "dict"
    return column, "list" if types.is_nested(kind) else "bytes"


def written_texts(column: pa.ChunkedArray) -> pd.Series:
    """Return cells of any type as texts, NA if missing."""
    plain, _ = plain_cells(column)
    if pa.types.is_float64(plain.type):
        return pd.Series(plain.to_numpy()).map(number_text, na_action="ignore").astype("string")
    return plain.to_pandas().astype("string")


def _as_arrow(text: pd.Series) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(text, type=pa.large_string(), from_pandas=True)])


def fold_spellings(text: pd.Series) -> pd.Series:
    """Return texts without the differences between spellings of one value.

    These are capitals, spaces, also those without width, leading zeros and ".0" at the end.

    >>> fold_spellings(pd.Series(["P007 ", "p7", "0012.0"], dtype="string")).tolist()
    ['p7', 'p7', '12']
    """
    text = text.str.normalize("NFKC").map(str.casefold, na_action="ignore").astype("string")
    text = text.str.replace("[\0\u00ad\u200b\u2060\ufeff]", "", regex=True)
    text = text.str.replace(r"\s+", " ", regex=True).str.strip()
    text = text.map(partial(re.sub, r"(?<![\d.,])0+(?=\d)", ""), na_action="ignore").astype("string")
    return text.str.replace(r"^(\d+)\.0+$", r"\1", regex=True)


def without_sentinels(numbers: pd.Series, sentinels: Collection[str]) -> pd.Series:
    """Return numbers, with NaN for numbers that stand for a missing value."""
    codes = pd.to_numeric(pd.Series(list(sentinels), dtype=object), errors="coerce").dropna()
    return numbers.mask(numbers.isin(codes.astype(float))) if len(codes) else numbers


def without_days(days: pd.Series, sentinels: Collection[str], form: str) -> pd.Series:
    """Return days, with NaN for the days that stand for a missing value, at any hour."""
    forms = "iso" if form == "duration" else f"iso|{form}"
    gone = read_dates(pd.Series(list(sentinels), dtype="string"), forms).dropna()
    return days.mask(np.floor(days).isin(np.floor(gone)))


def as_numbers(text: pd.Series, decimal: str, thousands: str | None) -> pd.Series:
    """Return floats, NaN if a text is not a number with these marks.

    Marks between thousands must be between groups of three digits, and the first group must not begin with a
    zero: 0,125 has no such mark. U+2212 is a minus.

    >>> as_numbers(pd.Series(["28,746.52", "1,5", "\u22127"], dtype="string"), ".", ",").tolist()
    [28746.52, nan, -7.0]
    """
    text = text.str.replace("^\u2212", "-", regex=True)
    if thousands is not None:
        mark = {" ": r"\s", "'": "['’]"}.get(thousands, re.escape(thousands))
        grouped = text.str.fullmatch(rf"[+-]?[1-9]\d{{0,2}}({mark}\d{{3}})+({re.escape(decimal)}\d*)?")
        text = text.where(~grouped, text.str.replace(mark, "", regex=True))
    if decimal != ".":
        text = text.mask(text.str.contains(".", regex=False)).str.replace(decimal, ".", regex=False)
    values = pd.to_numeric(text, errors="coerce").astype(float)
    # What is too large for a float, as 47E590 is, is no number.
    return values.mask(np.isinf(values) & ~text.str.contains("i", case=False, regex=False).fillna(False))


def as_amounts(text: pd.Series, decimal: str, thousands: str | None) -> pd.Series:
    """Return floats as `as_numbers` does, of texts too that have marks around their numbers.

    These are currencies, known units, percent (12.5% is 12.5), k and M (1.5k is 1500), and brackets or a
    minus at the end for numbers below zero.

    >>> as_amounts(pd.Series(["$1,234.00", "(5)", "12.5%", "n.d."], dtype="string"), ".", ",").tolist()
    [1234.0, -5.0, 12.5, nan]
    """
    values = as_numbers(text, decimal, thousands)
    lost = values.isna() & text.notna()
    if lost.any():
        parts = text[lost].str.replace("\u2212", "-").str.extract(_AMOUNT)
        brackets = parts["open"].notna()
        signs = sum((parts[each] == "-").fillna(False).astype(int) for each in ("sign", "inner", "last"))
        signs += brackets.astype(int)
        numbers = as_numbers(parts["number"].str.strip(), decimal, thousands)
        factors = parts["power"].str.lower().str.rstrip(".").map(_POWERS).fillna(1.0).astype(float)
        wrong = (brackets != parts["close"].notna()) | (signs > 1)
        values = values.copy()
        values[lost] = (numbers * factors * (1 - 2 * signs)).mask(wrong)
    return values


def amount_marks(text: pd.Series) -> pd.Series:
    """Return the currency or unit of each text, or % or ‰, or "" if it has none, NA without a text."""
    marks = text.str.extract(rf"({_CURRENCY}|{_UNIT}\s*$)", expand=False)
    return marks.str.strip().fillna("").where(text.notna())


def is_currency(mark: str) -> bool:
    """Return True if one of `amount_marks` is a currency."""
    return re.fullmatch(_CURRENCY, mark) is not None


def read_dates(text: pd.Series, form: str) -> pd.Series:
    """Return days since `DAY_ZERO`, NaN if a text is not a date of this form.

    Args:
        text: without missing ones, or NA.
        form: "iso"; "dayfirst" or "monthfirst", in which dates that begin with a year are year, month, day;
            "duration", such as 3 days 12:00:00; or as in strptime. With several, separated by |, each text is
            read by the first that fits.

    >>> read_dates(pd.Series(["02.01.2000", "2000-01-03", "31.31.2000"]), "dayfirst").tolist()
    [1.0, 2.0, nan]
    """
    text = text.astype("string")
    text = text.where(text.str.contains(r"\d").fillna(False))  # "now" would be the time of reading
    found = pd.Series(np.nan, index=text.index)
    for each in form.split("|"):
        if each == "duration":
            plain = text.where(text.str.fullmatch(LIKE_DURATIONS).fillna(False))
            found = found.fillna(days(pd.to_timedelta(plain, errors="coerce")))
            continue
        ordered = each in ("dayfirst", "monthfirst")
        plain = _year_first(text, dayfirst=each == "dayfirst") if ordered else text
        strptime = "ISO8601" if ordered or each == "iso" else each
        found = found.fillna(days(pd.to_datetime(plain, format=strptime, errors="coerce", utc=True)))
    return found


def _year_first(text: pd.Series, *, dayfirst: bool) -> pd.Series:
    """Return dates in ISO 8601, of which the day, or the month, came first unless the year did."""
    parts = text.str.extract(r"^(\d{1,4})[-/. ]+(\d{1,2})[-/. ]+(\d{4}|\d{1,2})(?!\d)[T, ]*(.*)$")
    first, second, last, time = (parts[place] for place in parts)
    by_year = first.str.len() == 4
    year, day = last.where(~by_year, first), first.where(~by_year, last)
    month = second
    if not dayfirst:
        month, day = first.where(~by_year, second), second.where(~by_year, last)
    century = pd.Series("20", text.index).where(pd.to_numeric(year) < 69, "19")  # as strptime has it
    year = year.where(year.str.len() == 4, century + year.str.zfill(2))
    dates = year + "-" + month.str.zfill(2) + "-" + day.str.zfill(2)
    time = time.str.replace(r"^(\d):", r"0\1:", regex=True)
    return (dates + ("T" + time).where(time != "", "")).fillna(text)
