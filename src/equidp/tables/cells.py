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
    import pandas.core.arrays.arrow.extension_types  # so that Arrow knows pandas' periods and intervals
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
MISSING_WORDS = frozenset((
    "-", "--", ".", "..", "unknown", "unk", "unbekannt", "k.a.", "k. a.", "keine angabe", "missing",
    "not available", "not applicable", "not known", "none", "nil", "nd", "n.d.", "tbd", "na", "n.a.",
    "(null)", "(none)", "inconnu", "desconocido", "undefined", "void", "error", "#ref!", "#value!",
    "#div/0!", "#div/0", "#name?", "#num!", "#null!", "#spill!", "#calc!", "#error!", "#wert!", "#bezug!",
    "#zahl!", "#nv", "#valeur!", "err:502", "err:503", "err:508", "err:511", "err:522",
    "00/00/0000", "00.00.0000", "00-00-0000", "0000-00-00", "0000/00/00", "00/00/00", "00.00.00",
))  # fmt: skip
"""Words that, among numbers or dates, stand for a missing value; in small letters."""
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
    rf"(?P<number>[\d.,'’\s]*\d[.,]?)\s*(?:(?P<after>{_CURRENCY}|{_UNITS}|%|‰)|"
    rf"(?P<power>[kKM]|[Mm]io\.?|[Mm]rd\.?|bn)\s*(?P<currency>{_CURRENCY})?)?\s*(?P<last>-)?\s*(?P<close>\))?\s*"
)
_POWERS = {"k": 1e3, "m": 1e6, "b": 1e9, "mrd": 1e9}
"""Factors of k, M, Mio, bn and Mrd after a number, in small letters."""


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


def plain_cells(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str]:
    """Return cells as texts or as floats, and what their type says beside that.

    Returns:
        Cells of any type as texts, as a CSV file would have them: whole numbers have all their digits, points
        in time no hours where these are zero. Numbers by type that floats hold exactly become floats.
        And "" for texts, "number" for numbers by type, "iso" or "duration" for times by type; for what is
        none of these, the name of its type, with the cells as they are.

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
    """Return cells of any type as texts, NA where missing."""
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
    """Return numbers with NaN in place of those that stand for a missing value."""
    if not sentinels:
        return numbers
    codes = pd.to_numeric(pd.Series(list(sentinels), dtype=object), errors="coerce").dropna().astype(float)
    return numbers.mask(numbers.isin(codes))


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

    These are currencies, known units, percent (12.5% is 12.5), k and M (1.5k is 1500), and brackets or a
    minus at the end for numbers below zero.

    >>> as_amounts(pd.Series(["$1,234.00", "(5)", "12.5%", "n.d."], dtype="string"), ".", ",").tolist()
    [1234.0, -5.0, 12.5, nan]
    """
    values = as_numbers(text, decimal, thousands)
    lost = values.isna() & text.notna()
    if lost.any():
        values = values.copy()
        plain = [_plain_amount(each) for each in text[lost]]
        numbers = pd.Series([each for each, _ in plain], index=values.index[lost], dtype="string")
        values[lost] = as_numbers(numbers, decimal, thousands) * [factor for _, factor in plain]
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


def _plain_amount(text: str) -> tuple[str | None, float]:
    """Return the number within marks, as it is written, and its factor; None for a text without a number."""
    found = _AROUND.fullmatch(text.replace(MINUS, "-"))
    if found is None or (found["open"] is None) != (found["close"] is None):
        return None, 1.0
    minus = [each for each in ("open", "sign", "inner", "last") if found[each] not in (None, "+")]
    if len(minus) > 1 or (found["before"] and (found["after"] or found["currency"])):
        return None, 1.0
    power = (found["power"] or "").lower()
    factor = _POWERS.get(power.rstrip("."), _POWERS.get(power[:1], 1.0))
    return ("-" if minus else "") + found["number"].strip(), factor


def _read_numbers(text: pd.Series) -> pd.Series:
    """`pd.to_numeric`, at a tenth of the time where numbers are short: both round those in the same way."""
    cells = pa.array(text, type=pa.string(), from_pandas=True)
    short = (pc.max(pc.binary_length(cells)).as_py() or 0) <= _SHORT
    if short and not pc.any(pc.match_substring_regex(cells, "[a-zA-Z]")).as_py():  # such as 1e5 or inf
        with suppress(pa.ArrowInvalid):
            values = pc.cast(cells, pa.float64()).to_numpy(zero_copy_only=False)
            whole = not pc.any(pc.match_substring(cells, ".")).as_py()
            return pd.Series(values + 0.0 if whole else values, index=text.index)  # "-0" is 0
    values = pd.to_numeric(text, errors="coerce").astype(float)
    # What is too large for a float, as 47E590 is, is no number.
    return values.mask(np.isinf(values) & ~text.str.contains("i", case=False, regex=False).fillna(False))


def long_numbers(text: pd.Series, values: pd.Series) -> pd.Series:
    """Return a mask of texts that are whole numbers which floats merge with others."""
    large = values.abs() >= INEXACT
    return large & text.str.fullmatch(_LONG).fillna(False) if large.any() else large


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
