"""Columns of a table as a recipe interprets them: numbers, texts, dates, or unusable columns."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from equidp.tables.cells import (
    CODES,
    INEXACT,
    LIKE_DATES,
    LIKE_DURATIONS,
    MISSING_TEXTS,
    amount_marks,
    as_amounts,
    as_numbers,
    days,
    floats,
    fold_spellings,
    is_currency,
    is_number,
    is_time,
    long_numbers,
    may_be_codes,
    read_dates,
    texts,
    without_codes,
    without_dates,
)
from equidp.tables.recipe import Recipe, in_shell

UNREADABLE_SHARE = 0.5
"""Share of a column that may be unreadable as the numbers or dates that it was said to hold."""
MOST_TEXTS = 2**16
"""Distinct texts of a column that are kept batch by batch: far more than may be categories."""
_FIRST = 1000
_FEW_SPELLINGS = 1000
"""Distinct numbers up to which it is counted how many are written in several ways."""
_LOST, _LONG, _ZEROS, _CODED, _MERGED = "lost", "long", "zeros", "coded", "merged"
"""Kinds of cells that are counted in a column."""
_NOT_PLAIN = (list, tuple, dict, set, bytes, np.ndarray)

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """A table as a recipe understands it.

    Attributes:
        table: columns of floats (NaN where missing) or of strings (None where missing).
        problems: a sentence for each column that cannot be used, which the table lacks.
        notes: a sentence for each column of which some cells counted as missing, or lost how they look.
        key: cache key of a table on disk; "": it is in memory.
        facts: facts on each column beside its cells.
    """

    table: pd.DataFrame
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    key: str = ""
    facts: Mapping[str, ColumnFacts] = field(default_factory=dict)

    def first_text(self, name: str) -> str:
        """Returns a phrase with the row, not the value, of the first cell that is not a number."""
        about = self.facts.get(name)
        row = about.first_text if about is not None and about.first_text >= 0 else 0
        return f"the first in row {row + 1:,}"


@dataclass(frozen=True)
class ColumnFacts:
    """Facts on a column beside its cells.

    Attributes:
        first_text: row of the first cell that is not a number, from 0; -1: all are numbers.
        absent: rows of each text that counts as missing though it is a word, such as NA; "" for other cells
            without a value.
    """

    first_text: int = -1
    absent: Mapping[str, int] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        return {"first_text": self.first_text, "absent": dict(self.absent)}


class Unusable(Exception):
    """A column cannot be used; the message has the reason and a remedy."""


def interpret_table(raw: pd.DataFrame, recipe: Recipe, held: Mapping[str, bool] | None = None) -> Columns:
    """Returns the columns of a file, as `read_as_written` gives them, as a recipe understands them.

    Args:
        raw: cells as they are written.
        recipe: how to understand them.
        held: see `ColumnReader`, by column.

    Each cell is understood without regard to other rows, but in columns that the recipe names under none of
    categorical, numeric and date, which hold numbers where every known value is one.

    >>> interpret_table(pd.DataFrame({"zip": ["01067"], "age": ["44"]}), Recipe(categorical=("zip",))).table
         zip   age
    0  01067  44.0
    """
    table, problems, notes, facts = {}, [], [], {}
    for name in raw.columns:
        reader = ColumnReader(name, recipe, (held or {}).get(name))
        try:
            numbers, codes = reader.read(raw[name], last=True)
            is_number, note = reader.settle()
            if is_number:
                table[name] = pd.Series(numbers, index=raw.index)
            else:
                found = np.array([*reader.texts, None], dtype=object)
                table[name] = pd.Series(found[codes], index=raw.index, dtype=object)
            notes += [note] if note else []
            facts[name] = reader.facts
        except Unusable as problem:
            problems.append(str(problem))
    whole = pd.DataFrame(table, index=raw.index)
    return Columns(whole, tuple(problems), tuple(notes), facts=facts)


@final
class ColumnReader:
    """Interprets one column, batch by batch; its kind is known after the last batch.

    Attributes:
        name: of the column.
        texts: text -> its code, in the order of their first rows.
        numeric: whether all known values so far are numbers, as far as the recipe leaves that open.
        textual: whether it may still hold texts, so that `read` gives codes.

    Args:
        name: of the column.
        recipe: the user's statements about it.
        held: whether it held numbers in the table that a model was trained on: then it holds numbers or texts
            as it did there, where the recipe leaves that open. None: its cells decide.

    >>> reader = ColumnReader("zip", Recipe())
    >>> reader.read(pd.Series(["44", "?"]))
    (array([44., nan]), array([ 0, -1]))
    >>> reader.read(pd.Series(["none", "44"])), reader.settle(), list(reader.texts)
    ((None, array([1, 0])), (False, ''), ['44', 'none'])
    """

    def __init__(self, name: str, recipe: Recipe, held: bool | None = None) -> None:
        self.name, self.texts = name, dict[str, int]()
        self._codes, self._form = recipe.missing_texts(name), dict(recipe.date).get(name)
        self._gone = MISSING_TEXTS.union(self._codes).difference(recipe.known_texts(name))
        self._marks = recipe.decimal_of(name), recipe.thousands_of(name)
        self._amounts = name in recipe.numeric
        self._stated = self._amounts or self._form is not None
        self._names_people, self._fold = name == recipe.person, name in recipe.fold
        stated_texts = name in recipe.categorical or self._names_people or self._fold or held is False
        self.numeric = self._stated or not stated_texts
        self.textual = not self._stated
        self._open = self.numeric and self.textual
        self._trained = held is True
        self._most = sys.maxsize if self._names_people else MOST_TEXTS
        self._rows = self._known = 0
        self._seen: dict[str, tuple[int, int]] = {}
        self._dates, self._forms = self._open, ["iso", "dayfirst", "monthfirst", "duration"]
        self._absent: dict[str, int] = {}
        self._marked: dict[str, int] = {}
        self._spelled: dict[float, str] | None = {}

    @property
    def facts(self) -> ColumnFacts:
        """Facts on the column beside its cells."""
        return ColumnFacts(self._first(_LOST), dict(self._absent))

    def read(self, column: pd.Series, *, last: bool = False) -> tuple[Floats | None, Codes | None]:
        """Returns the next cells as numbers, [n], NaN where missing, and as codes of texts, [n], -1 there.

        Numbers are None if a value is not a number, and codes are None once it cannot hold texts any more.

        Args:
            column: cells as `read_as_written` gives them.
            last: True for the last cells, so that numbers need no codes.

        Raises:
            Unusable: it holds dates, or neither numbers nor texts.
        """
        if is_time(column) and (self.numeric or self._stated):
            if self._form is None:
                durations = pd.api.types.is_timedelta64_dtype(column)
                raise Unusable(_dates(self.name, "=duration" if durations else ""))
            return without_dates(days(column), self._codes, self._form).to_numpy(), None
        typed = is_number(column)
        if typed and self.numeric and self._form is None:
            numbers = without_codes(floats(column), self._codes).to_numpy()
            self._dates = False
            whole = self._open and not pd.api.types.is_float_dtype(column)
            long = whole and not self._trained and bool((np.abs(numbers) >= INEXACT).any())
            if not whole or not self.textual or (last and not long):
                self.textual &= whole
                if long:
                    self._count(_LONG, np.abs(numbers) >= INEXACT, self._rows)
                self._rows += len(column)
                return numbers, None
        where, text = self._distinct(column)
        start, self._rows = self._rows, self._rows + len(where)
        known = text.notna().to_numpy()
        self._known += int(np.append(known, False)[where].sum())
        numbers = self._numbers(text[known], known, where, start, (".", None) if typed else self._marks)
        keep_codes = not last or numbers is None or _LONG in self._seen
        if self._stated or not self.textual or not keep_codes:
            return numbers, None
        if len(self.texts) + len(known) > self._most and not last:
            self.textual = len(self.texts | dict.fromkeys(text[known].tolist(), 0)) <= self._most
            if not self.textual:
                self.texts.clear()
                return numbers, None
        codes = np.full(len(known) + 1, -1, dtype=np.int64)
        codes[:-1][known] = [self.texts.setdefault(each, len(self.texts)) for each in text[known].tolist()]
        return numbers, codes[where]

    def settle(self) -> tuple[bool, str]:
        """Returns whether the column holds numbers, and a note on cells that counted as missing.

        Raises:
            Unusable: it holds dates; most of it is not what the recipe says; or too many texts for codes.
        """
        if self._stated and _LOST in self._seen:
            rows, first = self._seen[_LOST]
            kind = "numbers" if self._form is None else f"dates ({self._form})"
            is_to = f"column {self.name!r} is to hold {kind}"
            lost = f"{rows:,} of its {self._known:,} values are not, the first in row {first + 1:,}"
            if rows > UNREADABLE_SHARE * self._known:
                raise Unusable(f"{is_to}, but {lost}; equidp inspect shows what it holds.")
            return True, f"{is_to}: {lost}, and count as missing.{self._note_of_marks()}"
        if self.numeric and _LONG not in self._seen:
            return True, self._note_of_marks() if self._stated else self._note_of_codes()
        if self.numeric and self.textual:
            return False, (
                f"column {self.name!r} holds whole numbers of more than 15 digits in {self._where(_LONG)}: "
                "numbers "
                "would merge those that differ at the end, so they are texts, each as it is written. Say "
                "that "
                f"they are (--categorical {in_shell(self.name)}), or that they are numbers (--numeric "
                f"{in_shell(self.name)})."
            )
        if self._dates and not self.numeric:
            raise Unusable(_dates(self.name, *self._suggest_format()))
        if not self.textual:
            first = self._first(_LOST) + 1
            raise Unusable(
                f"column {self.name!r} has more than {MOST_TEXTS:,} distinct texts"
                f"{f', the first that is no number in row {first:,}' if first else ''}: too many for "
                "categories. "
                "If it names the rows, drop it (--drop); if it holds numbers such as 1,234.5, say so "
                "(--thousands, "
                f"--decimal); if what is no number counts as missing, say so (--numeric "
                f"{in_shell(self.name)})."
            )
        return False, ""

    def _count(self, kind: str, found: npt.NDArray[np.bool_], start: int) -> None:
        """Counts rows of a kind, and keeps the first of them."""
        if found.any():
            rows, first = self._seen.get(kind, (0, start + int(found.argmax())))
            self._seen[kind] = rows + int(found.sum()), first

    def _first(self, kind: str) -> int:
        return self._seen.get(kind, (0, -1))[1]

    def _where(self, kind: str) -> str:
        """Return the number of rows of a kind, and the first of them, in words."""
        rows, first = self._seen[kind]
        return f"{rows:,} {'row' if rows == 1 else 'rows'}, the first in row {first + 1:,}"

    def _note_of_codes(self) -> str:
        """Return a sentence if numbers lose their notation, and may be codes; else ""."""
        if self._trained:
            return ""
        say = f"say so (--categorical {in_shell(self.name)})."
        if _ZEROS in self._seen:
            zeros = f"column {self.name!r} holds numbers with leading zeros, which are lost"
            return f"{zeros}; if it is a code, such as a ZIP code, {say}"
        if _CODED in self._seen:
            where = self._where(_CODED)
            coded = f"column {self.name!r} holds numbers written as 3E2 or +49 are, in {where}"
            return f"{coded}; they are read as 300 and 49: if it is a code, {say}"
        if self._spelled is not None and _MERGED in self._seen:
            several = f"column {self.name!r} writes one number in several ways, as 1.1 and 1.10 are"
            return f"{several}, in {self._where(_MERGED)}; they count as one: if it is a code, {say}"
        return ""

    def _note_of_marks(self) -> str:
        """Return a sentence if numbers have marks of several kinds around them; else ""."""
        measured = any(mark and not is_currency(mark) for mark in self._marked)
        kinds = {mark: rows for mark, rows in self._marked.items() if mark or measured}
        if len(kinds) < 2:
            return ""
        listed = ", ".join(f"{mark or 'none'}: {rows:,}" for mark, rows in kinds.items())
        return (
            f"column {self.name!r} holds numbers with several marks ({listed} rows), which are read as they "
            "stand, "
            "12.5% as 12.5; if they measure different things, write them in one unit, or drop it (--drop "
            f"{in_shell(self.name)})."
        )

    def _suggest_format(self) -> tuple[str, str]:
        """The format of dates that reads all cells so far, as it is typed after the column, and another."""
        first, *others = self._forms or ["FORMAT"]
        return "" if first == "iso" else f"={first}", " (or monthfirst: check which is meant)" * (
            first == "dayfirst" and bool(others)
        )

    def _distinct(self, column: pd.Series) -> tuple[Codes, pd.Series]:
        """Return each row's place among cells, distinct if that saves time, and the cells (NA: missing)."""
        odd = odd_types(column)
        if odd:
            raise Unusable(
                f"column {self.name!r} holds values of type {', '.join(sorted(odd))}; expected numbers "
                "or texts. Spread it over columns, or drop it (--drop)."
            )
        cells = texts(column).reset_index(drop=True)
        if is_number(column) and self._codes:
            cells = cells.mask(without_codes(floats(column), self._codes).isna().to_numpy())
        if cells[:_FIRST].nunique() > _FIRST / 2:
            where, distinct, rows = np.arange(len(cells)), cells, None
        else:
            where, found = pd.factorize(cells)
            distinct, rows = pd.Series(found), np.bincount(where[where >= 0], minlength=len(found))
            self._see_absent("", int((where < 0).sum()))
        text = distinct.str.strip()
        gone = text.isin(self._gone).to_numpy() | text.isna().to_numpy()
        for each, count in zip(
            text[gone].fillna(""),
            np.ones(len(text), dtype=int)[gone] if rows is None else rows[gone],
            strict=True,
        ):
            self._see_absent(each, int(count))
        text = text.mask(gone)
        return where, fold_spellings(text) if self._fold else text

    def _see_absent(self, text: str, rows: int) -> None:
        """Counts rows without a value by their word; other signs of a missing value count as one."""
        word = text if text in MISSING_TEXTS and any(map(str.isalpha, text)) else ""
        if rows:
            self._absent[word] = self._absent.get(word, 0) + rows

    def _numbers(
        self,
        text: pd.Series,
        known: npt.NDArray[np.bool_],
        where: Codes,
        start: int,
        marks: tuple[str, str | None],
    ) -> Floats | None:
        """Return numbers or dates of rows, from their places among cells; None if the cells are texts."""
        if not self.numeric and not self._dates:
            return None
        read = read_dates(text, self._form) if self._form is not None else None
        if read is None:
            read = (as_amounts if self._amounts else as_numbers)(text, *marks)
        if self._amounts:
            marked = amount_marks(text.where(read.notna()))
            for mark in marked.dropna().unique():
                rows = int(_in_rows((marked == mark).fillna(False), known, where).sum())
                self._marked[mark] = self._marked.get(mark, 0) + rows
        lost = _in_rows(read.isna(), known, where)
        self._count(_LOST, lost, start)
        self.numeric &= self._stated or not lost.any()
        if self._open and len(text):
            self._look(text, read, known, where, start, any_lost=bool(lost.any()))
        if not self.numeric:
            return None
        every = np.full(len(known) + 1, np.nan)
        form = self._form
        every[:-1][known] = (
            without_codes(read, self._codes) if form is None else without_dates(read, self._codes, form)
        )
        return every[where]

    def _look(
        self,
        text: pd.Series,
        values: pd.Series,
        known: npt.NDArray[np.bool_],
        where: Codes,
        start: int,
        *,
        any_lost: bool,
    ) -> None:
        """Counts cells that lose information as numbers, and cells that are dates."""
        if not self._trained:
            self._count(_LONG, _in_rows(long_numbers(text, values), known, where), start)
            if may_be_codes(text):
                zeros = text.str.contains(r"^[+-]?0\d", regex=True)
                self._count(_ZEROS, _in_rows(zeros, known, where), start)
                self._count(_CODED, _in_rows(text.str.fullmatch(CODES), known, where), start)
            self._see_spellings(text, values, known, where, start)
        parts = (text[:_FIRST], text) if any_lost else ()
        like = f"(?:{LIKE_DATES})|(?:{LIKE_DURATIONS})"
        self._dates &= len(parts) > 0 and all(part.str.fullmatch(like).all() for part in parts)
        if self._dates:
            self._forms = [each for each in self._forms if read_dates(text, each).notna().all()]

    def _see_spellings(
        self, text: pd.Series, values: pd.Series, known: npt.NDArray[np.bool_], where: Codes, start: int
    ) -> None:
        """Counts rows whose number was written in another way before; while there are few numbers."""
        if self._spelled is None:
            return
        other = set()
        for start_at in range(0, len(text), 4 * _FEW_SPELLINGS):  # few blocks where there are many numbers
            first = text[start_at : start_at + 4 * _FEW_SPELLINGS].drop_duplicates()
            for each, value in zip(first.tolist(), values[first.index].tolist(), strict=True):
                if value == value and self._spelled.setdefault(value, each) != each:
                    other.add(each)
                if len(self._spelled) > _FEW_SPELLINGS:
                    self._spelled = None
                    return
        if other:
            self._count(_MERGED, _in_rows(text.isin(other), known, where), start)


def _in_rows(cells: pd.Series, known: npt.NDArray[np.bool_], where: Codes) -> npt.NDArray[np.bool_]:
    """Spread a mask of known cells over the rows."""
    every = np.zeros(len(known) + 1, dtype=np.bool_)
    every[:-1][known] = cells.to_numpy(dtype=np.bool_)
    found: npt.NDArray[np.bool_] = every[where]
    return found


def odd_types(column: pd.Series) -> set[str]:
    """Types of cells that are neither numbers nor texts."""
    if column.dtype == object:
        return {type(value).__name__ for value in column.dropna() if isinstance(value, _NOT_PLAIN)}
    if not isinstance(column.dtype, pd.ArrowDtype):
        return set()
    kind = column.dtype.pyarrow_dtype
    for test, name in (
        (pa.types.is_struct, "dict"),
        (pa.types.is_map, "dict"),
        (pa.types.is_nested, "list"),
        (_is_binary, "bytes"),
    ):
        if test(kind):
            return {name}
    return set()


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _dates(name: str, form: str = "", other: str = "") -> str:
    kind = "durations" if form == "=duration" else "dates"
    numbers = f"column {name!r} holds {kind}; make them numbers (--date {in_shell(name + form)}){other}"
    texts_or_none = f"(--categorical {in_shell(name)}), or drop it (--drop {in_shell(name)})"
    return f"{numbers}, keep them as texts {texts_or_none}."
