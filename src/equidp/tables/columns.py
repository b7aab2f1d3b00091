"""Columns of a table as a recipe interprets them: in memory, or, of a large file, as arrays on disk.

Either way the cells of each column are read twice at most: as numbers, and again as category numbers if some
are texts. The arrays of a large file are kept under its content and recipe, and memory-mapped.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equidp._extras import require_extra
from equidp._validate import unknown_name
from equidp.errors import DataError, count_text
from equidp.store import Entry, key_of
from equidp.tables.cache import Array, mapped_array, table_store, write_array
from equidp.tables.findings import Finding, Kind, Level, sentence
from equidp.tables.interpret import (
    ColumnRecipe,
    Evidence,
    Floats,
    Meaning,
    Values,
    category_numbers,
    drop_options,
    examine,
    interpret,
)
from equidp.tables.read import (
    Cells,
    check_distinct,
    content_digest,
    is_large,
    names_of,
    read_cells,
    readable,
    stamp,
)
from equidp.tables.recipe import Recipe

with require_extra("tables"):
    import pandas as pd

MOST_TEXTS = 2**16
"""Distinct texts of a column that are listed: far more than may be categories."""
_FEWEST_ROWS = 10
_NOT_OF_CELLS = (
    *("target", "group", "bounds", "target_bounds", "weight", "missing", "test_share", "positive"),
    "rows_per_person",
)
"""Options of a recipe that do not change the meaning of a cell."""


@dataclass(frozen=True)
class Columns:
    """A table as a recipe interprets it.

    Attributes:
        table: columns of floats (NaN where missing) or of categories of texts (none where missing); without
            those that cannot be used.
        meanings: of each column, in the order of the file.
        notes: sentences on the rows of the file, and on columns of which some cells count as missing or lose
            how they look.
        key: cache key of a table on disk; "": it is in memory.
    """

    table: pd.DataFrame
    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    key: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """Return a sentence for each column that cannot be used."""
        return _sentences(self.meanings, Level.PROBLEM)

    def first_text_phrase(self, name: str) -> str:
        """Return ", the first in row N" for the first cell that is not a number, without its value; or ""."""
        row = self.meanings[name].first_text if name in self.meanings else -1
        return "" if row < 0 else f", the first in row {row + 1:,}"

    def absent(self, name: str) -> Mapping[str, int]:
        """Return the rows of each text that counts as missing in a column; "" for others without a value."""
        if name in self.meanings:
            return self.meanings[name].absent
        return {"": int(self.table[name].isna().sum())}

    def values(self, name: str) -> Floats | Values:
        """Return the numbers of a column, [n], NaN where missing, or its texts, the most frequent first."""
        column = self.table[name]
        if column.dtype == float:
            return np.asarray(column, dtype=np.float64)
        column = column.astype("category")
        codes, listed = column.cat.codes.to_numpy(), pd.Series(column.cat.categories, dtype="string")
        places = codes[codes >= 0]
        rows, first = np.bincount(places, minlength=len(listed)), np.zeros(len(listed), dtype=np.int64)
        first[places[::-1]] = np.flatnonzero(codes >= 0)[::-1]
        return Values(listed.mask(rows == 0), rows, first, places[:0], {}).group_texts()


def rows_problem(rows: int, fewest: int = _FEWEST_ROWS) -> list[str]:
    """Return a list with a message if a file has too few rows, else []."""
    if rows >= fewest:
        return []
    return [f"the file holds {count_text(rows, 'row')}; expected at least {fewest}. Give a larger file."]


def _sentences(meanings: Mapping[str, Meaning], level: Level) -> tuple[str, ...]:
    """Return a sentence for each finding of a level."""
    each = ((name, found) for name, meaning in meanings.items() for found in meaning.findings)
    return tuple(sentence(found, name) for name, found in each if found.level is level)


def read_table(
    path: Path,
    recipe: Recipe = Recipe(),
    *,
    only: Sequence[str] | None = None,
    fewest: int = _FEWEST_ROWS,
    was_numeric: Mapping[str, bool] | None = None,
) -> Columns:
    """Return the columns of a file, without those that the recipe drops.

    Args:
        path: the file, or a folder of Parquet files.
        recipe: how to read it.
        only: columns to read, if the file has them; None: all, and a large table is cached.
        fewest: minimum number of rows of the file.
        was_numeric: column -> whether it held numbers in the table of a trained model; see `ColumnRecipe.of`.

    Raises:
        DataError: not a table, duplicate or nameless columns, too few rows; or, where all columns are read,
            the recipe names columns that the file lacks; or, of a large one, no space on disk for it, or it
            changes while it is read.
    """

    def choose(names: Sequence[str]) -> list[str]:
        if only is None:
            check_names(names, recipe.columns_by_option())
        dropped = recipe.columns("drop")
        return [name for name in names if name not in dropped and (only is None or name in only)]

    def read(file: Path | None = None) -> Cells:
        cells = read_cells(path, recipe, choose, file=file)
        for problem in rows_problem(cells.rows, fewest):
            raise DataError(f"{str(path)!r}: {problem}", field="rows")
        return cells

    with readable(path):
        large = is_large(path)
    if not large:
        return interpret_cells(read(), recipe, was_numeric=was_numeric)
    before = stamp(path)
    with readable(path):
        check_distinct(path, names := names_of(path, recipe))
    names = choose(names)
    with readable(path):
        content = content_digest(path)
    plain = {name: value for name, value in recipe.to_plain().items() if name not in _NOT_OF_CELLS}
    kind = "columns" if only is None else "columns of new rows"
    key = key_of(kind, content, plain, names, dict(was_numeric or {}))

    def write(folder: Path) -> dict[str, Any]:
        cells = read(folder / "cells")
        if stamp(path) != before:
            raise DataError(
                f"{os.fspath(path)!r} changed while it was read; try again when it is complete.", field="path"
            )
        found = _interpret_each(cells, names, recipe, was_numeric or {}, folder)
        (folder / "cells").unlink(missing_ok=True)
        columns = [(dataclasses.asdict(meaning), texts) for meaning, texts, _ in found.values()]
        return {"rows": cells.rows, "notes": cells.notes, "columns": dict(zip(found, columns, strict=True))}

    size = 2 * sum(size for _, size, _ in before)
    store, what = table_store(), f"the table {path.name!r}"
    if only is None:
        return _mapped_columns(store.get_or_make(key, write, what=what, needed=size), key)
    with store.claim(key) as claim:  # until files are mapped: another process may read the same new rows
        columns = _mapped_columns(claim.write(write, what=what, needed=size), key)
        claim.clear()
    return columns


def _mapped_columns(entry: Entry, key: str) -> Columns:
    """Return the columns of an entry; mapped files outlive its removal."""
    found, rows = {}, entry.facts["rows"]
    for at, (name, (plain_meaning, texts)) in enumerate(entry.facts["columns"].items()):
        meaning, array = Meaning.from_plain(plain_meaning), None
        if not meaning.unusable:
            kind, dtype = ("numbers", "float64") if meaning.numeric else ("codes", "int32")
            array = mapped_array(entry.path(f"{at}.{kind}"), dtype, (rows,))
        found[name] = meaning, texts, array
    return _to_columns(found, rows, entry.facts["notes"], key)


def interpret_cells(
    cells: Cells,
    recipe: Recipe,
    names: Sequence[str] | None = None,
    *,
    was_numeric: Mapping[str, bool] | None = None,
) -> Columns:
    """Return the columns of cells as a recipe interprets them, in memory.

    Each cell is interpreted without regard to other rows, but in columns that the recipe names under none of
    categorical, numeric and date, which hold numbers where every known value is one.

    Args:
        cells: all cells of a table.
        recipe: how to read them.
        names: columns to interpret; None: all.
        was_numeric: see `read_table`.

    >>> cells = Cells.of(pd.DataFrame({"zip": ["01067"], "age": ["44"]}))
    >>> interpret_cells(cells, Recipe(categorical=("zip",))).table
         zip   age
    0  01067  44.0
    """
    found = _interpret_each(cells, cells.names if names is None else names, recipe, was_numeric or {}, None)
    return _to_columns(found, cells.rows, cells.notes)


def check_names(columns: Iterable[str], wanted: Mapping[str, Sequence[str]]) -> None:
    """Raise unless each name is a column; `wanted` gives the names by the option that they were given under.

    >>> check_names(["age", "sex"], {"drop": ["agee"]})
    Traceback (most recent call last):
    equidp.errors.DataError: unknown column in drop 'agee'. Did you mean 'age'? Known: age, sex.
    """
    columns = list(columns)
    found = [
        str(unknown_name(f"column in {option}", name, columns))
        for option, names in wanted.items()
        for name in names
        if name not in columns
    ]
    known = f" Known: {', '.join(sorted(columns))}."
    if found:
        numbers = any(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in columns)
        hint = " Is the first line a row? Put one with the names of the columns before it." if numbers else ""
        if len(columns) == 1:
            hint = " It is the only column: if a character in it separates columns, give that (--sep)."
        raise DataError(" ".join(each.removesuffix(known) for each in found) + known + hint)


_Found = dict[str, tuple[Meaning, list[str] | None, Array | None]]
"""Name of a column -> meaning, texts by category number (None for numbers), and the array of its rows."""


def _to_columns(found: _Found, rows: int, notes: Sequence[str], key: str = "") -> Columns:
    table: dict[str, pd.Series] = {}
    for name, (_, texts, array) in found.items():
        if array is not None and texts is None:
            table[name] = pd.Series(array, copy=False)
        elif array is not None:
            listed = pd.Index(texts or [], dtype=object)
            table[name] = pd.Series(pd.Categorical.from_codes(array, listed), copy=False)
    meanings = {name: meaning for name, (meaning, *_) in found.items()}
    said = (*notes, *_sentences(meanings, Level.DOUBT))
    return Columns(pd.DataFrame(table, index=pd.RangeIndex(rows), copy=False), meanings, said, key)


def _interpret_each(
    cells: Cells, names: Sequence[str], recipe: Recipe, was_numeric: Mapping[str, bool], folder: Path | None
) -> _Found:
    """Interpret each column; with a folder, arrays are written to files there, by the place of the column."""
    found: _Found = {}
    for at, name in enumerate(names):
        rules, evidence, rows = ColumnRecipe.of(name, recipe, was_numeric.get(name)), Evidence(), 0
        with _Growing(folder and folder / f"{at}.numbers", np.float64) as numbers:
            for column in cells.column(name):
                part, further = examine(column, rules, rows)
                evidence, rows = evidence + further, rows + len(column)
                numbers.append(part)
        meaning, texts = interpret(evidence, rules), None
        if meaning.numeric:
            found[name] = meaning, None, numbers.array
            continue
        numbers.remove()
        if not meaning.unusable:
            with _Growing(folder and folder / f"{at}.codes", np.int32) as numbers:
                few = name != recipe.person and was_numeric.get(name) is not False
                most = MOST_TEXTS if few else cells.rows
                meaning, texts = _read_texts(cells, rules, meaning, most, numbers)
        found[name] = meaning, texts, None if meaning.unusable else numbers.array
    return found


def _read_texts(
    cells: Cells, rules: ColumnRecipe, meaning: Meaning, most: int, numbers: _Growing
) -> tuple[Meaning, list[str]]:
    """Append the category numbers of a column of texts; return its meaning, and its texts by number."""
    listed: dict[str, int] = {}
    for column in cells.column(rules.name):
        numbers.append(category_numbers(column, rules, listed))
        if len(listed) > most:
            first = meaning.first_text
            options = drop_options(rules)
            problem = Finding(Kind.UNCOUNTED_TEXTS, Level.PROBLEM, options, of=most, first=first)
            numbers.remove()
            return dataclasses.replace(meaning, findings=(problem,)), []
    return meaning, list(listed)


class _Growing:
    """An array that grows in memory, or in a file."""

    def __init__(self, path: Path | None, dtype: type) -> None:
        self._path, self._dtype, self._files = path, dtype, ExitStack()
        self._parts: list[Array] | None = []
        self._file = None if path is None else self._files.enter_context(path.open("wb"))

    def __enter__(self) -> _Growing:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def append(self, values: Array | None) -> None:
        """Append the next values; None removes all of them, and those to come."""
        if values is None or self._parts is None:
            self.remove()
        elif self._file is None:
            self._parts.append(values.astype(self._dtype, copy=False))
        else:
            write_array(self._file, values.astype(self._dtype, copy=False))

    def remove(self) -> None:
        self._parts = None
        if self._path is not None:
            self._files.close()
            self._path.unlink(missing_ok=True)

    @property
    def array(self) -> Array | None:
        """Values in memory; None for those in a file, and for removed ones."""
        if self._parts is None or self._path is not None:
            return None
        return np.concatenate([np.zeros(0, self._dtype), *self._parts])
