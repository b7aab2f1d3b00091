"""Cells of a column as values, with a finding for all that is not read as it is written.

`parse` reads a column as its recipe says: `_parse_number`, `_parse_date` and `_parse_text` are for columns
whose kind is stated, and `_parse_unstated` for others, which hold numbers where every cell is one. Nothing
else turns cells into values. The first lines hold what is guessed by.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.tables.cells import (
    DAY_ZERO,
    LIKE_SCIENTIFIC_OR_PLUS,
    MISSING,
    MISSING_TEXTS,
    amount_marks,
    as_amounts,
    as_numbers,
    fold_spellings,
    is_currency,
    long_numbers,
    number_text,
    plain_cells,
    read_dates,
    without_dates,
    without_sentinels,
)
from equidp.tables.findings import (
    USUAL_ROWS_PER_PERSON,
    Finding,
    Kind,
    Level,
    count_phrase,
    names_people,
)
from equidp.tables.guess import (
    Ints,
    Options,
    are_like_dates,
    are_words,
    guess_dates,
    guess_numbers,
    noun_of_dates,
    other_order,
)
from equidp.tables.recipe import DATE, NUMBER, TEXT, Recipe

with require_extra("tables"):
    import pandas as pd
    import pyarrow as pa

LARGEST_NUMBER = 1e18
MOST_CATEGORIES = 1000
MANY_CATEGORIES = 50
"""From here on, texts of which most stand in one row or two are free texts."""
MANY_CLASSES = 20
"""A target with more different numbers is taken to measure something."""
RARE_ROWS = 20
"""A class, group or category of fewer rows is counted, but not named."""
MANY_ROWS = 100
"""From here on, whole numbers rarely differ in all rows by chance."""
MISSING_NUMBERS = (
    *(-1, -9, -99, -999, -9999, -99999, 99, 999, 9999, 99999, 999999, 9999999),
    *(98, 97, 998, 997, 9998, 9997, 99998, 99997, 999998, 999997),
)
"""Numbers that people write for a missing value."""
MISSING_DAYS = (
    "9999-12-31", "9999-01-01", "9999-09-09", "3000-01-01", "2999-12-31", "2999-01-01", "2500-01-01",
    "2262-04-11", "2222-02-02", "2200-01-01", "2199-12-31", "2100-01-01", "2100-12-31", "2099-12-31",
    "2099-01-01", "2050-12-31", "1970-01-01", "1910-01-01", "1901-01-01", "1900-01-01", "1900-01-02",
    "1899-12-30", "1899-12-31", "1800-01-01", "1800-12-28", "1753-01-01", "1700-01-01", "1677-09-21",
    "1601-01-01", "1111-11-11", "1000-01-01", "0001-01-01",
)  # fmt: skip
"""Dates that people and programs write for a missing date."""
_RARE_CODES = 0.005
"""Share of a column that such a code must exceed among other numbers: below it, it may be a measurement."""
_FEW_NUMBERS = 10
"""With so few different numbers or fewer, a code such as 999 among others is one of them."""
_SMALL_CODES = (-9, 99)
"""Codes between these, ends included, are measurements where they lie among other numbers, or classes."""
_MOST_ROWS_OF_ONE = 50
"""A column with fewer values than rows by this factor names no people."""
_UNREADABLE_SHARE = 0.5
"""Share of a column that may be unreadable as the numbers or dates that it was said to hold."""
_OUTSIDE_SHARE = 0.1
"""Numbers outside of a public range are named from this share of a column on; ranges may clip a few."""
_FEW_DATES = 10
"""Different texts up to which dates, such as 2024-05, may be categories."""
_SPELLED_NUMBERS = 1000
"""With more different numbers, a column measures something, and 1.1 beside 1.10 is no finding."""
_OF_CELLS = {Kind.ODD_TYPE, Kind.UNREADABLE, Kind.SEVERAL_MARKS, Kind.DATES}
"""Findings on a later table: what its values may mean was settled when the model was trained."""
_DROP = (("drop", ""),)
_NUMBERED, _TIMES = "number", ("iso", "duration")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Parsed:
    """Values of a column.

    Attributes:
        values: [n], floats (NaN where missing), or categories of texts (none where missing); None where the
            column cannot be used.
        findings: all there is to say of it.
        absent: rows of each text that counts as missing, such as NA or ?; "" for other cells without a value.
        first_text: row of the first cell that is not a number, from 0; -1 without any.
    """

    values: pd.Series | None
    findings: tuple[Finding, ...] = ()
    absent: Mapping[str, int] = field(default_factory=dict)
    first_text: int = -1

    @property
    def numeric(self) -> bool:
        """True for numbers, and for dates as numbers."""
        return self.values is not None and self.values.dtype == float


@dataclass(frozen=True, eq=False)
class Texts:
    """Distinct texts of a column.

    Attributes:
        text: each without spaces around it, [k].
        rows: number of rows of each, [k].
        first: first row of each, [k].
        codes: place of each row's text among them, [n]; -1 where it has no value.
        absent: rows of each text that counts as missing.
    """

    text: pd.Series
    rows: Ints
    first: Ints
    codes: Ints
    absent: Mapping[str, int]

    @classmethod
    def of(cls, cells: pa.ChunkedArray, name: str, recipe: Recipe, typed: str) -> Texts:
        """Return the texts of a column of texts or floats."""
        if pa.types.is_float64(cells.type):
            codes, numbers = pd.factorize(cells.to_numpy())
            written = pd.Series(list(map(number_text, numbers.tolist())), dtype="string")
        else:
            encoded = cells.dictionary_encode().combine_chunks()
            codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            written = pd.Series(pd.array(encoded.dictionary.cast(pa.large_string()), dtype="string"))
        text = written.str.strip()
        stated = recipe.missing_texts(name)
        gone = text.isin(MISSING_TEXTS.union(stated).difference(recipe.known_texts(name)))
        if typed == _NUMBERED and stated:
            gone |= without_sentinels(as_numbers(text, ".", None), stated).isna()
        rows = np.bincount(codes[codes >= 0], minlength=len(text))
        found = {"": int((codes < 0).sum())}
        for each, count in zip(text[gone], rows[gone].tolist(), strict=True):
            word = each if each in MISSING_TEXTS else ""
            found[word] = found.get(word, 0) + count
        text = fold_spellings(text) if recipe.column(name).fold else text
        places, distinct = pd.factorize(text.mask(gone))
        codes = np.append(places, -1)[codes].astype(np.int64)
        first = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1))
        rows = np.bincount(codes[codes >= 0], minlength=len(distinct)).astype(np.int64)
        absent = {word: count for word, count in found.items() if count}
        return cls(pd.Series(distinct, dtype="string"), rows, first, codes, absent)

    def in_order(self) -> Texts:
        """Return the most frequent texts first, without codes."""
        order = np.argsort(-self.rows, kind="stable")
        text = self.text.iloc[order].reset_index(drop=True)
        return replace(self, text=text, rows=self.rows[order], first=self.first[order], codes=self.codes[:0])

    def to_rows(self, values: pd.Series) -> pd.Series:
        """Return the number of each row, [n], from one for each text."""
        return pd.Series(np.append(values.to_numpy(dtype=np.float64), np.nan)[self.codes])

    def categories(self) -> pd.Series:
        """Return the category of each row, [n]."""
        listed = pd.Index(self.text.tolist(), dtype=object)
        return pd.Series(pd.Categorical.from_codes(self.codes, listed))

    def count(self, mask: pd.Series | npt.NDArray[np.bool_]) -> dict[str, int]:
        """Return the rows of texts at a mask, and the first of them, as fields of a finding."""
        there = np.asarray(mask, dtype=np.bool_)
        return {
            "rows": int(self.rows[there].sum()),
            "first": int(self.first[there].min()) if there.any() else -1,
        }


def parse(
    name: str,
    cells: pa.ChunkedArray,
    recipe: Recipe,
    was_numeric: bool | None = None,
) -> Parsed:
    """Return the values of a column, and the findings on it.

    Args:
        name: of the column.
        cells: as `read` returns them.
        recipe: what is stated of the column and of all columns.
        was_numeric: whether the column held numbers in the table that a model was trained on: it holds
            numbers or texts as it did there, where the recipe says neither. None: its cells decide.

    >>> parsed = parse("zip", pa.chunked_array([["01067", "?", "99084"]]), Recipe())
    >>> parsed.values.tolist(), [(found.kind.name, found.options) for found in parsed.findings[:1]]
    ([1067.0, nan, 99084.0], [('ZEROS', (('kind', 'text'),))])
    """
    plain, typed = plain_cells(cells)
    if typed not in ("", _NUMBERED, *_TIMES):
        options = () if recipe.roles_of(name) else _DROP
        return Parsed(None, (Finding(Kind.ODD_TYPE, options, detail=typed),))
    column = recipe.column(name)
    by_default = TEXT if column.fold or name == recipe.person or was_numeric is False else None
    kind = column.kind or by_default
    if pa.types.is_float64(plain.type) and kind in (None, NUMBER):
        numbers = pd.Series(plain.to_numpy())
        numbers = without_sentinels(numbers, recipe.missing_texts(name))
        missing = int(numbers.isna().sum())
        absent = {"": missing} if missing else {}
        found = _number_findings(numbers, absent, name, recipe) if was_numeric is None else ()
        return Parsed(numbers, tuple(found), absent)
    texts = Texts.of(plain, name, recipe, typed)
    if kind == NUMBER:
        parsed = _parse_number(texts, name, recipe, typed)
    elif kind == DATE:
        parsed = _parse_date(texts, name, recipe, typed if typed in _TIMES else str(column.format))
    elif kind == TEXT:
        stated = column.kind == TEXT or column.fold or was_numeric is False
        parsed = _parse_text(texts, name, recipe, stated=stated)
    else:
        parsed = _parse_unstated(texts, name, recipe, typed, was_numeric)
    findings = (*parsed.findings, *_rare_findings(texts, name, recipe))
    if was_numeric is not None:
        findings = tuple(each for each in findings if each.kind in _OF_CELLS)
    return replace(parsed, findings=findings, absent=texts.absent)


# ------------------------------------------------------------------------------------------ kinds of columns


def _parse_number(texts: Texts, name: str, recipe: Recipe, typed: str) -> Parsed:
    """A column that is said to hold numbers, also with marks around them."""
    marks = (".", None) if typed else (recipe.decimal_of(name), recipe.thousands_of(name))
    text = texts.text.mask(texts.text.notna()) if typed in _TIMES else texts.text  # times are no numbers
    read = as_amounts(text, *marks)
    found = list(_stated_findings(texts, read, name, recipe, "numbers"))
    by_mark: dict[str, int] = {}
    for mark, rows in zip(amount_marks(texts.text.where(read.notna())), texts.rows.tolist(), strict=True):
        if mark is not pd.NA:
            by_mark[mark] = by_mark.get(mark, 0) + rows
    measured = any(mark and not is_currency(mark) for mark in by_mark)
    kinds = {mark: rows for mark, rows in by_mark.items() if mark or measured}
    if len(kinds) > 1:
        listed = ", ".join(f"{mark or 'none'} in {count_phrase(rows)}" for mark, rows in kinds.items())
        found.append(Finding(Kind.SEVERAL_MARKS, _DROP, detail=listed, sure=False))
    return _numbers(texts, without_sentinels(read, recipe.missing_texts(name)), found, name, recipe)


def _parse_date(texts: Texts, name: str, recipe: Recipe, form: str) -> Parsed:
    """A column that is said to hold dates, which become days."""
    read = read_dates(texts.text, form)
    found = list(_stated_findings(texts, read, name, recipe, f"dates ({recipe.column(name).format})"))
    days = without_dates(read, recipe.missing_texts(name), form)
    return _numbers(texts, days, found, name, recipe)


def _parse_text(texts: Texts, name: str, recipe: Recipe, *, stated: bool) -> Parsed:
    """A column that is said to hold texts, or names people."""
    findings = tuple(_text_findings(texts, name, recipe, stated=stated))
    return Parsed(texts.categories(), findings)


def _parse_unstated(texts: Texts, name: str, recipe: Recipe, typed: str, was_numeric: bool | None) -> Parsed:
    """A column of numbers where every cell is one, and of texts otherwise; dates must be stated."""
    marks = (".", None) if typed == _NUMBERED else (recipe.decimal_of(name), recipe.thousands_of(name))
    read = as_numbers(texts.text, *marks)
    lost = read.isna().to_numpy()
    first = texts.count(lost)["first"] if lost.any() else -1
    if typed in _TIMES or (lost.any() and are_like_dates(texts.text)):
        return Parsed(None, (_found_dates(texts, name, recipe, typed),), first_text=first)
    if lost.any():
        findings = tuple(_text_findings(texts, name, recipe, stated=False))
        return Parsed(texts.categories(), findings, first_text=first)
    numbers = without_sentinels(read, recipe.missing_texts(name))
    if was_numeric:
        return Parsed(texts.to_rows(numbers), ())
    if (long := long_numbers(texts.text, read)).any():
        found = _found_code(Kind.LONG, texts, long, name, recipe)
        texts_found = _text_findings(texts, name, recipe, stated=False, doubted=True)
        return Parsed(texts.categories(), (found, *texts_found))
    return _numbers(texts, numbers, list(_identifier_findings(texts, read, name, recipe)), name, recipe)


def _numbers(texts: Texts, numbers: pd.Series, found: list[Finding], name: str, recipe: Recipe) -> Parsed:
    """Return numbers by row, or nothing where a finding says that they cannot be used."""
    first = next((each.first for each in found if each.kind is Kind.UNREADABLE), -1)
    if any(each.level is Level.PROBLEM for each in found):
        return Parsed(None, tuple(found))
    values = texts.to_rows(numbers)
    found += _number_findings(values, texts.absent, name, recipe)
    return Parsed(values, tuple(found), first_text=first)


# -------------------------------------------------------------------- cells that are not read as written


def _stated_findings(
    texts: Texts, read: pd.Series, name: str, recipe: Recipe, noun: str
) -> Iterator[Finding]:
    """Yield findings on cells that are not what their column is said to hold."""
    lost = read.isna().to_numpy()
    if not lost.any():
        return
    for word in texts.text[lost & are_words(texts.text)]:
        yield _found_word(word, texts, noun.split(" ")[0], name, recipe, Level.HINT)
    counted, known = texts.count(lost), int(texts.rows.sum())
    refused = counted["rows"] > _UNREADABLE_SHARE * known
    yield Finding(
        Kind.UNREADABLE,
        of=known,
        detail=f"is to hold {noun}",
        other="" if refused else " and count as missing",
        level=Level.PROBLEM if refused else Level.DOUBT,
        **counted,  # type: ignore[arg-type]
    )


def _found_word(word: str, texts: Texts, among: str, name: str, recipe: Recipe, level: Level) -> Finding:
    rows = int(texts.rows[(texts.text == word).to_numpy()].sum())
    sure = not recipe.roles_of(name) & {"target", "weight"}  # they must have values
    options = (("missing", word),)
    return Finding(Kind.WORD, options, rows, detail=word, other=among, sure=sure, level=level)


def _found_code(
    kind: Kind, texts: Texts, mask: pd.Series, name: str, recipe: Recipe, *, sure: bool = True
) -> Finding:
    options = () if "weight" in recipe.roles_of(name) else (("kind", "text"),)
    return Finding(kind, options, sure=sure, **texts.count(mask))  # type: ignore[arg-type]


def _identifier_findings(texts: Texts, read: pd.Series, name: str, recipe: Recipe) -> Iterator[Finding]:
    """Yield the finding on numbers that lose their notation, and may be codes."""
    text = texts.text
    zeros = text.str.contains(r"^[+-]?0\d", regex=True)
    odd = text.str.fullmatch(LIKE_SCIENTIFIC_OR_PLUS)
    pointed = ~text.str.fullmatch(rf"\d+|{LIKE_SCIENTIFIC_OR_PLUS}")
    if zeros.any():
        plain = not (pointed.any() or odd.any())
        yield _found_code(Kind.ZEROS, texts, zeros, name, recipe, sure=plain)
    elif odd.any():
        yield _found_code(Kind.SCIENTIFIC_OR_PLUS, texts, odd, name, recipe, sure=not pointed.any())
    elif len(text) and read.nunique() <= _SPELLED_NUMBERS:
        unsigned = text.where(read != 0, text.str.lstrip("-+"))  # 0.0 and -0.0 are one
        of_one = pd.DataFrame({"number": read, "text": unsigned})
        again = of_one.drop_duplicates()["number"].duplicated().reindex(of_one.index, fill_value=False)
        if again.any():
            yield _found_code(Kind.NUMBER_SPELLINGS, texts, again, name, recipe, sure=False)


def _rare_findings(texts: Texts, name: str, recipe: Recipe) -> Iterator[Finding]:
    """Yield the finding on classes or groups of few rows, without their names."""
    role = "target" if name == recipe.target else "group"
    rare = texts.rows[texts.rows < RARE_ROWS]
    if name not in (recipe.target, *recipe.group) or not len(rare) or len(texts.rows) > MANY_CLASSES:
        return
    noun = {"target": ("class", "classes"), "group": ("group", "groups")}[role][len(rare) > 1]
    level = Level.DOUBT if role == "target" and (rare == 1).any() else Level.HINT
    detail = f"{len(rare):,} {noun} of fewer than {RARE_ROWS} rows each"
    yield Finding(Kind.RARE, (), int(rare.sum()), len(rare), detail, role, level=level)


# ----------------------------------------------------------------------------------------- numbers and days


def _number_findings(
    values: pd.Series, absent: Mapping[str, int], name: str, recipe: Recipe
) -> Iterator[Finding]:
    """Yield findings on numbers or days, [n], NaN where missing."""
    column, roles = recipe.column(name), recipe.roles_of(name)
    known = values[values.notna()].to_numpy()
    yield from _found_absent(absent)
    if not len(known):
        if not roles:
            yield Finding(Kind.EMPTY, _DROP, detail="no value at all")
        return
    if not roles and len(known) == len(values) and known.min() == known.max():
        yield Finding(Kind.EMPTY, _DROP, detail="one value in all rows")
    if column.kind == DATE:
        yield from _day_findings(known)
        return
    if "target" in roles and (classes := len(pd.unique(known))) > MANY_CLASSES:
        yield Finding(Kind.MANY_CLASSES, of=classes)
        return
    if not roles and (found := _found_beyond(known)) is not None:
        yield found
    elif not roles and column.kind is None and _are_compact_dates(known):
        yield Finding(Kind.DATES_AS_NUMBERS, (("format", "%Y%m%d"),))
    elif not roles and column.kind is None and len(known) >= MANY_ROWS and _are_whole_and_unique(known):
        yield Finding(Kind.ROW_NAMES, _DROP, len(known), detail="whole number")
    else:
        yield from _code_findings(known, len(values), roles)
    if column.range is not None:
        low, high = column.range
        outside = int(((known < low) | (known > high)).sum())
        if outside > _OUTSIDE_SHARE * len(known):
            options = (("range", ""),)
            span = f"{low:g} to {high:g}"
            yield Finding(Kind.OUTSIDE, options, outside, len(known), span, sure=False)
    yield from _person_findings(len(pd.unique(known)), len(known), name, recipe)


def _found_beyond(known: Floats) -> Finding | None:
    """Return the finding on numbers that no model can use."""
    infinite = int(np.isinf(known).sum())
    if infinite:
        missing = tuple(("missing", text) for text in ("inf", "-inf") if (known == float(text)).any())
        return Finding(Kind.BEYOND, missing, infinite, detail="infinite numbers")
    beyond = int((np.abs(known) > LARGEST_NUMBER).sum())
    detail = f"numbers beyond {LARGEST_NUMBER:g}"
    return Finding(Kind.BEYOND, _DROP, beyond, detail=detail) if beyond else None


def _code_findings(known: Floats, num_rows: int, roles: frozenset[str]) -> Iterator[Finding]:
    """Yield a finding for each number that people write for a missing value, far from others or frequent."""
    present = known[np.isin(known, MISSING_NUMBERS)]
    sure = not roles & {"target", "weight"}
    for code in (code for code in MISSING_NUMBERS if (present == code).any()):
        rows, large = int((present == code).sum()), not _SMALL_CODES[0] <= code <= _SMALL_CODES[1]
        options, detail = (("missing", str(code)),), str(code)
        if apart := _lies_apart(code, rows, known[known != code]):
            if large or "target" not in roles:
                yield Finding(Kind.CODE, options, rows, detail=detail, other=f", {apart}", sure=sure)
        elif large and rows > _RARE_CODES * num_rows and len(pd.unique(known)) > _FEW_NUMBERS:
            yield Finding(Kind.CODE, options, rows, detail=detail, sure=False)


def _lies_apart(code: int, rows: int, others: Floats) -> str:
    """Return how a code for missing values lies apart from all other numbers; "" where it does not."""
    if not len(others) or others.min() == others.max():
        return ""
    low, high = others.min(), others.max()
    gap = 0.5 * (high - low)
    if code < 0 and (code < low - gap or (low >= 0 and (others % 1 == 0).all())):
        return "far from the others"
    if code < 0 <= low and rows > 1:
        return "the only number below zero"
    return "far from the others" if code > 0 and code > high + max(gap, 1.0) else ""


def _are_compact_dates(known: Floats) -> bool:
    """Return True if numbers are dates as 20240131 is one."""
    for part in (known[:MANY_ROWS], known):
        if not ((part % 1 == 0) & (part >= 19_000_101) & (part <= 20_991_231)).all():
            return False
    text = pd.Series(np.unique(known).astype(np.int64).astype(str), dtype="string")
    return bool(read_dates(text, "%Y%m%d").notna().all())


def _are_whole_and_unique(known: Floats) -> bool:
    return all((part % 1 == 0).all() and pd.Series(part).is_unique for part in (known[:MANY_ROWS], known))


def _day_findings(known: Floats) -> Iterator[Finding]:
    """Yield a finding for each day that people and programs write for a missing date.

    It is far from all others, or the first or last and far more frequent than any other.
    """
    counts = pd.Series(np.floor(known)).value_counts()
    codes = {float((pd.Timestamp(day) - DAY_ZERO) / pd.Timedelta(days=1)): day for day in MISSING_DAYS}
    there = [day for day in counts.index if day in codes]
    others = counts.drop(there)
    if others.empty:
        return
    low, high = float(others.index.min()), float(others.index.max())
    gap, often = max(366.0, 0.5 * (high - low)), max(2, 3 * int(others.iloc[0]))
    for day in there:
        rows = int(counts[day])
        if day < low - gap or day > high + gap or (not low <= day <= high and rows > often):
            yield Finding(Kind.DAY, (("missing", codes[day]),), rows, len(known), codes[day])


# -------------------------------------------------------------------------------------------------- texts


def _text_findings(
    texts: Texts, name: str, recipe: Recipe, *, stated: bool, doubted: bool = False
) -> Iterator[Finding]:
    """Yield findings on texts.

    Args:
        texts: of a column.
        name, recipe: what is stated of it.
        stated: whether it is said to hold texts.
        doubted: whether there is a doubt about it already.
    """
    texts, roles, fold = texts.in_order(), recipe.roles_of(name), recipe.column(name).fold
    text, rows = texts.text, texts.rows
    yield from _found_absent(texts.absent, roles)
    said = (text == MISSING).to_numpy()
    if said.any() and texts.absent and recipe.missing == "category":
        as_missing = (("missing", MISSING),)
        yield Finding(Kind.MISSING_TEXT, as_missing, int(rows[said].sum()), detail=MISSING, sure=False)
    crowded = len(text) > MOST_CATEGORIES and not roles
    labels = roles & {"target", "group", "person"}
    fewer = fall_together(text) if not fold and not stated and (labels or crowded) else 0
    if fewer and labels:
        yield _found_spellings(len(text), fewer, roles)
    told = doubted
    if not stated and "person" not in roles:
        for found in _guess_findings(texts, name, recipe):
            told = True
            yield found
    repeats_ids = _repeats_ids(name, len(text), int(rows.sum()))
    yield from _person_findings(len(text), int(rows.sum()), name, recipe)
    if crowded:
        left = len(text) - fewer
        options: Options = (("fold", ""),) if left <= MOST_CATEGORIES else _DROP
        limit, sure = str(MOST_CATEGORIES), not repeats_ids
        yield Finding(Kind.TOO_MANY_TEXTS, options, left, len(text), limit, sure=sure)
    elif not roles:
        yield from _usefulness_findings(texts, fold, quiet=told or stated or repeats_ids)


def _usefulness_findings(texts: Texts, fold: bool, *, quiet: bool) -> Iterator[Finding]:
    """Yield findings on texts that are no good as categories; hints where all is said already."""
    text, rows = texts.text, texts.rows
    level = Level.HINT if quiet else Level.DOUBT
    known = int(rows.sum())
    if text.empty:
        yield Finding(Kind.EMPTY, _DROP, detail="no value at all")
    elif len(text) == 1 and not texts.absent:
        yield Finding(Kind.EMPTY, _DROP, detail="one value in all rows")
    elif len(text) > 1 and (rows == 1).all() and known >= RARE_ROWS:
        yield Finding(Kind.ROW_NAMES, _DROP, known, detail="text", level=level)
    else:
        if fewer := 0 if fold else fall_together(text):
            yield _found_spellings(len(text), fewer, frozenset())
        if not quiet and len(text) > MANY_CATEGORIES and 2 * len(text) > known:
            yield Finding(Kind.FREE_TEXT, _DROP, known, len(text))


def _found_spellings(texts: int, fewer: int, roles: frozenset[str]) -> Finding:
    """Return the finding on texts that differ in spelling alone: of a target, a reason against training."""
    level = Level.DOUBT if roles & {"group", "person"} else Level.HINT
    role = next((each for each in ("target", "person") if each in roles), "")
    level = Level.PROBLEM if role == "target" else level
    options = (("fold", ""),)
    detail = role or "column"
    return Finding(Kind.SPELLINGS, options, texts - fewer, texts, detail, sure=bool(role), level=level)


def _found_absent(absent: Mapping[str, int], roles: frozenset[str] | None = None) -> Iterator[Finding]:
    """Yield the finding on texts that count as missing; `roles` of a column of texts, where NA may be one."""
    words = {text: rows for text, rows in absent.items() if any(map(str.isalpha, text))}
    listed = words if words and roles is not None else absent
    if not any(listed):
        return
    phrases = " and ".join(f"{text!r} in {count_phrase(rows)}" for text, rows in listed.items() if text)
    others = sum(absent.values()) - sum(rows for text, rows in listed.items() if text)
    beside = f", beside {count_phrase(others)} without a value" if others else ""
    options: Options = ()
    level = Level.HINT
    if words and roles is not None:
        options = (("known", next(iter(words))),)
        labels = roles & {"target", "group", "person"}
        level = Level.DOUBT if others or len(words) > 1 or labels else Level.HINT
    yield Finding(Kind.ABSENT, options, detail=phrases, other=beside, sure=False, level=level)


def _person_findings(different: int, known: int, name: str, recipe: Recipe) -> Iterator[Finding]:
    """Yield the finding on an input that names people with several rows each, while epsilon is for rows."""
    beside = {recipe.target, recipe.weight} | (set() if recipe.group_as_input else {*recipe.group})
    if recipe.person is not None or name in beside or not _repeats_ids(name, different, known):
        return
    options = (("person", ""), ("rows_per_person", str(USUAL_ROWS_PER_PERSON)))
    yield Finding(Kind.PERSONS, options, known, different, sure=may_name_people(name))


def _repeats_ids(name: str, different: int, known: int) -> bool:
    """Return True for a column that seems to name people or things with several rows each."""
    named = may_name_people(name) or re.search(r"(^|[^a-z])(ids?|uuid)([^a-z]|$)", name.lower())
    return bool(named) and max(1, known / _MOST_ROWS_OF_ONE) < different < known


def may_name_people(column: str) -> bool:
    """Return True where a column's name says that it names people, or anything.

    >>> [name for name in ("patient", "ID", "zip code") if may_name_people(name)]
    ['patient', 'ID']
    """
    return names_people(column) or column.lower() in ("id", "ids", "uuid")


def fall_together(text: pd.Series) -> int:
    """Return the number by which `fold_spellings` reduces distinct texts."""
    return len(text) - int(fold_spellings(text).nunique())


# ----------------------------------------------------------- what texts may be, where nothing is stated


def _guess_findings(texts: Texts, name: str, recipe: Recipe) -> Iterator[Finding]:
    """Yield findings on numbers, with slips or marks, or dates that distinct texts may be."""
    text, rows, roles = texts.text, texts.rows, recipe.roles_of(name)
    if not text.str.contains(r"\d", regex=True).any():
        return
    own = recipe.decimal_of(name), recipe.thousands_of(name)
    guessed = guess_numbers(text, rows, own, recipe.sep)
    if guessed is None:
        if not roles and (form := guess_dates(text, rows)) is not None:
            level = Level.DOUBT if len(text) > _FEW_DATES else Level.HINT
            noun, other = noun_of_dates(form), other_order(text, rows, form)
            as_dates = (("format", form),)
            yield Finding(Kind.DATES_AS_TEXTS, as_dates, of=len(text), detail=noun, other=other, level=level)
        return
    values, options, detail, other = guessed
    lost, words = values.isna().to_numpy(), are_words(text)
    sure = not roles & {"target", "group", "weight"}
    if options:
        sure = sure or "kind" not in dict(options)
        yield Finding(Kind.MARKS, options, detail=detail, other=other, sure=sure)
    for word in text[words & lost]:
        yield _found_word(word, texts, "numbers", name, recipe, Level.DOUBT)
    if (slips := lost & ~words).any():
        options, total = (("kind", "number"),), int(rows.sum())
        counted = texts.count(slips)
        yield Finding(Kind.UNREADABLE, options, of=total, detail="holds numbers", sure=sure, **counted)  # type: ignore[arg-type]


def _found_dates(texts: Texts, name: str, recipe: Recipe, typed: str) -> Finding:
    """Return the finding on a column of dates or durations: numbers for an input, texts for a label."""
    texts, roles = texts.in_order(), recipe.roles_of(name)
    form = typed or guess_dates(texts.text, texts.rows)
    noun = noun_of_dates(form or "")
    if roles:
        options: Options = (("kind", "text"),) if roles & {"target", "group"} else ()
        return Finding(Kind.DATES, options, int(texts.rows.sum()), detail=noun)
    zeros = texts.text[are_words(texts.text)].tolist()
    options = (("format", form or "FORMAT"), *(("missing", word) for word in zeros))
    other = "" if typed or form is None else other_order(texts.text, texts.rows, form)
    rows = int(texts.rows.sum())
    return Finding(Kind.DATES, options, rows, detail=noun, other=other, sure=form is not None)
