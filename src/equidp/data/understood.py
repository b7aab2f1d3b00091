"""What the columns of a table hold, as a recipe says: numbers, texts, dates or nothing that can be used."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import pandas as pd

from equidp.data.columns import (
    LIKE_DATES,
    as_cells,
    as_numbers,
    days,
    is_time,
    read_dates,
    without_codes,
)
from equidp.data.recipe import Recipe

UNREADABLE_SHARE = 0.5
"""Share of a column that may be unreadable as the numbers or dates that it was said to hold."""
MOST_TEXTS = 2**16
"""Distinct texts of a column that are kept batch by batch: far more than may be categories."""
_FIRST = 1000
_NOT_PLAIN = (list, tuple, dict, set, bytes, np.ndarray)

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """A table as a recipe understands it.

    Attributes:
        table: columns of floats (NaN where missing) or of strings (None where missing).
        problems: a sentence for each column that cannot be used, which the table lacks.
        notes: a sentence for each column of which some cells counted as missing, or lost leading zeros.
        key: what the table is kept under on disk; "": it is in memory.
    """

    table: pd.DataFrame
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    key: str = ""


class Unusable(Exception):
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
        reader = ColumnReader(name, recipe)
        try:
            numbers, codes = reader.read(raw[name], last=True)
            is_number, note = reader.settled()
            if is_number:
                table[name] = pd.Series(numbers, index=raw.index)
            else:
                texts = np.array([*reader.texts, None], dtype=object)
                table[name] = pd.Series(texts[codes], index=raw.index, dtype=object)
            notes += [note] if note else []
        except Unusable as problem:
            problems.append(str(problem))
    return Columns(pd.DataFrame(table, index=raw.index), tuple(problems), tuple(notes))


@final
class ColumnReader:
    """Understands one column, batch by batch; what it holds is known after the last one.

    Attributes:
        name: of the column.
        texts: text -> its code, in the order of their first rows.
        numeric: whether all known values so far are numbers, as far as the recipe leaves that open.
        textual: whether it may still hold texts, so that `read` gives codes.

    >>> reader = ColumnReader("zip", Recipe())
    >>> reader.read(pd.Series(["44", "?"]))
    (array([44., nan]), array([ 0, -1]))
    >>> reader.read(pd.Series(["none", "44"])), reader.settled(), list(reader.texts)
    ((None, array([1, 0])), (False, ''), ['44', 'none'])
    """

    def __init__(self, name: str, recipe: Recipe) -> None:
        self.name, self.texts = name, dict[str, int]()
        self._codes, self._form = recipe.missing_texts(name), dict(recipe.date).get(name)
        self._marks = recipe.decimal_of(name), recipe.thousands_of(name)
        self._stated = name in recipe.numeric or self._form is not None
        self._names_people = name == recipe.person
        self.numeric = self._stated or not (name in recipe.categorical or self._names_people)
        self.textual = not self._stated
        self._open = self.numeric and self.textual
        self._most = sys.maxsize if self._names_people else MOST_TEXTS
        self._rows = self._known = self._lost = 0
        self._first_lost = -1
        self._zeros, self._dates, self._iso = False, self._open, True

    def read(self, column: pd.Series, *, last: bool = False) -> tuple[Floats | None, Codes | None]:
        """Returns the next cells as numbers, [n], NaN where missing, and as codes of texts, [n], -1 there.

        None stands for numbers where a value is none, and for codes where it cannot hold texts any more.

        Args:
            column: cells as `read_as_written` gives them.
            last: there are no more, so that numbers need no codes.

        Raises:
            Unusable: it holds dates, or neither numbers nor texts.
        """
        if is_time(column):
            if self._form is None:
                raise Unusable(_dates(self.name))
            return days(column).to_numpy(), None
        if self._names_people:
            column = column.astype("string")  # exact: numbers of 17 digits would merge people as floats
        elif pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            numbers = without_codes(column.astype(float), self._codes)
            if self._form is None and self.numeric:
                self.textual = self._dates = False
                return numbers.to_numpy(), None
            column = numbers.map(lambda value: None if np.isnan(value) else f"{value:.12g}").astype(object)
        where, text = self._distinct(column)
        start, self._rows = self._rows, self._rows + len(where)
        known = text.notna().to_numpy()
        self._known += int(np.append(known, False)[where].sum())
        numbers = self._numbers(text[known], known, where, start)
        if self._stated or not self.textual or (last and numbers is not None):
            return numbers, None
        if len(self.texts) + len(known) > self._most and not last:
            self.textual = len(self.texts | dict.fromkeys(text[known].tolist(), 0)) <= self._most
            if not self.textual:
                self.texts.clear()
                return numbers, None
        codes = np.full(len(known) + 1, -1, dtype=np.int64)
        codes[:-1][known] = [self.texts.setdefault(each, len(self.texts)) for each in text[known].tolist()]
        return numbers, codes[where]

    def settled(self) -> tuple[bool, str]:
        """Returns whether the column holds numbers, and a note on cells that counted as missing.

        Raises:
            Unusable: it holds dates; most of it is not what the recipe says; or too many texts for codes.
        """
        if self._stated and self._lost:
            kind = "numbers" if self._form is None else f"dates ({self._form})"
            lost = f"column {self.name!r} is to hold {kind}"
            lost += f"{{}} {self._lost:,} of its {self._known:,} values are not, "
            lost += f"the first in row {self._first_lost + 1:,}"
            if self._lost > UNREADABLE_SHARE * self._known:
                raise Unusable(lost.format(", but") + "; equidp inspect shows what it holds.")
            return True, lost.format(":") + ", and count as missing."
        if self.numeric:
            zeros = f"column {self.name!r} holds numbers with leading zeros, which are lost"
            note = f"{zeros}; if it is a code, such as a ZIP code, say so (--categorical {self.name!r})."
            return True, note if self._zeros and not self._stated else ""
        if self._dates:
            raise Unusable(_dates(self.name, "" if self._iso else "=dayfirst"))
        if not self.textual:
            first = f", the first that is no number in row {self._first_lost + 1:,}"
            raise Unusable(
                f"column {self.name!r} has more than {MOST_TEXTS:,} distinct texts"
                f"{first if self._first_lost >= 0 else ''}: too many for categories. If it names the rows, "
                "drop it (--drop); if it holds numbers such as 1,234.5, say so (--thousands, --decimal); if "
                f"what is no number counts as missing, say so (--numeric {self.name!r})."
            )
        return False, ""

    def _distinct(self, column: pd.Series) -> tuple[Codes, pd.Series]:
        """For each row a place among cells as `as_cells` gives them, which are distinct if that pays."""
        if column.dtype == object:
            odd = {type(value).__name__ for value in column.dropna() if isinstance(value, _NOT_PLAIN)}
            if odd:
                raise Unusable(
                    f"column {self.name!r} holds values of type {', '.join(sorted(odd))}; expected numbers "
                    "or texts. Spread it over columns, or drop it (--drop)."
                )
        cells = column.astype("string").reset_index(drop=True)
        if cells[:_FIRST].nunique() > _FIRST / 2:
            return np.arange(len(cells)), as_cells(cells, self._codes)
        places, distinct = pd.factorize(cells)
        return places, as_cells(pd.Series(distinct), self._codes)

    def _numbers(
        self, text: pd.Series, known: npt.NDArray[np.bool_], where: Codes, start: int
    ) -> Floats | None:
        """The numbers or dates of rows, which have their places among cells; None where they are texts."""
        if not self.numeric and not self._dates:
            return None
        values = as_numbers(text, *self._marks) if self._form is None else read_dates(text, self._form)
        lost = np.zeros(len(known) + 1, dtype=np.bool_)
        lost[:-1][known] = values.isna()
        if lost.any():
            rows = lost[where]
            self._first_lost = start + int(rows.argmax()) if self._first_lost < 0 else self._first_lost
            self._lost += int(rows.sum())
            self.numeric = self._stated
        if self._open and len(text):
            zeros = text[text.str.startswith("0")]
            self._zeros |= bool(zeros.str.fullmatch(r"0\d+").any())
            parts = (text[:_FIRST], text) if lost.any() else ()
            self._dates &= len(parts) > 0 and all(part.str.fullmatch(LIKE_DATES).all() for part in parts)
            self._iso &= not self._dates or bool(text.str.contains(r"^\d{4}-").all())
        if not self.numeric:
            return None
        every = np.full(len(known) + 1, np.nan)
        every[:-1][known] = without_codes(values, self._codes) if self._form is None else values
        return every[where]


def _dates(name: str, form: str = "") -> str:
    numbers = f"column {name!r} holds dates; make them numbers (--date '{name}{form}')"
    return f"{numbers}, or drop it (--drop {name!r})."
