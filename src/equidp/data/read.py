"""Reads a CSV or Parquet file, or a folder of Parquet files: the cells as they are written."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, TextIO

import pandas as pd
import pyarrow as pa
from pyarrow import dataset

from equidp.data.recipe import Recipe
from equidp.errors import DataError, EquidpError

PARQUET = (".parquet", ".pq")
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


def read_as_written(path: Path, recipe: Recipe = Recipe()) -> pd.DataFrame:
    """Returns the whole file: cells of a CSV file as texts, those of a Parquet file with their types.

    Raises:
        DataError: not a table, duplicate or nameless columns.
    """
    with readable(path):
        whole = path.is_dir() or is_parquet(path.name)
        table = _read_parquet(path) if whole else _read_csv(path, recipe)
    check_distinct(path, table.columns)
    table.columns = pd.Index(map(str, table.columns))
    return table


def check_distinct(path: Path, columns: Iterable[object]) -> None:
    """Raises unless the names of the columns differ."""
    names = [str(name) for name in columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"{path} has several columns named {', '.join(map(repr, repeated))}; rename or remove all but "
            "one."
        )


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns all that can be wrong with a file into one DataError."""
    try:
        yield
    except EquidpError:
        raise
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, UnicodeDecodeError):
            place = f"byte {error.start + 1:,} is not {error.encoding.upper()}"
            reason = f"{place}; give its --encoding, such as latin-1"
        raise DataError(
            f"{path} cannot be read as a table: {reason}. Expected a CSV file with a header, or Parquet; "
            "equidp inspect finds the separator and the encoding of a file."
        ) from error


def open_bytes(path: Path) -> IO[bytes]:
    """Opens a file to read, and unpacks it where its name says that it is compressed."""
    kind = path.suffix.lower()
    if kind == ".zip":
        archive = zipfile.ZipFile(path)  # open as long as what is read from it
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if len(names) != 1:
            raise ValueError(f"it holds {len(names)} files; expected one")
        return archive.open(names[0])
    if kind == ".zst":
        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    opened: IO[bytes] = openers.get(kind, open)(path, "rb")
    return opened


def parquet_dataset(path: Path) -> dataset.Dataset:
    """Opens a Parquet file, or all of a folder, whose columns must be the same.

    Raises:
        ValueError: files of other columns, or none.
    """
    if not path.is_dir():
        return dataset.dataset(path, format="parquet")
    found = [each for each in path.rglob("*") if each.is_file()]
    files = sorted(str(each) for each in found if is_parquet(each.name) and each.name[0] not in "._")
    if not files:
        raise ValueError("the folder holds no Parquet file (.parquet)")
    open_all = partial(
        dataset.dataset, files, format="parquet", partitioning="hive", partition_base_dir=str(path)
    )
    opened = open_all()
    schemas = {each.path: each.physical_schema for each in opened.get_fragments()}
    first = set(next(iter(schemas.values())).names)
    for name, schema in schemas.items():
        if differing := sorted(first ^ set(schema.names)):
            listed = ", ".join(map(repr, differing[:5]))
            raise ValueError(f"{name} has other columns than {files[0]}: only one of them has {listed}")
    partitions = [field for field in opened.schema if field.name not in first]
    whole = pa.unify_schemas([*schemas.values()], promote_options="permissive")
    return open_all(schema=pa.schema([*whole, *partitions], metadata=whole.metadata))


def parquet_names(schema: pa.Schema) -> list[str]:
    """Returns the names of columns as pandas reads them: a named index is a column of the user's."""
    return [str(name) for name in _without_index(schema.empty_table().to_pandas()).columns]


def _without_index(table: pd.DataFrame) -> pd.DataFrame:
    return table.reset_index(drop=all(name is None for name in table.index.names))


def _read_parquet(path: Path) -> pd.DataFrame:
    stored = parquet_dataset(path).to_table()
    # Without this, texts that are not UTF-8 would fail later, where they are first used.
    stored.validate(full=True)
    return _without_index(stored.to_pandas())


def text_encoding(recipe: Recipe) -> str:
    """Returns the encoding of a CSV file; UTF-8 may begin with a byte order mark."""
    plain = recipe.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return "utf-8-sig" if plain else recipe.encoding


def _read_csv(path: Path, recipe: Recipe) -> pd.DataFrame:
    encoding = text_encoding(recipe)
    with open_bytes(path) as stored, io.TextIOWrapper(stored, encoding=encoding, newline="") as file:
        names = csv_header(file, recipe)
        return pd.concat(csv_rows(file, recipe, names, None))


def csv_header(file: TextIO, recipe: Recipe) -> list[str]:
    """Reads the names of columns, and leaves the file at its first row.

    Raises:
        ValueError: there are none, or one is empty.
    """
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
        raise ValueError(f"its header {names[0]!r} is one column; if {mark!r} separates, give --sep '{mark}'")
    return names


def csv_rows(file: TextIO, recipe: Recipe, names: list[str], size: int | None) -> Iterator[pd.DataFrame]:
    """Yields the rows after the header as texts, so many at a time, or all at once."""
    with warnings.catch_warnings():
        # pandas drops values of rows longer than the header, with a warning alone.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        parts = pd.read_csv(
            file,
            header=None,
            dtype=str,
            sep=recipe.sep,
            na_filter=False,
            skipinitialspace=True,
            names=range(len(names)),
            index_col=False,
            chunksize=size,
        )
        for rows in [parts] if size is None else parts:
            rows.columns = pd.Index(names)
            yield rows
