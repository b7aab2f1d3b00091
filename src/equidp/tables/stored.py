"""Tables interpreted by a recipe: in memory, or, for large files, as arrays on disk.

A large file is read in batches, once, into one array for each column: numbers as float64, texts as codes
with a list of texts. The table that results is a `pandas.DataFrame` of memory-mapped columns, and holds what
it would hold in memory.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from equidp.errors import DataError
from equidp.tables.batches import NotPlain, batches, content_digest, is_large, names_of, stamp
from equidp.tables.cache import Array, cached_folder, key_of, mapped_array, mapped_tensor, write_array
from equidp.tables.checks import check_names
from equidp.tables.interpret import ColumnFacts, ColumnReader, Columns, Unusable, interpret_table
from equidp.tables.read import SEPARATORS, LineEnds, check_distinct, is_parquet, read_as_written, readable
from equidp.tables.recipe import Recipe

_FEWEST_ROWS = 10
_BLOCK = 2**16
_NOT_OF_CELLS = (
    "target",
    "group",
    "bounds",
    "target_bounds",
    "weight",
    "missing",
    "test_share",
    "positive",
    "rows_per_person",
)
"""Options of a recipe that do not change the meaning of a cell."""


def read_table(
    path: Path,
    recipe: Recipe = Recipe(),
    *,
    only: Sequence[str] | None = None,
    fewest: int = _FEWEST_ROWS,
    held: Mapping[str, bool] | None = None,
) -> Columns:
    """Returns columns of floats (NaN where missing) or of strings (None where missing), and their problems.

    Args:
        path: the file, or a folder of Parquet files.
        recipe: how to read it; columns that it drops are left out.
        only: columns to read, if the file has them; None: all, and a large table is cached on disk.
        fewest: minimum number of rows of the file.
        held: column -> whether it held numbers in the table that a model was trained on; see `ColumnReader`.

    Raises:
        DataError: not a table, duplicate or nameless columns, too few rows; or, where all columns are read,
            the recipe names columns that the file lacks; or, of a large one, no space on disk for it, or it
            changes while it is read.
    """
    with readable(path):
        large = is_large(path)
    if large:
        return _read_large_table(path, recipe, only, fewest, held or {})
    written, notes = written_whole(path, recipe, only)
    _check_rows(path, len(written), fewest)
    read = interpret_table(written[_check_columns(written.columns, recipe, only)], recipe, held)
    return dataclasses.replace(read, notes=(*notes, *read.notes))


def written_whole(
    path: Path, recipe: Recipe, only: Sequence[str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Returns a whole file as `read_as_written` does, and notes on its rows."""
    written, seen = read_as_written(path, recipe), LineEnds()
    if not (path.is_dir() or is_parquet(path.name)):
        with readable(path):
            seen.add(written, {*SEPARATORS, recipe.sep}, _select_columns(written.columns, recipe, only))
    return written, seen.notes()


def _check_rows(path: Path, rows: int, fewest: int) -> None:
    if rows < fewest:
        raise DataError(f"{path} holds {rows} rows; expected at least {fewest}. Give a larger file.")


def _check_columns(names: Sequence[str], recipe: Recipe, only: Sequence[str] | None) -> list[str]:
    """Return the columns to read; with `only` None, check the names in the recipe."""
    if only is None:
        check_names(names, recipe.columns_by_option())
    return _select_columns(names, recipe, only)


def _select_columns(names: Sequence[str], recipe: Recipe, only: Sequence[str] | None) -> list[str]:
    dropped = recipe.columns("drop")
    return [name for name in names if name not in dropped and (only is None or name in only)]


def _read_large_table(
    path: Path, recipe: Recipe, only: Sequence[str] | None, fewest: int, held: Mapping[str, bool]
) -> Columns:
    before = stamp(path)
    with readable(path):
        names = names_of(path, recipe)
        check_distinct(path, names)
    names = _check_columns(names, recipe, only)
    with readable(path):
        content = content_digest(path)
    plain = {name: value for name, value in recipe.to_plain().items() if name not in _NOT_OF_CELLS}
    key = key_of("table" if only is None else "new rows", content, plain, names, dict(held))

    def write(folder: Path) -> dict[str, Any]:
        try:
            found = _write_columns(path, recipe, names, folder, held, plain=True)
        except NotPlain:
            found = _write_columns(path, recipe, names, folder, held, plain=False)
        _check_rows(path, found["rows"], fewest)
        if stamp(path) != before:
            raise DataError(f"{os.fspath(path)!r} changed while it was read; try again when it is complete.")
        return found

    size = sum(size for _, size, _ in before)
    folder, facts = cached_folder(key, f"the table {path.name!r}", size, write)
    table = pd.DataFrame(
        {name: _column(folder, about, facts["rows"]) for name, about in facts["columns"].items()},
        index=pd.RangeIndex(facts["rows"]),
        copy=False,
    )
    if only is not None:  # new rows: what is mapped stays until it is let go
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(f".{key}.lock").unlink(missing_ok=True)
    known = {name: ColumnFacts(**about) for name, about in facts["facts"].items()}
    return Columns(table, tuple(facts["problems"]), tuple(facts["notes"]), key, known)


def _column(folder: Path, about: Mapping[str, Any], rows: int) -> pd.Series:
    path = folder / about["file"]
    if about["texts"] is None:
        return pd.Series(mapped_array(path, "float64", (rows,)), copy=False)
    codes = mapped_array(path, "int32", (rows,))
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index(about["texts"], dtype=object)), copy=False)


def _batches(path: Path, recipe: Recipe, names: Sequence[str], plain: bool) -> Iterator[pd.DataFrame]:
    """Yield from `batches`; errors of the file, and no others, become a DataError."""
    with readable(path):
        yield from batches(path, recipe, names, plain=plain)


def _write_columns(
    path: Path,
    recipe: Recipe,
    names: Sequence[str],
    folder: Path,
    held: Mapping[str, bool],
    *,
    plain: bool,
) -> dict[str, Any]:
    """Writes a file for each column, and returns a description of their content."""
    readers = {name: ColumnReader(name, recipe, held.get(name)) for name in names}
    problems: dict[str, str] = {}
    seen, of_csv = LineEnds(), not (path.is_dir() or is_parquet(path.name))
    rows = 0
    with ExitStack() as stack:
        files = {
            (at, kind): stack.enter_context((folder / f"{at}.{kind}").open("wb"))
            for at in range(len(names))
            for kind in ("numbers", "codes")
        }
        for batch in _batches(path, recipe, names, plain):
            rows += len(batch)
            if of_csv and not plain:
                with readable(path):
                    seen.add(batch, {*SEPARATORS, recipe.sep}, names)
            for at, (name, reader) in enumerate(readers.items()):
                if name in problems:
                    continue
                try:
                    numbers, codes = reader.read(batch[name])
                except Unusable as problem:
                    problems[name] = str(problem)
                    continue
                if numbers is not None:
                    write_array(files[at, "numbers"], numbers.astype(np.float64, copy=False))
                if codes is not None:
                    write_array(files[at, "codes"], codes.astype(np.int32))
    columns, notes = {}, seen.notes()
    for at, (name, reader) in enumerate(readers.items()):
        kind = ""
        try:
            if name not in problems:
                is_number, note = reader.settle()
                notes += [note] if note else []
                kind = "numbers" if is_number else "codes"
                texts = None if is_number else list(reader.texts)
                columns[name] = {"file": f"{at}.{kind}", "texts": texts}
        except Unusable as problem:
            problems[name] = str(problem)
        for other in {"numbers", "codes"} - {kind}:
            (folder / f"{at}.{other}").unlink()
    sentences = [problems[name] for name in names if name in problems]
    facts = {name: reader.facts.to_plain() for name, reader in readers.items()}
    return {"rows": rows, "columns": columns, "problems": sentences, "notes": notes, "facts": facts}


def stored_parts(
    what: str,
    key: str,
    rows: Mapping[str, Array],
    inputs: Callable[[Array], torch.Tensor],
    columns: Mapping[str, Array],
) -> dict[str, dict[str, torch.Tensor]]:
    """Returns tensors on disk, by part and column, each with the rows of that part.

    Args:
        what: description in the list of cached files.
        key: cache key of everything that `inputs` depends on.
        rows: part -> its rows.
        inputs: rows -> float32 [rows, d].
        columns: name -> a number for each row of the table, [n].
    """
    width = inputs(np.arange(min(1, max(map(len, rows.values()))))).shape[1]
    bytes_each = 4 * width + sum(column.itemsize for column in columns.values())
    shapes: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
        part: {"inputs": ("float32", (len(at), width))} for part, at in rows.items()
    }
    for part, at in rows.items():
        shapes[part] |= {name: (column.dtype.name, (len(at),)) for name, column in columns.items()}

    def write(folder: Path) -> dict[str, Any]:
        for part, at in rows.items():
            with (folder / f"{part}.inputs").open("wb") as file:
                for start in range(0, len(at), _BLOCK):
                    write_array(file, inputs(at[start : start + _BLOCK]).numpy())
            for name, column in columns.items():
                with (folder / f"{part}.{name}").open("wb") as file:
                    write_array(file, column[at])
        return {}

    whole = key_of(key, *rows.values(), *columns.values())
    folder, _ = cached_folder(whole, what, bytes_each * sum(map(len, rows.values())), write)
    return {
        part: {name: mapped_tensor(folder / f"{part}.{name}", *shape) for name, shape in each.items()}
        for part, each in shapes.items()
    }


def cached_array(what: str, key: str, make: Callable[[], Array]) -> Array:
    """Returns the array that `make` computes, [n] float64, now or from the cache."""

    def write(folder: Path) -> dict[str, Any]:
        values = make()
        with (folder / "values").open("wb") as file:
            write_array(file, values)
        return {"rows": len(values)}

    folder, facts = cached_folder(key, what, 0, write)
    return mapped_array(folder / "values", "float64", (facts["rows"],))
