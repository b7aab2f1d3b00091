"""Reads a CSV or Parquet file as a recipe says: the cells as they are written, or as numbers and texts."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from equidp.data.checks import check_names
from equidp.data.recipe import Recipe
from equidp.data.understood import Columns, understood
from equidp.errors import DataError

PARQUET = (".parquet", ".pq")
_FEWEST_ROWS = 10
_COMPRESSED = (".gz", ".bz2", ".xz", ".zip", ".zst")
_UNREADABLE = (
    *(OSError, EOFError, ValueError, OverflowError, MemoryError, csv.Error, pd.errors.ParserWarning),
    *(pa.ArrowException, lzma.LZMAError, zlib.error, zipfile.BadZipFile),
)


def is_file_name(name: str) -> bool:
    """Tells whether a name ends as the file of a table does: .csv, .parquet, compressed or not.

    >>> is_file_name("people.csv.gz"), is_file_name("adult")
    (True, False)
    """
    path = Path(plain_name(name))
    return path.suffix.lower() in (".csv", ".tsv", ".txt", *PARQUET) or path.name != Path(name).name


def is_parquet(name: str) -> bool:
    """Tells whether a name ends as a Parquet file's does."""
    return Path(name).suffix.lower() in PARQUET


def plain_name(name: str) -> str:
    """Returns a file's name without the ending of a compressed file."""
    return name[: -len(Path(name).suffix)] if Path(name).suffix.lower() in _COMPRESSED else name


def read_table(
    path: Path,
    recipe: Recipe = Recipe(),
    *,
    only: Sequence[str] | None = None,
    fewest: int = _FEWEST_ROWS,
) -> Columns:
    """Returns columns of floats (NaN where missing) or of strings (None where missing), and their problems.

    Args:
        path: the file.
        recipe: how to read it; columns that it drops are left out.
        only: columns to read, where the file has them; None: all.
        fewest: rows that the file must have.

    Raises:
        DataError: not a table, duplicate or nameless columns, too few rows; or, where all columns are read,
            the recipe names columns that the file lacks.
    """
    table = read_as_written(path, recipe)
    if len(table) < fewest:
        raise DataError(f"{path} holds {len(table)} rows; expected at least {fewest}. Give a larger file.")
    if only is None:
        check_names(table.columns, recipe.named())
    dropped = recipe.columns("drop")
    kept = [name for name in table.columns if name not in dropped and (only is None or name in only)]
    return understood(table[kept], recipe)


def read_as_written(path: Path, recipe: Recipe = Recipe()) -> pd.DataFrame:
    """Returns the whole file: cells of a CSV file as texts, those of a Parquet file with their types.

    Raises:
        DataError: not a table, duplicate or nameless columns.
    """
    try:
        table = _read_parquet(path) if is_parquet(path.name) else _read_csv(path, recipe)
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, UnicodeDecodeError):
            place = f"byte {error.start + 1:,} is not {recipe.encoding.upper()}"
            reason = f"{place}; give its --encoding, such as latin-1"
        raise DataError(
            f"{path} cannot be read as a table: {reason}. Expected a CSV file with a header, or Parquet; "
            "equidp inspect finds the separator and the encoding of a file."
        ) from error
    names = [str(name) for name in table.columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"{path} has several columns named {', '.join(map(repr, repeated))}; rename or remove all but "
            "one."
        )
    table.columns = pd.Index(names)
    return table


def open_bytes(path: Path) -> IO[bytes]:
    """Opens a file to read, and unpacks it where its name says that it is compressed."""
    kind = path.suffix.lower()
    if kind == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if len(names) != 1:
                raise ValueError(f"it holds {len(names)} files; expected one")
            return io.BytesIO(archive.read(names[0]))
    if kind == ".zst":
        with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
            return io.BytesIO(stream.read())
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    opened: IO[bytes] = openers.get(kind, open)(path, "rb")
    return opened


def _read_parquet(path: Path) -> pd.DataFrame:
    stored = parquet.read_table(path)
    # Without this, texts that are not UTF-8 would fail later, where they are first used.
    stored.validate(full=True)
    table = stored.to_pandas()
    # pandas writes a named index beside the columns; it is a column of the user's.
    return table.reset_index(drop=all(name is None for name in table.index.names))


def _read_csv(path: Path, recipe: Recipe) -> pd.DataFrame:
    encoding = (
        "utf-8-sig" if recipe.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else recipe.encoding
    )
    with open_bytes(path) as stored, io.TextIOWrapper(stored, encoding=encoding, newline="") as file:
        header = next(csv.reader(file, delimiter=recipe.sep, skipinitialspace=True), [])
        if not header:
            raise ValueError("it is empty")
        names = [name.strip() for name in header]
        if not all(names):
            raise ValueError(
                f"column {names.index('') + 1} has no name (pandas' index? Write the file with index=False)"
            )
        others = [mark for mark in ",;\t|" if mark in names[0]]
        if len(names) == 1 and others:
            mark = "tab" if others[0] == "\t" else others[0]
            raise ValueError(
                f"its header {names[0]!r} is one column; if {mark!r} separates, give --sep '{mark}'"
            )
        with warnings.catch_warnings():
            # pandas drops values of rows longer than the header, with a warning alone.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            rows = pd.read_csv(
                file,
                header=None,
                dtype=str,
                sep=recipe.sep,
                na_filter=False,
                skipinitialspace=True,
                names=range(len(names)),
                index_col=False,
            )
    rows.columns = pd.Index(names)
    return rows
