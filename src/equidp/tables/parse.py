"""Cells of a column as values, with a finding for all that is not read as it is written.

`parse` reads a column by its recipe. Without a recipe, a column has numbers if every cell is a number, and
texts otherwise. Nothing else turns cells into values. The first lines have the thresholds for guesses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.tables.cells import (
    DAY_ZERO,
    INEXACT,
    MISSING,
    MISSING_TEXTS,
    amount_marks,
    as_amounts,
    as_numbers,
    fold_spellings,
    is_currency,
    number_text,
    plain_cells,
    read_dates,
    without_days,
    without_sentinels,
)
from equidp.tables.findings import (
    USUAL_ROWS_PER_PERSON,
    Finding,
    Kind,
    Level,
    count_phrase,
)
from equidp.tables.guess import (
    Ints,
    Options,
    are_like_dates,
    are_words,
    guess_dates,
    guess_numbers,
    noun_of_dates,
)
from equidp.tables.recipe import DATE, NUMBER, TEXT, Column, Recipe

with require_extra("tables"):
    import pandas as pd
    import pyarrow as pa

LARGEST_NUMBER = 1e18
MOST_CATEGORIES = 1000
MANY_CATEGORIES = 50
"""From this number on, texts that mostly occur in one or two rows are free texts."""
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
_MISSING_DAYS = (
    "9999-12-31", "9999-01-01", "2999-12-31", "2999-01-01", "2262-04-11", "2199-12-31", "2100-01-01",
    "2099-12-31", "1970-01-01", "1901-01-01", "1900-01-01", "1899-12-30", "1899-12-31", "1800-01-01",
    "1753-01-01", "1677-09-21", "1601-01-01", "1111-11-11", "1000-01-01", "0001-01-01",
)  # fmt: skip
MISSING_DAYS = {float((pd.Timestamp(day) - DAY_ZERO) / pd.Timedelta(days=1)): day for day in _MISSING_DAYS}
"""Dates that people and programs write for a missing date, by their days."""
_RARE_CODES = 0.005
"""Share of a column that such a number must exceed among others: below it, it may be a measurement."""
_FEW_NUMBERS = 10
"""With so few different numbers or fewer, a code such as 999 among others is one of them."""
_SMALL_CODES = (-9, 99)
"""Codes between these, ends included, are measurements if they are among other numbers, or classes."""
_MOST_ROWS_OF_ONE = 50
"""A column with fewer values than rows by this factor names no people."""
_UNREADABLE_SHARE = 0.5
"""Share of a column that may be unreadable as the numbers or dates that it was said to hold."""
_OUTSIDE_SHARE = 0.1
"""Numbers outside of a public range are named from this share of a column on; ranges may clip a few."""
_FEW_DATES = 10
"""Different texts up to which dates, such as 2024-05, may be categories."""
_SPELLED_NUMBERS = 1000
"""With more different numbers, a column measures something, and 1.1 next to 1.10 is not a finding."""
_PEOPLE = r"(^|[^a-z])(pid|mrn|person|patient|subject|client|customer|member|user)([^a-z]|$)"
_ZEROS, _POWERS, _WHOLE = r"[+-]?0\d.*", r"\d+[eE]\d+|\+\d+", r"[+-]?\d+(\.0*)?"
_OF_CELLS = {Kind.ODD_TYPE, Kind.UNREADABLE, Kind.SEVERAL_MARKS, Kind.DATES}
"""Findings on a later table: what its values may mean was settled when the model was trained."""
_DROP, _FOLD, _AS_TEXT = (("drop", ""),), (("fold", ""),), (("kind", TEXT),)
_TYPED_NUMBER, _TIMES = "number", ("iso", "duration")

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Parsed:
    """Values of a column.

    Attributes:
        values: [n], floats (NaN if missing), or categories of texts (none if missing), or None if the column
            cannot be used.
        findings: all there is to say of it.
        absent: rows of each text that counts as missing, such as NA or ?, or "" for other cells without a
            value.
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
    """Distinct texts of a column, the most frequent first, and what is stated about it.

    Attributes:
        name: name of the column.
        recipe: what is stated about the column and about all columns.
        text: each without spaces around it, [k].
        rows: number of rows of each, [k].
        first: first row of each, [k].
        codes: place of each row's text among them, [n]; -1 if it has no value.
        absent: rows of each text that counts as missing.
    """

    name: str
    recipe: Recipe
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
        if typed == _TYPED_NUMBER and stated:
            gone |= without_sentinels(as_numbers(text, ".", None), stated).isna()
        absent = {"": int((codes < 0).sum())}
        for each, count in zip(text[gone], _count_rows(codes, len(text))[gone].tolist(), strict=True):
            word = each if each in MISSING_TEXTS else ""
            absent[word] = absent.get(word, 0) + count
        text = fold_spellings(text) if recipe.column(name).fold else text
        places, distinct = pd.factorize(text.mask(gone))
        codes = np.append(places, -1)[codes].astype(np.int64)
        rows = _count_rows(codes, len(distinct))
        first = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1))
        order = np.argsort(-rows, kind="stable")
        codes = np.append(np.argsort(order), -1)[codes]
        text = pd.Series(distinct, dtype="string").take(order).reset_index(drop=True)
        absent = {word: count for word, count in absent.items() if count}
        return cls(name, recipe, text, rows[order], first[order], codes, absent)

    @property
    def column(self) -> Column:
        return self.recipe.column(self.name)

    @property
    def roles(self) -> frozenset[str]:
        return self.recipe.roles_of(self.name)

    @property
    def known(self) -> int:
        """Number of rows with a value."""
        return int(self.rows.sum())

    @property
    def marks(self) -> tuple[str, str | None]:
        """Decimal mark, and mark between thousands."""
        return self.recipe.decimal_of(self.name), self.recipe.thousands_of(self.name)

    def to_rows(self, values: pd.Series) -> pd.Series:
        """Return the number of each row, [n], from one for each text."""
        return pd.Series(np.append(values.to_numpy(dtype=np.float64), np.nan)[self.codes])

    def categories(self) -> pd.Series:
        """Return the category of each row, [n]."""
        listed = pd.Index(self.text.tolist(), dtype=object)
        return pd.Series(pd.Categorical.from_codes(self.codes, listed))

    def find(self, kind: Kind, mask: pd.Series | Bools, options: Options, **fields: Any) -> Finding:
        """Return a finding on the rows of texts at a mask."""
        there = np.asarray(mask, dtype=np.bool_)
        first = int(self.first[there].min()) if there.any() else -1
        return Finding(kind, options, int(self.rows[there].sum()), self.known, first=first, **fields)


def _count_rows(codes: Ints, size: int) -> Ints:
    return np.bincount(codes[codes >= 0], minlength=size).astype(np.int64)


def parse(name: str, cells: pa.ChunkedArray, recipe: Recipe, was_numeric: bool | None = None) -> Parsed:
    """Return the values of a column, and the findings on it.

    Args:
        name: name of the column.
        cells: as `read` returns them.
        recipe: what is stated about the column and about all columns.
        was_numeric: whether the column had numbers in the training table. It then has numbers or texts as it
            did there, if the recipe says neither. None: its cells decide.

    >>> parsed = parse("zip", pa.chunked_array([["01067", "?", "99084"]]), Recipe())
    >>> parsed.values.tolist(), [(found.kind.name, found.options) for found in parsed.findings[:1]]
    ([1067.0, nan, 99084.0], [('CODES', (('kind', 'text'),))])
    """
    plain, typed = plain_cells(cells)
    if typed not in ("", _TYPED_NUMBER, *_TIMES):
        options = () if recipe.roles_of(name) else _DROP
        return Parsed(None, (Finding(Kind.ODD_TYPE, options, detail=typed),))
    column = recipe.column(name)
    kind: str | None = column.kind
    if kind is None and (column.fold or name == recipe.person or was_numeric is False):
        kind = TEXT
    if pa.types.is_float64(plain.type) and kind in (None, NUMBER):
        values = without_sentinels(pd.Series(plain.to_numpy()), recipe.missing_texts(name))
        missing = int(values.isna().sum())
        absent = {"": missing} if missing else {}
        parsed = Parsed(values, tuple(_number_findings(values, absent, name, recipe)), absent)
    else:
        texts = Texts.of(plain, name, recipe, typed)
        parsed = _parse_texts(texts, kind, typed, was_numeric)
        parsed = replace(parsed, findings=(*parsed.findings, *_rare_findings(texts)), absent=texts.absent)
    if was_numeric is None:
        return parsed
    return replace(parsed, findings=tuple(each for each in parsed.findings if each.kind in _OF_CELLS))


def _parse_texts(texts: Texts, kind: str | None, typed: str, was_numeric: bool | None) -> Parsed:
    """Return the values of a column, of this kind if any is stated."""
    missing, form = texts.recipe.missing_texts(texts.name), texts.column.format
    marks = (".", None) if typed else texts.marks
    if kind == TEXT:
        return Parsed(texts.categories(), tuple(_text_findings(texts, stated=was_numeric is False)))
    if kind == DATE:
        form = typed if typed in _TIMES else str(form)
        read = read_dates(texts.text, form)
        found = [*_unreadable_findings(texts, read, f"dates ({texts.column.format})")]
        return _parsed_numbers(texts, without_days(read, missing, form), found)
    if kind == NUMBER:
        text = texts.text.mask(texts.text.notna()) if typed in _TIMES else texts.text  # times are no numbers
        read = as_amounts(text, *marks)
        found = [*_unreadable_findings(texts, read, "numbers"), *_mark_findings(texts, read)]
        return _parsed_numbers(texts, without_sentinels(read, missing), found)

    read = as_numbers(texts.text, *marks)
    lost = read.isna().to_numpy()
    first = int(texts.first[lost].min()) if lost.any() else -1
    if typed in _TIMES or (lost.any() and are_like_dates(texts.text)):
        return Parsed(None, (_date_finding(texts, typed, Level.PROBLEM),), first_text=first)
    codes = [] if lost.any() or was_numeric else [*_code_findings(texts, read)]
    if lost.any() or any(each.other for each in codes):
        return Parsed(
            texts.categories(), (*codes, *_text_findings(texts, doubted=bool(codes))), first_text=first
        )
    return _parsed_numbers(texts, without_sentinels(read, missing), codes)


def _parsed_numbers(texts: Texts, numbers: pd.Series, findings: list[Finding]) -> Parsed:
    """Return numbers by row, or nothing if a finding says that they cannot be used."""
    first = next((each.first for each in findings if each.kind is Kind.UNREADABLE), -1)
    if any(each.level is Level.PROBLEM for each in findings):
        return Parsed(None, tuple(findings))
    values = texts.to_rows(numbers)
    further = _number_findings(values, texts.absent, texts.name, texts.recipe)
    return Parsed(values, (*findings, *further), first_text=first)


# -------------------------------------------------------------------- cells that are not read as written


def _unreadable_findings(texts: Texts, read: pd.Series, noun: str) -> Iterator[Finding]:
    """Yield findings on cells that are not what their column is said to hold."""
    lost = read.isna().to_numpy()
    if not lost.any():
        return
    yield from _word_findings(texts, lost, noun.split(" ")[0], Level.HINT)
    refused = texts.rows[lost].sum() > _UNREADABLE_SHARE * texts.known
    marks = _other_marks(texts, lost) if noun == "numbers" else ""
    yield texts.find(
        Kind.UNREADABLE,
        lost,
        _AS_TEXT,
        detail=f"is to hold {noun}",
        other=marks if refused else f"{marks} and count as missing",
        level=Level.PROBLEM if refused else Level.DOUBT,
        sure=False,
    )


def _other_marks(texts: Texts, lost: Bools) -> str:
    """Text on how many of the lost cells are numbers with another decimal mark, or ""."""
    marked = lost & texts.text.str.fullmatch(r"[+-]?\d+[.,]\d+").to_numpy(dtype=np.bool_)
    return f" (another decimal mark in {texts.rows[marked].sum():,} of them)" if marked.any() else ""


def _word_findings(texts: Texts, lost: Bools, among: str, level: Level) -> Iterator[Finding]:
    """Yield findings on known words for missing values, among numbers or dates."""
    sure = not texts.roles & {"target", "weight"}  # they must have values
    for word in texts.text[lost & are_words(texts.text)]:
        rows = int(texts.rows[texts.text == word].sum())
        says, other = repr(word), f", among {among}"
        options = (("missing", word),)
        yield Finding(Kind.STAND_IN, options, rows, detail=says, other=other, sure=sure, level=level)


def _mark_findings(texts: Texts, read: pd.Series) -> Iterator[Finding]:
    """Yield the finding on numbers with several units or currencies."""
    rows = pd.Series(texts.rows).groupby(amount_marks(texts.text.where(read.notna())), sort=False).sum()
    measured = any(mark and not is_currency(mark) for mark in rows.index)
    phrases = [f"{mark or 'none'} in {count_phrase(n)}" for mark, n in rows.items() if mark or measured]
    if len(phrases) > 1:
        yield Finding(Kind.SEVERAL_MARKS, _DROP, detail=", ".join(phrases), sure=False)


def _code_findings(texts: Texts, read: pd.Series) -> Iterator[Finding]:
    """Yield the finding on numbers that lose their notation, and may be codes.

    If numbers merge texts of many digits, `other` says so.
    """
    text, options = texts.text, () if "weight" in texts.roles else _AS_TEXT
    long = (read.abs() >= INEXACT) & text.str.fullmatch(_WHOLE).fillna(False)
    zeros, powers = text.str.fullmatch(_ZEROS), text.str.fullmatch(_POWERS)
    unsigned = text.where(read != 0, text.str.lstrip("-+"))  # 0.0 and -0.0 are one
    again = pd.DataFrame({"number": read, "text": unsigned}).drop_duplicates()["number"].duplicated()
    again = again.reindex(text.index, fill_value=False) & (read.nunique() <= _SPELLED_NUMBERS)
    pointed = ~text.str.fullmatch(rf"\d+|{_POWERS}").all()
    for mask, says, sure, other in (
        (long, "holds whole numbers of more than 15 digits", True, " and are texts until you say so"),
        (zeros, "holds numbers with leading zeros, as codes have,", not (pointed or powers.any()), ""),
        (powers, "holds numbers written as 3E2 or +49 are,", not pointed, ""),
        (again, "writes one number in several ways, as 1.1 and 1.10 are,", False, ""),
    ):
        if mask.any():
            yield texts.find(Kind.CODES, mask, options, detail=says, other=other, sure=sure)
            return


def _rare_findings(texts: Texts) -> Iterator[Finding]:
    """Yield the finding on classes or groups of few rows, without their names."""
    labels = [each for each in ("target", "group") if each in texts.roles]
    rare = texts.rows[texts.rows < RARE_ROWS]
    if not labels or not len(rare) or len(texts.rows) > MANY_CLASSES:
        return
    noun = {"target": ("class", "classes"), "group": ("group", "groups")}[labels[0]][len(rare) > 1]
    level = Level.DOUBT if labels[0] == "target" and (rare == 1).any() else Level.HINT
    detail = f"{len(rare):,} {noun} of fewer than {RARE_ROWS} rows each"
    yield Finding(Kind.RARE, (), int(rare.sum()), len(rare), detail, labels[0], level=level)


def _absent_findings(absent: Mapping[str, int], roles: frozenset[str] | None = None) -> Iterator[Finding]:
    """Yield the finding on texts that count as missing; `roles` of a column of texts, if NA may be a text."""
    words = [text for text in absent if any(map(str.isalpha, text))] if roles is not None else []
    listed = words or [text for text in absent if text]
    if not listed:
        return
    phrases = " and ".join(f"{text!r} in {count_phrase(absent[text])}" for text in listed)
    others = sum(rows for text, rows in absent.items() if text not in listed)
    blank = f", as do {count_phrase(others)} without a value" if others else ""
    options = (("known", words[0]),) if words else ()
    labels = (roles or frozenset()) & {"target", "group", "person"}
    doubtful = words and (others or len(words) > 1 or labels)
    level = Level.DOUBT if doubtful else Level.HINT
    yield Finding(Kind.ABSENT, options, detail=phrases, other=blank, sure=False, level=level)


# ----------------------------------------------------------------------------------------- numbers and days


def _number_findings(
    values: pd.Series, absent: Mapping[str, int], name: str, recipe: Recipe
) -> Iterator[Finding]:
    """Yield findings on numbers or days, [n], NaN if missing."""
    column, roles = recipe.column(name), recipe.roles_of(name)
    yield from _absent_findings(absent)
    known = values[values.notna()].to_numpy()
    if not roles and (not len(known) or (len(known) == len(values) and known.min() == known.max())):
        yield Finding(Kind.EMPTY, _DROP, detail="one value in all rows" if len(known) else "no value at all")
    if not len(known):
        return
    if column.kind == DATE:
        yield from _stand_ins(known, MISSING_DAYS, 366.0, roles)
        return
    different = len(pd.unique(known))
    if "target" in roles and different > MANY_CLASSES:
        yield Finding(Kind.MANY_CLASSES, of=different)
        return
    unstated = not roles and column.kind is None
    whole_and_unique = different == len(known) >= MANY_ROWS and bool((known % 1 == 0).all())
    infinite, beyond = np.isinf(known), np.abs(known) > LARGEST_NUMBER
    if not roles and infinite.any():
        options = tuple(("missing", text) for text in ("inf", "-inf") if (known == float(text)).any())
        yield Finding(Kind.BEYOND, options, int(infinite.sum()), detail="infinite numbers")
    elif not roles and beyond.any():
        yield Finding(Kind.BEYOND, _DROP, int(beyond.sum()), detail=f"numbers beyond {LARGEST_NUMBER:g}")
    elif unstated and _are_compact_dates(known):
        says, other = "dates without separators", f" in {count_phrase(len(known))}, read as numbers"
        yield Finding(Kind.DATES, (("format", "%Y%m%d"),), detail=says, other=other, level=Level.DOUBT)
    elif unstated and whole_and_unique:
        yield Finding(Kind.ROW_NAMES, _DROP, len(known), detail="whole number")
    else:
        yield from _stand_ins(known, {float(code): str(code) for code in MISSING_NUMBERS}, 1.0, roles)
    if column.range is not None:
        low, high = column.range
        outside = int(((known < low) | (known > high)).sum())
        if outside > _OUTSIDE_SHARE * len(known):
            span = f"{low:g} to {high:g}"
            yield Finding(Kind.OUTSIDE, (("range", ""),), outside, len(known), span, sure=False)
    yield from _person_findings(different, len(known), name, recipe)


def _are_compact_dates(known: Floats) -> bool:
    """Return True if numbers are dates as 20240131 is one."""
    if not ((known % 1 == 0) & (known >= 19_000_101) & (known <= 20_991_231)).all():
        return False
    text = pd.Series(np.unique(known).astype(np.int64).astype(str), dtype="string")
    return bool(read_dates(text, "%Y%m%d").notna().all())


def _stand_ins(
    known: Floats, listed: Mapping[float, str], least_gap: float, roles: frozenset[str]
) -> Iterator[Finding]:
    """Yield a finding for each value that people write for a missing one, apart from others or frequent.

    It is half the range of the others beyond them, or beyond them and frequent, or the only one below zero.
    """
    dates = listed is MISSING_DAYS
    counts = pd.Series(np.floor(known) if dates else known).value_counts()
    there = [value for value in listed if value in counts.index]
    for value in there:
        others = counts.drop(there if dates else value)
        if len(others) < (1 if dates else 2):
            continue
        rows, low, high = int(counts[value]), float(others.index.min()), float(others.index.max())
        gap, often = max(least_gap, 0.5 * (high - low)), max(2, 3 * int(others.iloc[0]))
        apart = value < low - gap or value > high + gap
        apart |= dates and not low <= value <= high and rows > often
        alone = not dates and value < 0 <= low and (rows > 1 or bool((others.index % 1 == 0).all()))
        large = dates or not _SMALL_CODES[0] <= value <= _SMALL_CODES[1]
        among = large and not dates and rows > _RARE_CODES * len(known) and len(others) >= _FEW_NUMBERS
        if ("target" in roles and not large) or not (apart or alone or among):
            continue
        where = ", apart from the others" if apart else ", the only number below zero" if alone else ""
        detail = f"the date {listed[value]}" if dates else listed[value]
        sure = (apart or alone) and not roles & {"target", "weight"}
        options, of = (("missing", listed[value]),), len(known) if dates else 0
        yield Finding(Kind.STAND_IN, options, rows, of, detail, where, sure=sure)


# -------------------------------------------------------------------------------------------------- texts


def _text_findings(texts: Texts, *, stated: bool = False, doubted: bool = False) -> Iterator[Finding]:
    """Yield findings on texts; `doubted`: there is a doubt about them already."""
    text, rows, roles = texts.text, texts.rows, texts.roles
    stated = stated or texts.column.kind == TEXT or texts.column.fold
    yield from _absent_findings(texts.absent, roles)
    said = text == MISSING
    if said.any() and texts.absent and texts.recipe.missing == "category":
        yield texts.find(Kind.MISSING_TEXT, said, (("missing", MISSING),), detail=MISSING, sure=False)
    guesses = [] if stated or "person" in roles else [*_guess_findings(texts)]
    yield from guesses
    yield from _person_findings(len(text), texts.known, texts.name, texts.recipe)
    names_ids = _repeats_ids(texts.name, len(text), texts.known)
    quiet = stated or doubted or bool(guesses) or names_ids
    crowded = not roles and len(text) > MOST_CATEGORIES
    fewer = 0 if stated else len(text) - int(fold_spellings(text).nunique())
    if crowded:
        options: Options = _FOLD if len(text) - fewer <= MOST_CATEGORIES else _DROP
        sure, level = not names_ids, Level.PROBLEM
        yield Finding(Kind.MANY_TEXTS, options, texts.known, len(text), sure=sure, level=level)
    elif not roles and len(text) <= 1 and not (len(text) and texts.absent):
        yield Finding(Kind.EMPTY, _DROP, detail="one value in all rows" if len(text) else "no value at all")
    elif not roles and (rows == 1).all() and len(text) >= RARE_ROWS:
        level = Level.HINT if quiet else Level.DOUBT
        yield Finding(Kind.ROW_NAMES, _DROP, texts.known, detail="text", level=level)
    else:
        if fewer:
            yield _spelling_finding(len(text), fewer, roles)
        if not roles and not quiet and len(text) > MANY_CATEGORIES and 2 * len(text) > texts.known:
            yield Finding(Kind.MANY_TEXTS, _DROP, texts.known, len(text))


def _spelling_finding(texts: int, fewer: int, roles: frozenset[str]) -> Finding:
    """Return the finding on texts that differ only in spelling: for a target, a reason against training."""
    levels = {"target": Level.PROBLEM, "person": Level.DOUBT, "group": Level.DOUBT}
    role = next((each for each in levels if each in roles), "")
    subject = role if role in ("target", "person") else "column"
    other = ": epsilon is promised to each as a person of its own" if role == "person" else ""
    sure, level = subject != "column", levels.get(role, Level.HINT)
    return Finding(Kind.SPELLINGS, _FOLD, texts - fewer, texts, subject, other, sure=sure, level=level)


def _person_findings(different: int, known: int, name: str, recipe: Recipe) -> Iterator[Finding]:
    """Yield the finding on an input that names people with several rows each, while epsilon is for rows."""
    beside = {recipe.target, recipe.weight} | (set() if recipe.group_as_input else {*recipe.group})
    if recipe.person is None and name not in beside and _repeats_ids(name, different, known):
        options = (("person", ""), ("rows_per_person", str(USUAL_ROWS_PER_PERSON)))
        yield Finding(Kind.PERSONS, options, known, different, sure=_may_name_people(name))


def _repeats_ids(name: str, different: int, known: int) -> bool:
    """Return True for a column that seems to name people or things with several rows each."""
    named = _may_name_people(name) or re.search(r"(^|[^a-z])(ids?|uuid)([^a-z]|$)", name.lower())
    return bool(named) and max(1, known / _MOST_ROWS_OF_ONE) < different < known


def _may_name_people(column: str) -> bool:
    """Return True if a column's name says that it names people, such as userId, or anything."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column).lower()
    return column.lower() in ("id", "ids", "uuid") or re.search(_PEOPLE, words) is not None


# ----------------------------------------------------------- what texts may be, where nothing is stated


def _guess_findings(texts: Texts) -> Iterator[Finding]:
    """Yield findings on numbers, with slips or marks, or dates that distinct texts may be."""
    text, rows, roles = texts.text, texts.rows, texts.roles
    if not text.str.contains(r"\d").any():
        return
    numbers = guess_numbers(text, rows, texts.marks, texts.recipe.sep)
    if numbers is None:
        if not roles and guess_dates(text, rows) is not None:
            yield _date_finding(texts, "", Level.DOUBT if len(text) > _FEW_DATES else Level.HINT)
        return
    lost, sure = numbers.values.isna().to_numpy(), not roles & {"target", "group", "weight"}
    if numbers.options:
        fields = {"detail": numbers.says, "other": numbers.check}
        without_kind = "kind" not in dict(numbers.options)
        yield texts.find(Kind.MARKS, ~lost, numbers.options, sure=sure or without_kind, **fields)
    yield from _word_findings(texts, lost, "numbers", Level.DOUBT)
    slips = lost & ~are_words(text)
    if slips.any():
        says, other = "holds numbers", f"{_other_marks(texts, slips)}, so all become categories"
        yield texts.find(Kind.UNREADABLE, slips, (("kind", NUMBER),), detail=says, other=other, sure=sure)


def _date_finding(texts: Texts, typed: str, level: Level) -> Finding:
    """Return the finding on a column of dates or durations: numbers for an input, texts for a label."""
    guess = None if typed else guess_dates(texts.text, texts.rows)
    form = typed or ("FORMAT" if guess is None else dict(guess.options)["format"])
    options: Options = (("format", form), *(("missing", each) for each in texts.text[are_words(texts.text)]))
    sure = form != "FORMAT" and "weight" not in texts.roles
    if texts.roles & {"target", "group"}:
        options, sure = _AS_TEXT, True
    other = f", taken as {len(texts.text):,} categories"
    if level is Level.PROBLEM:
        other = f" in {count_phrase(texts.known)}"
    if guess is not None:
        other += guess.check
    noun = noun_of_dates(form)
    return Finding(Kind.DATES, options, texts.known, detail=noun, other=other, sure=sure, level=level)
