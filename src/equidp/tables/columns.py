"""A table as its recipe reads it: one column of numbers or texts a name, in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from equidp._extras import require_extra
from equidp._validate import unknown_name
from equidp.errors import DataError, count_text
from equidp.tables.cells import written_texts
from equidp.tables.findings import Finding, Level, sentence
from equidp.tables.parse import Parsed, parse
from equidp.tables.read import notes_of, read
from equidp.tables.recipe import Recipe

with require_extra("tables"):
    import pandas as pd
    import pyarrow as pa

_FEWEST_ROWS = 10


@dataclass(frozen=True)
class Columns:
    """A table as a recipe reads it.

    Attributes:
        table: columns of floats (NaN if missing) or of categories of texts (none if missing), without columns
            that cannot be used.
        parsed: each column, with its findings, in the order of the file.
        notes: sentences on the file itself.
    """

    table: pd.DataFrame
    parsed: Mapping[str, Parsed] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, cells: pa.Table | pd.DataFrame, recipe: Recipe, was_numeric: Mapping[str, bool] | None = None
    ) -> Columns:
        """Return the columns of cells.

        Args:
            cells: as `read` returns them, or a table in memory.
            recipe: how to read them.
            was_numeric: column -> whether it had numbers in the table of a trained model; see `parse`.

        >>> cells = pd.DataFrame({"zip": ["01067"], "age": ["44"]})
        >>> table = Columns.of(cells, Recipe(columns={"zip": {"kind": "text"}})).table
        >>> [*table["zip"], *table["age"]]
        ['01067', 44.0]
        """
        if isinstance(cells, pd.DataFrame):
            cells = pa.Table.from_pandas(cells, preserve_index=False)
        was, parsed, notes, rows = was_numeric or {}, {}, notes_of(cells), cells.num_rows
        while cells.num_columns:  # cells that were parsed are not kept
            name, column = cells.column_names[0], cells.column(0)
            cells = cells.remove_column(0)
            if name:
                parsed[name] = parse(name, column, recipe, was.get(name))
        values = {name: each.values for name, each in parsed.items() if each.values is not None}
        return cls(pd.DataFrame(values, index=range(rows), copy=False), parsed, notes)

    def findings(self, level: Level) -> Iterator[tuple[str, Finding]]:
        """Yield the findings of a level, each with the name of its column."""
        for name, parsed in self.parsed.items():
            yield from ((name, found) for found in parsed.findings if found.level is level)

    def sentences(self, level: Level) -> list[str]:
        """Return a sentence for each finding of a level."""
        return [sentence(found, name) for name, found in self.findings(level)]

    def first_text_phrase(self, name: str) -> str:
        """Return ", the first in row N" for the first cell that is not a number, without its value; or ""."""
        row = self.parsed[name].first_text if name in self.parsed else -1
        return "" if row < 0 else f", the first in row {row + 1:,}"


def written_rows(path: Path, recipe: Recipe, names: list[str]) -> pd.DataFrame:
    """Return these columns of a file as they are written."""
    cells = read(path, recipe, lambda _: names)
    return pd.DataFrame({name: written_texts(cells[name]) for name in names})


def rows_problem(rows: int, fewest: int = _FEWEST_ROWS) -> list[str]:
    """Return a list with a message if a file has too few rows, else []."""
    if rows >= fewest:
        return []
    return [f"the file holds {count_text(rows, 'row')}; expected at least {fewest}. Give a larger file."]


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
        only: columns to read, if the file has them. None: all.
        fewest: minimum number of rows of the file.
        was_numeric: column -> whether it had numbers in the table of a trained model; see `parse`.

    Raises:
        DataError: the file is not a table, has duplicate or nameless columns, or too few rows; or, if all
            columns are read, lacks columns that the recipe names.
    """

    def choose(names: list[str]) -> list[str]:
        if only is None:
            check_names([name for name in names if name], recipe.named_columns())
        return [name for name in names if name not in recipe.drop and (only is None or name in only)]

    columns = Columns.of(read(path, recipe, choose), recipe, was_numeric)
    for problem in rows_problem(len(columns.table), fewest):
        raise DataError(f"{str(path)!r}: {problem}", field="rows")
    return columns


def check_names(columns: Iterable[str], wanted: Mapping[str, Sequence[str]]) -> None:
    """Raise unless each name is a column; `wanted` has the names by the option that named them.

    >>> check_names(["age", "sex"], {"drop": ["agee"]})
    Traceback (most recent call last):
    equidp.errors.DataError: unknown column in drop 'agee'. Did you mean 'age'? Known: age, sex.
    """
    columns = list(columns)
    unknown = [
        str(unknown_name(f"column in {option}", name, columns))
        for option, names in wanted.items()
        for name in names
        if name not in columns
    ]
    if not unknown:
        return
    known = f" Known: {', '.join(sorted(columns))}."
    hint = ""
    if len(columns) == 1:
        hint = " It is the only column: if a character in it separates columns, say so (sep in [table])."
    elif any(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in columns):
        hint = " Is the first line a row? Put one with the names of the columns before it."
    raise DataError(" ".join(each.removesuffix(known) for each in unknown) + known + hint)
