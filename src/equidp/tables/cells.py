"""Meaning of single cells: numbers, dates, texts or nothing."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from functools import partial

import numpy as np

from equidp._extras import require_extra

with require_extra("tables"):
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

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
LIKE_DATES = r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})([T ].*)?"
LIKE_DURATIONS = r"-?\d+ days?( [+-]?\d{2}:\d{2}:\d{2}(\.\d+)?)?"
"""Durations in the form that pandas writes."""
LIKE_SCIENTIFIC_OR_PLUS = r"\d+[eE]\d+|\+\d+"
"""Texts that read as numbers, and may be identifiers: 3E2, +49."""
INEXACT = 2.0**53
"""From here on, floats do not tell whole numbers apart."""
_LONG = r"[+-]?\d{16,}(\.0*)?"
_SHORT = 15
"""Signs of a number that has a mantissa and a power of ten which floats hold exactly."""

MINUS = "\u2212"
_SIGNS = "$¢£¤¥֏؋৲৳૱௹฿៛₠₡₢₣₤₥₦₧₨₩₪₫€₭₮₯₰₱₲₳₴₵₶₷₸₹₺₻₼₽₾₿﷼﹩＄￠￡￥￦"
_CURRENCY = (
    rf"(?:[A-Z]{{0,3}}[{_SIGNS}]|[{_SIGNS}]|EUR|USD|GBP|CHF|JPY|CNY|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|RON|BGN|"
    r"TRY|RUB|INR|BRL|MXN|ZAR|KRW|SGD|HKD|ILS|THB|Euro|euro|kr\.?|Kr\.?|zł|Kč|Ft|Fr\.?|Rs\.?|DM)"
)
_UNITS = (
    r"(?:kg|mg|µg|μg|ug|g|lbs?|cm|mm|km|m|in|ft|ml|dl|l|L|mL|dL|mmHg|bpm|/min|°C|°F|°|h|min|s|ms|"
    r"(?:mg|g|µg|μg|mmol|µmol|μmol|U|IU)/(?:dl|dL|l|L|ml|mL)|kg/m²|kg/m2|mmol|kWh|Wh|W|V|A|years?|yrs?|days?|Jahre?|Tage?)"
)
_AROUND = re.compile(
    rf"\s*(?P<open>\()?\s*(?P<sign>[+-])?\s*(?P<before>{_CURRENCY})?\s*(?P<inner>[+-])?\s*"
    rf"(?P<number>[\d.,'’\s]*\d[.,]?)\s*(?P<after>{_CURRENCY}|{_UNITS}|%|‰)?\s*(?P<last>-)?\s*(?P<close>\))?\s*"
)


def is_time(column: pd.Series) -> bool:
    """Return True if a column's type is points in time or durations."""
    kinds = pd.api.types
    return bool(kinds.is_datetime64_any_dtype(column) or kinds.is_timedelta64_dtype(column))


def is_number(column: pd.Series) -> bool:
    """Return True if a column's type is numbers; booleans count as texts."""
    kinds = pd.api.types
    return bool(kinds.is_numeric_dtype(column) and not kinds.is_bool_dtype(column))


def days(column: pd.Series) -> pd.Series:
    """Return points in time as days since `DAY_ZERO`, in UTC where they have a zone; durations as days."""
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


def floats(column: pd.Series) -> pd.Series:
    """Return numbers of any type as floats, NaN where missing."""
    stored = pa.array(column, from_pandas=True)
    if pa.types.is_decimal(stored.type):  # as the same digits in a CSV file are read
        return pd.to_numeric(texts(column), errors="coerce").astype(float)
    values = pc.cast(stored, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return pd.Series(values, index=column.index, dtype=float)


def texts(column: pd.Series) -> pd.Series:
    """Return cells of any type as texts, NA where missing, as a CSV file would have them.

    Whole numbers have all their digits, and points in time no hours where these are zero.

    >>> texts(pd.Series([20240101000001, 7])).tolist(), texts(pd.Series([True])).tolist()
    (['20240101000001', '7'], ['True'])
    """
    if pd.api.types.is_bool_dtype(column):
        return column.map({True: "True", False: "False"}, na_action="ignore").astype("string")
    if pd.api.types.is_float_dtype(column):
        values = floats(column)
        places, distinct = pd.factorize(values)
        found = np.array([*map(number_text, distinct.tolist()), pd.NA], dtype=object)
        return pd.Series(found[places], index=column.index, dtype="string")
    if pd.api.types.is_numeric_dtype(column):
        stored = pc.cast(pa.array(column, from_pandas=True), pa.string())
        return pd.Series(pd.array(stored, dtype="string[pyarrow]"), index=column.index).astype("string")
    if pd.api.types.is_datetime64_any_dtype(column):
        return column.astype("string").str.replace(r" 00:00:00(\.0+)?$", "", regex=True)
    return column.astype("string")


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
    """Return numbers with NaN in place of those that stand for a missing value."""
    return numbers.mask(is_sentinel(numbers, sentinels)) if sentinels else numbers


def is_sentinel(numbers: pd.Series, sentinels: Collection[str]) -> pd.Series:
    """Return a mask of numbers that stand for a missing value."""
    return numbers.isin(
        pd.to_numeric(pd.Series(list(sentinels), dtype=object), errors="coerce").dropna().astype(float)
    )


def without_dates(found: pd.Series, sentinels: Collection[str], form: str) -> pd.Series:
    """Return days with NaN on those days that stand for a missing value, at whatever hour."""
    if not sentinels:
        return found
    written = pd.Series(list(sentinels), dtype="string")
    gone = pd.concat([read_dates(written, each) for each in ("iso", form) if each != "duration"]).dropna()
    return found.mask(np.floor(found).isin(np.floor(gone)))


def as_numbers(text: pd.Series, decimal: str, thousands: str | None) -> pd.Series:
    """Return floats, NaN where a text is not a number with these marks.

    Marks between thousands must stand between groups of three digits, of which the first begins with no
    zero: 0,125 has no mark of thousands. U+2212 is a minus.

    >>> as_numbers(pd.Series(["28,746.52", "1,5", "\u22127"], dtype="string"), ".", ",").tolist()
    [28746.52, nan, -7.0]
    """
    if text.str.startswith(MINUS).any():
        text = text.str.replace(f"^{MINUS}", "-", regex=True)
    if thousands is not None:
        mark = r"\s" if thousands == " " else "['’]" if thousands == "'" else re.escape(thousands)
        grouped = text.str.fullmatch(rf"[+-]?[1-9]\d{{0,2}}({mark}\d{{3}})+({re.escape(decimal)}\d*)?")
        text = text.where(~grouped, text.str.replace(mark, "", regex=True))
    if decimal != ".":
        text = text.mask(text.str.contains(".", regex=False)).str.replace(decimal, ".", regex=False)
    return _read_numbers(text)


def as_amounts(text: pd.Series, decimal: str, thousands: str | None) -> pd.Series:
    """Return floats as `as_numbers` does, of texts too that have marks around their numbers.

    These are currencies, known units, percent (12.5% is 12.5), and brackets or a minus at the end for
    numbers below zero.

    >>> as_amounts(pd.Series(["$1,234.00", "(5)", "12.5%", "n.d."], dtype="string"), ".", ",").tolist()
    [1234.0, -5.0, 12.5, nan]
    """
    values = as_numbers(text, decimal, thousands)
    lost = values.isna() & text.notna()
    if lost.any():
        values = values.copy()
        values[lost] = as_numbers(text[lost].map(_plain_amount).astype("string"), decimal, thousands)
    return values


def is_currency(mark: str) -> bool:
    """Return True if one of `amount_marks` is a currency."""
    return re.fullmatch(_CURRENCY, mark) is not None


def amount_marks(text: pd.Series) -> pd.Series:
    """Return the currency or unit of each text, or % or ‰; "" where it has none, NA without a text."""
    if not text.str.contains(r"[^\d.,+\s-]", regex=True).any():
        return text.where(text.isna(), "")
    return (
        text.str.extract(rf"({_CURRENCY}|{_UNITS}\s*$|[%‰])", expand=False)
        .str.strip()
        .fillna("")
        .where(text.notna())
    )


def _plain_amount(text: str) -> str | None:
    """Return the number within marks, as it is written; None for a text without a number."""
    found = _AROUND.fullmatch(text.replace(MINUS, "-"))
    if found is None or (found["open"] is None) != (found["close"] is None):
        return None
    minus = [each for each in ("open", "sign", "inner", "last") if found[each] not in (None, "+")]
    if len(minus) > 1 or (found["before"] and found["after"]):
        return None
    return ("-" if minus else "") + found["number"].strip()


def _read_numbers(text: pd.Series) -> pd.Series:
    """`pd.to_numeric`, at a tenth of the time where numbers are short: both round those in the same way."""
    cells = pa.array(text, type=pa.string(), from_pandas=True)
    short = (pc.max(pc.binary_length(cells)).as_py() or 0) <= _SHORT
    if short and not pc.any(pc.match_substring_regex(cells, "[a-zA-Z]")).as_py():  # such as 1e5 or inf
        with suppress(pa.ArrowInvalid):
            values = pc.cast(cells, pa.float64()).to_numpy(zero_copy_only=False)
            whole = not pc.any(pc.match_substring(cells, ".")).as_py()
            return pd.Series(values + 0.0 if whole else values, index=text.index)  # "-0" is 0
    return pd.to_numeric(text, errors="coerce").astype(float)


def long_numbers(text: pd.Series, values: pd.Series) -> pd.Series:
    """Return a mask of texts that are whole numbers which floats merge with others."""
    large = values.abs() >= INEXACT
    return large & text.str.fullmatch(_LONG).fillna(False) if large.any() else large


def may_be_identifiers(text: pd.Series) -> bool:
    """Return True if some texts may have leading zeros, or be as 3E2 or +49 are; at little cost."""
    cells = pa.array(text, type=pa.string(), from_pandas=True)
    starts = (pc.starts_with(cells, sign) for sign in ("0", "+", "-0"))
    inside = (pc.match_substring(cells, sign) for sign in ("e", "E"))
    return any(pc.any(each).as_py() for each in (*starts, *inside))


def read_dates(text: pd.Series, form: str) -> pd.Series:
    """Return days since `DAY_ZERO`, NaN where a text is not a date of this form.

    Args:
        text: without missing ones, or NA.
        form: "iso"; "dayfirst" or "monthfirst", in which dates that begin with a year are year, month, day;
            "duration", such as 3 days 12:00:00; as in strptime; or several with | between them, of which each
            text is read by the first that fits.

    >>> read_dates(pd.Series(["02.01.2000", "2000-01-03", "31.31.2000"]), "dayfirst").tolist()
    [1.0, 2.0, nan]
    """
    text = text.astype("string")
    found = pd.Series(np.nan, index=text.index)
    for each in form.split("|"):
        lost = found.isna()
        found = found.where(~lost, _dates_of_form(text.where(lost), each)) if lost.any() else found
    return found


def _dates_of_form(text: pd.Series, form: str) -> pd.Series:
    text = text.where(
        text.str.contains(r"\d", regex=True).fillna(False)
    )  # "now" would be the time of reading
    if form == "duration":
        plain = text.where(text.str.fullmatch(LIKE_DURATIONS).fillna(False))
        return days(pd.to_timedelta(plain, errors="coerce"))
    if form in ("dayfirst", "monthfirst"):
        return _read_ordered_dates(text, dayfirst=form == "dayfirst")
    how = "ISO8601" if form == "iso" else form
    return days(pd.to_datetime(text, format=how, errors="coerce", utc=True))


def _read_ordered_dates(text: pd.Series, *, dayfirst: bool) -> pd.Series:
    """Dates in words or in numbers, whose day and month have the given order."""
    first, second = ("d", "m") if dayfirst else ("m", "d")
    end = r"(?P<t>(?:[T, ]+\d.*)?)$"
    iso = r"\g<y>-\g<m>-\g<d>\g<t>"
    plain = text.str.replace(
        rf"^(?P<y>\d{{4}})[-/. ](?P<m>\d{{1,2}})[-/. ](?P<d>\d{{1,2}}){end}", iso, regex=True
    )
    plain = plain.str.replace(r"^(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})$", r"\g<y>-\g<m>-\g<d>", regex=True)
    short = rf"^(?P<{first}>\d{{1,2}})[-/. ]+(?P<{second}>\d{{1,2}})[-/. ]+"
    plain = plain.str.replace(rf"{short}(?P<y>\d{{4}}){end}", iso, regex=True)
    for low, high, century in (
        ("6[9]|[7-9]\\d", "", "19"),
        ("[0-5]\\d|6[0-8]", "", "20"),
    ):  # as strptime has it
        plain = plain.str.replace(
            rf"{short}(?P<y>{low}){high}{end}", rf"{century}\g<y>-\g<m>-\g<d>\g<t>", regex=True
        )
    plain = plain.str.replace(r"^(\d{4})-(\d)(?=-)", r"\1-0\2", regex=True)
    plain = plain.str.replace(r"^(\d{4}-\d{2})-(\d)(?!\d)", r"\1-0\2", regex=True)
    plain = plain.str.replace(r"^(\d{4}-\d{2}-\d{2})[, ]+(\d)(?=:)", r"\1 0\2", regex=True)
    plain = plain.str.replace(r"^(\d{4}-\d{2}-\d{2})[, ]+", r"\1 ", regex=True)
    found = pd.to_datetime(plain, format="ISO8601", errors="coerce", utc=True)
    words = found.isna() & text.str.contains(r"[^\W\d_]{3}", regex=True).fillna(False)
    words &= ~text.str.match(r"\d+[-/.]\d+[-/.]\d").fillna(False)
    if words.any():
        named = pd.to_datetime(
            text.where(words), format="mixed", dayfirst=dayfirst, errors="coerce", utc=True
        )
        found = found.where(~words, named)
    return days(found)
