"""Files of tables in batches of rows: CSV, compressed or not, Parquet, and folders of Parquet files."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv

from equidp._validate import check_number
from equidp.errors import SettingError
from equidp.tables.cells import texts
from equidp.tables.read import (
    CsvText,
    is_parquet,
    open_bytes,
    open_csv,
    parquet_columns,
    parquet_dataset,
    parquet_names,
    plain_name,
    text_encoding,
)
from equidp.tables.recipe import Recipe

STREAM_VARIABLE = "EQUIDP_STREAM_ABOVE"
STREAM_ABOVE = 64
"""Megabytes of text from which on a file is read in batches."""
_PACKED = 4  # how much larger a compressed file is as text, about
_BATCH_BYTES = 2**24
_BATCH_ROWS = 2**17
_CHUNK = 2**22


class NotPlain(Exception):
    """A CSV file has quotes or similar marks, which parsers may read in several ways."""


def is_large(path: Path) -> bool:
    """Returns True if a file, or a folder of files, is to be read in batches.

    Raises:
        SettingError: `EQUIDP_STREAM_ABOVE` is not a number.
    """
    given = os.environ.get(STREAM_VARIABLE) or str(STREAM_ABOVE)
    try:
        limit = float(given)
        check_number("[0, inf]", limit=limit)
    except (ValueError, SettingError) as error:
        raise SettingError(
            f"{STREAM_VARIABLE} is {given!r}; expected megabytes, such as {STREAM_ABOVE}."
        ) from error
    packed = path.is_dir() or is_parquet(path.name) or plain_name(path.name) != path.name
    return sum(size for _, size, _ in stamp(path)) * (_PACKED if packed else 1) > limit * 1e6


def stamp(path: Path) -> list[tuple[str, int, int]]:
    """Returns name, size and time of the last change of each file, to detect changed files."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    found = [(each, each.stat()) for each in files]
    return [(os.path.relpath(each, path), facts.st_size, facts.st_mtime_ns) for each, facts in found]


def content_digest(path: Path) -> str:
    """Returns a checksum of a file, or of all files of a folder with their names."""
    digest = hashlib.sha256()
    for name, size, _ in stamp(path):
        digest.update(f"{name if path.is_dir() else ''}:{size}:".encode())
        with (path / name if path.is_dir() else path).open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def names_of(path: Path, recipe: Recipe) -> list[str]:
    """Returns the names of the columns, as in `read_as_written`."""
    if path.is_dir() or is_parquet(path.name):
        return parquet_names(parquet_dataset(path).schema)
    with open_csv(path, recipe) as text:
        first: list[str] = next(csv.reader(text.file, delimiter=text.sep, skipinitialspace=True), [])
        if len(first) > len(text.names) and (reason := text.long_row()):
            raise ValueError(reason)
        return text.names


def batches(path: Path, recipe: Recipe, names: Sequence[str], *, plain: bool) -> Iterator[pd.DataFrame]:
    """Yields these columns as `read_as_written` has them, a batch of rows at a time; of CSV with quotes, all.

    Args:
        path: the file.
        recipe: its separator and encoding.
        names: names of the columns.
        plain: parse CSV by Arrow, in a third of the time; False: by the parser of small files.

    Raises:
        NotPlain: Arrow may not read it as a small file is read.
    """
    if path.is_dir() or is_parquet(path.name):
        for batch in parquet_dataset(path).to_batches(columns=list(names), batch_size=_BATCH_ROWS):
            if batch.num_rows:
                batch.validate(full=True)
                yield parquet_columns(batch)
        return
    with open_csv(path, recipe) as text:
        if not plain:
            yield from text.rows(_BATCH_ROWS)
            return
    yield from _by_arrow(path, recipe, text, names)


def written_rows(path: Path, recipe: Recipe, names: Sequence[str], size: int) -> Iterator[pd.DataFrame]:
    """Yields these columns as they are written, `size` rows at a time."""
    left = pd.DataFrame()
    for batch in batches(path, recipe, names, plain=False):
        left = pd.concat([left, batch[list(names)].apply(texts)], ignore_index=True)
        while len(left) >= size:
            yield left[:size]
            left = left[size:].reset_index(drop=True)
    yield left


def _by_arrow(path: Path, recipe: Recipe, text: CsvText, names: Sequence[str]) -> Iterator[pd.DataFrame]:
    if text_encoding(recipe) != "utf-8-sig" or text.sep.isspace():
        raise NotPlain
    with open_bytes(path) as stored:
        # What stands before the rows may have quotes, but no other line ends than the rows.
        before = list(itertools.islice(stored, text.lines))
        if not all(line.endswith(b"\n") and b"\r" not in line.rstrip(b"\r\n") for line in before):
            raise NotPlain
        try:
            reader = arrow_csv.open_csv(
                pa.PythonFile(_Plain(stored), mode="r"),
                arrow_csv.ReadOptions(column_names=text.names, block_size=_BATCH_BYTES),
                arrow_csv.ParseOptions(delimiter=text.sep, quote_char=False),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(text.names, pa.string()),
                    include_columns=list(names),
                    strings_can_be_null=False,
                ),
            )
            for batch in reader:
                yield pd.DataFrame(
                    {name: pd.array(batch.column(name), dtype="string[pyarrow]") for name in names},
                    copy=False,
                )
        except pa.ArrowInvalid as error:
            raise NotPlain from error


class _Plain(io.RawIOBase):
    """Passes bytes on, but for marks that parsers may read in several ways."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        part = self._file.read(size)
        if b'"' in part or b"\0" in part:
            raise NotPlain
        return part
