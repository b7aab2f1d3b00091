"""Meaning of a column under a recipe: numbers, dates as numbers, texts, or nothing that can be used.

`examine` reads the cells of a column and counts what speaks for and against each meaning. `interpret` turns
such `Evidence` into a `Meaning` with findings. Both are pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.tables.cells import (
    INEXACT,
    LIKE_DATES,
    LIKE_DURATIONS,
    LIKE_SCIENTIFIC_OR_PLUS,
    MISSING_TEXTS,
    amount_marks,
    as_amounts,
    as_numbers,
    days,
    floats,
    fold_spellings,
    is_currency,
    is_number,
    is_sentinel,
    is_time,
    long_numbers,
    may_be_identifiers,
    read_dates,
    texts,
    without_dates,
    without_sentinels,
)
from equidp.tables.findings import Finding, Kind, Level, count_phrase
from equidp.tables.recipe import Recipe

with require_extra("tables"):
    import pandas as pd
    import pyarrow as pa

UNREADABLE_SHARE = 0.5
"""Share of a column that may be unreadable as the numbers or dates that it was said to hold."""
UNREADABLE, LONG, ZEROS = "unreadable", "long", "zeros"
SCIENTIFIC_OR_PLUS, POINTS = "scientific or plus", "points"
"""Kinds of cells that are counted: neither number nor date; whole numbers that floats merge; with leading
zeros; as 3E2 or +49; beside the last two, with other signs than digits."""
MISSING_WORDS = frozenset((
    "-", "--", ".", "..", "unknown", "unk", "unbekannt", "k.a.", "k. a.", "keine angabe", "missing",
    "not available", "not applicable", "not known", "none", "nil", "nd", "n.d.", "tbd", "na", "n.a.",
    "(null)", "(none)", "inconnu", "desconocido", "undefined", "void", "error", "#ref!", "#value!",
    "#div/0!", "#div/0", "#name?", "#num!", "#null!", "#spill!", "#calc!", "#error!", "#wert!", "#bezug!",
    "#zahl!", "#nv", "#valeur!", "err:502", "err:503", "err:508", "err:511", "err:522",
))  # fmt: skip
"""Words that, among numbers or dates, stand for a missing value; in small letters."""
_FIRST = 1000
_FEW_SPELLINGS = 1000
"""Distinct numbers up to which it is counted how many are written in several ways."""
_FORMS = ("iso", "dayfirst", "monthfirst", "duration")
_ROLES = ("target", "group", "weight", "person")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ColumnRecipe:
    """Recipe of one column.

    Attributes:
        name: name of the column.
        form: format of its dates; None: it is not said to hold dates.
        amounts: True if it is said to hold numbers, also with marks around them.
        texts: True if it is said to hold texts, or names people.
        fold: True if spellings are one.
        decimal, thousands: marks within numbers.
        missing: texts and numbers that stand for a missing value.
        absent_texts: texts without a value, these among them.
        was_numeric: True if it held numbers in the table that a model was trained on.
        roles: those of "target", "group", "weight" and "person" that it has.
        sep: separator of the file.
    """

    name: str
    form: str | None
    amounts: bool
    texts: bool
    fold: bool
    decimal: str
    thousands: str | None
    missing: tuple[str, ...]
    absent_texts: frozenset[str]
    was_numeric: bool = False
    roles: frozenset[str] = frozenset()
    sep: str = Recipe.sep

    @classmethod
    def of(cls, name: str, recipe: Recipe, was_numeric: bool | None = None) -> ColumnRecipe:
        """Return what a recipe says of a column.

        Args:
            name: name of the column.
            recipe: statements of the user.
            was_numeric: whether it held numbers in the table that a model was trained on: it holds numbers or
                texts as it did there, where the recipe declares neither. None: its cells decide.
        """
        form, amounts = dict(recipe.date).get(name), name in recipe.numeric
        declared_texts = name in recipe.categorical or name == recipe.person or name in recipe.fold
        missing = recipe.missing_texts(name)
        return cls(
            name=name,
            form=form,
            amounts=amounts,
            texts=(declared_texts or was_numeric is False) and not amounts and form is None,
            fold=name in recipe.fold,
            decimal=recipe.decimal_of(name),
            thousands=recipe.thousands_of(name),
            missing=tuple(missing),
            absent_texts=MISSING_TEXTS.union(missing).difference(recipe.known_texts(name)),
            was_numeric=was_numeric is True,
            roles=frozenset(role for role in _ROLES if name in recipe.columns(role)),
            sep=recipe.sep,
        )

    @property
    def declared_numeric(self) -> bool:
        """True if the column is said to hold numbers or dates."""
        return self.amounts or self.form is not None

    @property
    def undeclared(self) -> bool:
        """True if the cells decide."""
        return not self.declared_numeric and not self.texts


@dataclass(frozen=True)
class Count:
    """Number of rows of a kind, and the first of them, from 0."""

    rows: int
    first: int

    def __add__(self, other: Count) -> Count:
        return Count(self.rows + other.rows, min(self.first, other.first))


@dataclass(frozen=True, eq=False)
class Values:
    """Cells of a column, distinct where that saves time.

    Attributes:
        text: each as a text without spaces around it, [k]; NA where it has no value.
        rows: number of rows of each, [k].
        first: first row of each, [k].
        places: place of each row's cell among them, [n]; -1 for an empty one.
        absent: rows of each text that counts as missing.
    """

    text: pd.Series
    rows: Ints
    first: Ints
    places: Ints
    absent: Mapping[str, int]

    @classmethod
    def of(cls, column: pd.Series, rules: ColumnRecipe) -> Values:
        """Return the values of a column."""
        cells = texts(column).reset_index(drop=True)
        places = first = np.arange(len(cells))
        rows = np.ones(len(cells), dtype=np.int64)
        if cells[:_FIRST].nunique() <= _FIRST / 2:
            places, found = pd.factorize(cells)
            cells, rows = pd.Series(found), np.bincount(places[places >= 0], minlength=len(found))
            first = np.flatnonzero(np.diff(np.maximum.accumulate(places), prepend=-1))
        text = cells.str.strip()
        gone = text.isin(rules.absent_texts).to_numpy() | text.isna().to_numpy()
        if rules.missing and is_number(column):
            gone |= is_sentinel(as_numbers(text, ".", None), rules.missing).to_numpy()
        absent = {"": int((places < 0).sum())}
        for each, count in zip(text[gone].fillna(""), rows[gone].tolist(), strict=True):
            absent[each] = absent.get(each, 0) + count
        text = text.mask(gone)
        return cls(fold_spellings(text) if rules.fold else text, rows, first, places, absent)

    def select_known(self) -> Values:
        """Return the values that are not missing, without places."""
        return self.select(self.text.notna().to_numpy())

    def select(self, mask: Bools) -> Values:
        """Return the values at a mask, [k], without places."""
        return Values(self.text[mask], self.rows[mask], self.first[mask], self.places[:0], {})

    def group_texts(self) -> Values:
        """Return each distinct value that is not missing, the most frequent first."""
        known = self.select_known()
        places, distinct = pd.factorize(known.text)
        rows = np.bincount(places, known.rows, minlength=len(distinct)).astype(np.int64)
        first = known.first[np.unique(places, return_index=True)[1]]
        order = np.argsort(-rows, kind="stable")
        text = pd.Series(distinct, dtype="string")[order].reset_index(drop=True)
        return Values(text, rows[order], first[order], self.places[:0], self.absent)

    def count(self, found: pd.Series | Bools) -> Count | None:
        """Count rows by a mask of values, [k]; None without any."""
        mask = np.asarray(found, dtype=np.bool_)
        return Count(int(self.rows[mask].sum()), int(self.first[mask].min())) if mask.any() else None

    def to_rows(self, values: Floats | Ints, otherwise: float) -> npt.NDArray[np.generic]:
        """Return the values of rows, [n], from one for each text that has a value."""
        every = np.full(len(self.text) + 1, otherwise, dtype=values.dtype)
        every[:-1][self.text.notna().to_numpy()] = values
        return every[self.places]


@dataclass(frozen=True)
class Evidence:
    """Facts on the cells of a column.

    Attributes:
        known: number of rows with a value.
        counts: rows of `UNREADABLE`, `LONG`, `ZEROS`, `SCIENTIFIC_OR_PLUS` and `POINTS`.
        absent: rows of each text that counts as missing, such as NA or ?; "" for other cells without a value.
        words: rows of each of `MISSING_WORDS`, in a column that is said to hold numbers or dates.
        marks: rows of each mark around numbers that are said to have some.
        date_formats: formats that read all cells, thus all formats without any cell; (): all cells look like
            dates, and no format reads all of them; None: some cell is no date.
        spellings: number, rows and first row by text; None for more than `_FEW_SPELLINGS` numbers.
        odd: type of cells that are neither numbers nor texts.
        is_time: True if the type of the column is points in time or durations.
    """

    known: int = 0
    counts: Mapping[str, Count] = field(default_factory=dict)
    absent: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[str, int] = field(default_factory=dict)
    marks: Mapping[str, int] = field(default_factory=dict)
    date_formats: tuple[str, ...] | None = _FORMS
    spellings: Mapping[str, tuple[float, Count]] | None = field(default_factory=dict)
    odd: str = ""
    is_time: bool = False


def examine(column: pd.Series, rules: ColumnRecipe) -> tuple[Floats | None, Evidence]:
    """Return cells of a column as numbers, [n], NaN where missing, and what they speak for.

    Numbers are None where a cell holds a text, or where the recipe says that the column does.

    Args:
        column: its cells.
        rules: statements of the recipe.

    >>> numbers, evidence = examine(pd.Series(["44", "?", "007"]), ColumnRecipe.of("zip", Recipe()))
    >>> numbers, evidence.counts[ZEROS]
    (array([44., nan,  7.]), Count(rows=1, first=2))
    """
    if odd := odd_type(column):
        return None, Evidence(odd=odd)
    if is_time(column) and not rules.texts:
        return _examine_times(column, rules)
    typed = is_number(column)
    if typed and not rules.texts and rules.form is None:
        numbers = without_sentinels(floats(column), rules.missing).to_numpy()
        exact = rules.undeclared and not rules.was_numeric and not pd.api.types.is_float_dtype(column)
        if not (exact and (np.abs(numbers) >= INEXACT).any()):
            return numbers, _count_typed(numbers, date_formats=None)
    values = Values.of(column, rules)
    known = values.select_known()
    counted, absent = int(known.rows.sum()), _absent_words(values)
    if rules.texts:
        return None, Evidence(counted, absent=absent)
    read, further = _examine_values(known, rules, (".", None) if typed else None)
    numbers = None
    if rules.declared_numeric or UNREADABLE not in further.counts:
        if rules.form is None:
            read = without_sentinels(read, rules.missing)
        else:
            read = without_dates(read, rules.missing, rules.form)
        numbers = values.to_rows(read.to_numpy(), np.nan)
    return numbers, dataclasses.replace(further, known=counted, absent=absent)


def _examine_times(column: pd.Series, rules: ColumnRecipe) -> tuple[Floats | None, Evidence]:
    """Return points in time or durations, by type, as `examine` returns cells."""
    if rules.form is not None:
        found = without_dates(days(column), rules.missing, rules.form).to_numpy()
        return found, _count_typed(found, is_time=True)
    known = column.notna().to_numpy()
    counts = {UNREADABLE: Count(int(known.sum()), int(known.argmax()))} if known.any() else {}
    form = "duration" if pd.api.types.is_timedelta64_dtype(column) else "iso"
    evidence = _count_typed(column, counts=counts, date_formats=(form,), is_time=True)
    return np.full(len(column), np.nan) if rules.amounts else None, evidence


def _count_typed(values: Floats | pd.Series, **further: Any) -> Evidence:
    """Return evidence with the numbers of present and missing cells of a column that holds no texts."""
    missing = int(pd.isna(values).sum())
    return Evidence(len(values) - missing, absent={"": missing} if missing else {}, **further)


def _examine_values(
    known: Values, rules: ColumnRecipe, marks: tuple[str, str | None] | None = None
) -> tuple[pd.Series, Evidence]:
    """Return values as numbers or days, [k], NaN for unreadable texts, and evidence on how to read a column.

    Args:
        known: values, none of them missing.
        rules: statements of the recipe.
        marks: decimal mark and mark between thousands, in place of those of the recipe.
    """
    text = known.text
    if rules.form is not None:
        read = read_dates(text, rules.form)
    else:
        marks = marks or (rules.decimal, rules.thousands)
        read = (as_amounts if rules.amounts else as_numbers)(text, *marks)
    found = {UNREADABLE: read.isna()}
    by_mark: dict[str, int] = {}
    if rules.amounts:
        marked = amount_marks(text.where(read.notna()))
        by_mark = {
            mark: int(known.rows[(marked == mark).fillna(False)].sum()) for mark in marked.dropna().unique()
        }
    lost = text[read.isna()] if rules.declared_numeric else text[:0]
    words = lost[lost.str.lower().isin(MISSING_WORDS)].unique()
    by_word = {word: int(known.rows[(text == word).to_numpy()].sum()) for word in words}
    date_formats: tuple[str, ...] | None = _FORMS
    spellings: dict[str, tuple[float, Count]] | None = {}
    if rules.undeclared and len(text):
        if not rules.was_numeric:
            found |= identifier_like(text, read)
            spellings = _spellings(known, read)
        date_formats = _fitting_formats(text) if found[UNREADABLE].any() else None
    counts = {kind: count for kind, mask in found.items() if (count := known.count(mask)) is not None}
    return read, Evidence(
        counts=counts, words=by_word, marks=by_mark, date_formats=date_formats, spellings=spellings
    )


def identifier_like(text: pd.Series, numbers: pd.Series) -> dict[str, pd.Series]:
    """Return masks of texts that lose notation as numbers: `LONG`, `ZEROS` and `SCIENTIFIC_OR_PLUS`; and of
    the `POINTS` beside them."""
    found = {LONG: long_numbers(text, numbers)}
    if may_be_identifiers(text):
        found[ZEROS] = text.str.contains(r"^[+-]?0\d", regex=True)
        found[SCIENTIFIC_OR_PLUS] = text.str.fullmatch(LIKE_SCIENTIFIC_OR_PLUS)
        found[POINTS] = ~text.str.fullmatch(rf"\d+|{LIKE_SCIENTIFIC_OR_PLUS}")
    return found


def _spellings(known: Values, numbers: pd.Series) -> dict[str, tuple[float, Count]] | None:
    """Return number and rows of each text; None for too many numbers."""
    if numbers[: 4 * _FEW_SPELLINGS].nunique() > _FEW_SPELLINGS or numbers.nunique() > _FEW_SPELLINGS:
        return None
    places, distinct = pd.factorize(known.text)
    rows, at = np.bincount(places, known.rows), np.unique(places, return_index=True)[1]
    values, first = numbers.to_numpy()[at].tolist(), known.first[at].tolist()
    every = zip(distinct.tolist(), values, rows.astype(int).tolist(), first, strict=True)
    return {text: (value, Count(n, row)) for text, value, n, row in every if value == value}


def _fitting_formats(text: pd.Series) -> tuple[str, ...] | None:
    """Return the formats that read all texts; None if some are no dates."""
    like = f"(?:{LIKE_DATES})|(?:{LIKE_DURATIONS})"
    if not all(part.str.fullmatch(like).all() for part in (text[:_FIRST], text)):
        return None
    return tuple(form for form in _FORMS if read_dates(text, form).notna().all())


def _absent_words(values: Values) -> dict[str, int]:
    """Return rows by text that counts as missing in every column; "" for other cells without a value."""
    found: dict[str, int] = {}
    for text, rows in values.absent.items():
        word = text if text in MISSING_TEXTS else ""
        if rows:
            found[word] = found.get(word, 0) + rows
    return found


def odd_type(column: pd.Series) -> str:
    """Return the type of cells that are neither numbers nor texts, or ""."""
    if not isinstance(column.dtype, pd.ArrowDtype):
        return ""
    kind, types = column.dtype.pyarrow_dtype, pa.types
    if types.is_struct(kind) or types.is_map(kind):
        return "dict"
    if types.is_nested(kind):
        return "list"
    binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return "bytes" if binary else ""


def category_numbers(column: pd.Series, rules: ColumnRecipe) -> tuple[Ints, list[str]]:
    """Return the number of each cell's text, [n], -1 where missing, and the texts, in the order in which they
    first occur."""
    values = Values.of(column, rules)
    places, listed = pd.factorize(values.select_known().text)
    return values.to_rows(places.astype(np.int64), -1).astype(np.int64), listed.tolist()


@dataclass(frozen=True)
class Meaning:
    """Meaning of a column.

    Attributes:
        numeric: True for numbers, and for dates as numbers; False for texts.
        findings: reasons why the column cannot be used, and doubts about cells that count as missing or lose
            their notation.
        first_text: row of the first cell that is not a number, from 0; -1 without any.
        absent: rows of each text that counts as missing; "" for other cells without a value.
    """

    numeric: bool = False
    findings: tuple[Finding, ...] = ()
    first_text: int = -1
    absent: Mapping[str, int] = field(default_factory=dict)

    @property
    def unusable(self) -> bool:
        """True if the column cannot be used."""
        return any(found.level is Level.PROBLEM for found in self.findings)


def interpret(evidence: Evidence, rules: ColumnRecipe) -> Meaning:
    """Return the meaning of a column, from the evidence of all its cells and the recipe's statements.

    >>> column, rules = pd.Series(["01067", "99084"]), ColumnRecipe.of("zip", Recipe())
    >>> [found.options for found in interpret(examine(column, rules)[1], rules).findings]
    [(('categorical', ''),)]
    """
    unreadable = evidence.counts.get(UNREADABLE)
    first, absent = -1 if unreadable is None else unreadable.first, evidence.absent
    if evidence.odd:
        found = Finding(Kind.ODD_TYPE, Level.PROBLEM, drop_options(rules), detail=evidence.odd)
        return Meaning(findings=(found,))
    if rules.texts:
        return Meaning(absent=absent)
    if rules.declared_numeric:
        meaning = Meaning(True, _declared_findings(evidence, rules), first, absent)
        return Meaning(findings=meaning.findings) if meaning.unusable else meaning
    if evidence.is_time or (unreadable is not None and evidence.date_formats is not None):
        return Meaning(findings=(_found_dates(evidence.date_formats or (), rules),), first_text=first)
    if unreadable is None and LONG not in evidence.counts:
        return Meaning(True, () if rules.was_numeric else _found_identifiers(evidence, rules), absent=absent)
    if unreadable is None:
        return Meaning(False, (_found_code(Kind.LONG, evidence.counts[LONG], rules),), absent=absent)
    return Meaning(False, first_text=first, absent=absent)


def _declared_findings(evidence: Evidence, rules: ColumnRecipe) -> tuple[Finding, ...]:
    """Return findings on a column that is said to hold numbers or dates."""
    unreadable = evidence.counts.get(UNREADABLE)
    noun = "numbers" if rules.form is None else "dates"
    found = [found_word(word, rows, noun, rules, Level.HINT) for word, rows in evidence.words.items()]
    if unreadable is not None:
        refused = unreadable.rows > UNREADABLE_SHARE * evidence.known
        what = noun if rules.form is None else f"dates ({rules.form})"
        level = Level.PROBLEM if refused else Level.DOUBT
        found.append(
            Finding(
                Kind.UNREADABLE,
                level,
                rows=unreadable.rows,
                of=evidence.known,
                first=unreadable.first,
                detail=what,
            )
        )
        if refused:
            return tuple(found)
    measured = any(mark and not is_currency(mark) for mark in evidence.marks)
    kinds = {mark: rows for mark, rows in evidence.marks.items() if mark or measured}
    if len(kinds) > 1:
        listed = ", ".join(f"{mark or 'none'} in {count_phrase(rows)}" for mark, rows in kinds.items())
        found.append(Finding(Kind.SEVERAL_MARKS, Level.DOUBT, (("drop", ""),), False, detail=listed))
    return tuple(found)


def found_word(word: str, rows: int, among: str, rules: ColumnRecipe, level: Level) -> Finding:
    """Return the finding on a word for a missing value among numbers or dates; targets must have values."""
    sure = not rules.roles & {"target", "weight"}
    return Finding(Kind.WORD, level, (("na", word),), sure, rows, detail=word, other=among)


def _found_dates(forms: tuple[str, ...], rules: ColumnRecipe) -> Finding:
    """Return the finding on a column of dates, of which these formats read all."""
    first, *others = forms or ("FORMAT",)
    noun = "durations" if first == "duration" else "dates"
    other = "monthfirst" if first == "dayfirst" and others else ""
    return Finding(Kind.DATES, Level.PROBLEM, date_options(first, rules), detail=noun, other=other)


def drop_options(rules: ColumnRecipe) -> tuple[tuple[str, str], ...]:
    """Return the option that leaves a column out; none for a column with a role, which a table must have."""
    return () if rules.roles else (("drop", ""),)


def date_options(form: str, rules: ColumnRecipe) -> tuple[tuple[str, str], ...]:
    """Return the option that settles dates: numbers for an input, texts for a target or a group."""
    if rules.roles & {"target", "group"}:
        return (("categorical", ""),)
    return () if rules.roles else (("date", form),)


def _found_code(kind: Kind, count: Count, rules: ColumnRecipe, *, sure: bool = True) -> Finding:
    """Return the finding on numbers that may be codes."""
    options = () if "weight" in rules.roles else (("categorical", ""),)
    return Finding(kind, Level.DOUBT, options, sure, count.rows, first=count.first)


def _found_identifiers(evidence: Evidence, rules: ColumnRecipe) -> tuple[Finding, ...]:
    """Return the finding on numbers that lose their notation, and may be identifiers."""
    counts = evidence.counts
    merged = _merged_rows(evidence.spellings or {})
    if ZEROS in counts:
        plain = not {POINTS, SCIENTIFIC_OR_PLUS} & set(counts)
        return (_found_code(Kind.ZEROS, counts[ZEROS], rules, sure=plain),)
    if SCIENTIFIC_OR_PLUS in counts:
        plain = POINTS not in counts
        return (_found_code(Kind.SCIENTIFIC_OR_PLUS, counts[SCIENTIFIC_OR_PLUS], rules, sure=plain),)
    if merged is not None:
        return (_found_code(Kind.NUMBER_SPELLINGS, merged, rules, sure=False),)
    return ()


def _merged_rows(spellings: Mapping[str, tuple[float, Count]]) -> Count | None:
    """Count the rows whose number is written in another way in a row before."""
    plain: dict[float, str] = {}
    found: Count | None = None
    for text, (value, count) in spellings.items():
        if plain.setdefault(value, text) != text:
            found = count if found is None else found + count
    return found
