"""Columns of a table as a recipe interprets them.

Texts are kept as category numbers. Numbers are kept too, but those of Parquet, which are read again wherever
they are used: a table of many rows takes the memory of its inputs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final, overload

import numpy as np

from equidp._extras import require_extra
from equidp._validate import unknown_name
from equidp.errors import DataError, count_text
from equidp.tables.findings import Finding, Kind, Level, sentence
from equidp.tables.interpret import (
    ColumnRecipe,
    Floats,
    Ints,
    Meaning,
    Values,
    category_numbers,
    drop_options,
    examine,
    interpret,
)
from equidp.tables.read import Cells, read_cells
from equidp.tables.recipe import Recipe

with require_extra("tables"):
    import pandas as pd

MOST_TEXTS = 2**16
"""Distinct texts of a column that are listed: far more than may be categories."""
_FEWEST_ROWS = 10


@final
class Table:
    """Columns of floats (NaN where missing), or of categories of texts (none where missing).

    Of the methods of a pandas DataFrame it has those that are used of a table.

    Attributes:
        columns: their names, in the order of the file.
    """

    def __init__(self, columns: Mapping[str, pd.Series | ColumnRecipe], cells: Cells) -> None:
        """Take columns, or how numbers of a stored column are read."""
        self.columns, self._columns, self._cells = tuple(columns), columns, cells

    def __len__(self) -> int:
        return self._cells.rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    @overload
    def __getitem__(self, name: str) -> pd.Series: ...
    @overload
    def __getitem__(self, name: list[str]) -> Table: ...
    def __getitem__(self, name: str | list[str]) -> pd.Series | Table:
        if isinstance(name, list):
            return Table({each: self._columns[each] for each in name}, self._cells)
        column = self._columns[name]
        if isinstance(column, pd.Series):
            return column
        return pd.Series(examine(self._cells.series(name), column)[0], name=name, copy=False)

    def drop(self, *, columns: Iterable[str]) -> Table:
        """Return the table without these columns."""
        gone = set(columns)
        return self[[name for name in self.columns if name not in gone]]

    def assign(self, **columns: pd.Series) -> Table:
        """Return the table with further columns."""
        return Table({**self._columns, **columns}, self._cells)

    def take(self, rows: Ints) -> pd.DataFrame:
        """Return these rows, in memory."""
        return pd.DataFrame({name: self[name].take(rows) for name in self.columns})

    def blocks(self, size: int) -> Iterator[pd.DataFrame]:
        """Yield the rows in memory, `size` at a time."""
        kept = {name: each for name, each in self._columns.items() if isinstance(each, pd.Series)}
        rules = {name: each for name, each in self._columns.items() if isinstance(each, ColumnRecipe)}
        parts = self._cells.batches([*rules], size) if rules else iter([{}] * -(-len(self) // size))
        for at, part in enumerate(parts):
            rows = slice(at * size, (at + 1) * size)
            block = {name: column.iloc[rows].array for name, column in kept.items()}
            block |= {name: examine(part[name], each)[0] for name, each in rules.items()}
            yield pd.DataFrame({name: block[name] for name in self.columns})


def blocks(table: Table | pd.DataFrame, size: int) -> Iterator[pd.DataFrame]:
    """Yield the rows of a table in memory, `size` at a time."""
    if isinstance(table, Table):
        yield from table.blocks(size)
    else:
        yield from (table.iloc[start : start + size] for start in range(0, len(table), size))


@dataclass(frozen=True)
class Columns:
    """A table as a recipe interprets it.

    Attributes:
        table: columns of floats (NaN where missing) or of categories of texts (none where missing); without
            those that cannot be used.
        meanings: of each column, in the order of the file.
        notes: sentences on the rows of the file, and on columns of which some cells count as missing or lose
            how they look.
    """

    table: Table | pd.DataFrame
    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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
        only: columns to read, if the file has them; None: all.
        fewest: minimum number of rows of the file.
        was_numeric: column -> whether it held numbers in the table of a trained model; see `ColumnRecipe.of`.

    Raises:
        DataError: not a table, duplicate or nameless columns, too few rows; or, where all columns are read,
            the recipe names columns that the file lacks; or a Parquet file changes while it is read.
    """

    def choose(names: Sequence[str]) -> list[str]:
        if only is None:
            check_names(names, recipe.columns_by_option())
        dropped = recipe.columns("drop")
        return [name for name in names if name not in dropped and (only is None or name in only)]

    cells = read_cells(path, recipe, choose)
    for problem in rows_problem(cells.rows, fewest):
        raise DataError(f"{str(path)!r}: {problem}", field="rows")
    return interpret_cells(cells, recipe, was_numeric=was_numeric)


def interpret_cells(
    cells: Cells,
    recipe: Recipe,
    names: Sequence[str] | None = None,
    *,
    was_numeric: Mapping[str, bool] | None = None,
) -> Columns:
    """Return the columns of cells as a recipe interprets them.

    Each cell is interpreted without regard to other rows, but in columns that the recipe names under none of
    categorical, numeric and date, which hold numbers where every known value is one.

    Args:
        cells: all cells of a table.
        recipe: how to read them.
        names: columns to interpret; None: all.
        was_numeric: see `read_table`.

    >>> cells = Cells.of(pd.DataFrame({"zip": ["01067"], "age": ["44"]}))
    >>> table = interpret_cells(cells, Recipe(categorical=("zip",))).table
    >>> [*table["zip"], *table["age"]]
    ['01067', 44.0]
    """
    table: dict[str, pd.Series | ColumnRecipe] = {}
    meanings: dict[str, Meaning] = {}
    for name in cells.names if names is None else names:
        was = (was_numeric or {}).get(name)
        rules, column = ColumnRecipe.of(name, recipe, was), cells.series(name)
        numbers, evidence = examine(column, rules)
        meaning = interpret(evidence, rules)
        if meaning.numeric:
            table[name] = rules if cells.on_disk else pd.Series(numbers, name=name, copy=False)
        elif not meaning.unusable:
            codes, texts = category_numbers(column, rules)
            if len(texts) > MOST_TEXTS and name != recipe.person and was is not False:
                options, first = drop_options(rules), meaning.first_text
                problem = Finding(Kind.UNCOUNTED_TEXTS, Level.PROBLEM, options, of=MOST_TEXTS, first=first)
                meaning = dataclasses.replace(meaning, findings=(problem,))
            else:
                listed = pd.Index(texts, dtype=object)
                table[name] = pd.Series(pd.Categorical.from_codes(codes, listed), name=name, copy=False)
        meanings[name] = meaning
    said = (*cells.notes, *_sentences(meanings, Level.DOUBT))
    return Columns(Table(table, cells), meanings, said)


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
