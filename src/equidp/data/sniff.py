"""Finds the separator and the encoding of a CSV file."""

from __future__ import annotations

import codecs
import csv
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

from equidp.data.read import is_parquet, open_bytes, stated_separator
from equidp.data.recipe import Recipe

SEPARATORS = ",;\t|"
_SAMPLE_ROWS = 200
_CHUNK = 1 << 20
_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def with_format(path: Path, recipe: Recipe) -> Recipe:
    """Returns the recipe with the file's separator and encoding, where those of the recipe do not fit it.

    An encoding fits if it decodes the whole file; a separator fits if it gives each of the first 200 rows
    the same number of columns, at least two.

    Raises:
        OSError, ValueError and others of `open_bytes`: the file cannot be read.
    """
    if is_parquet(path.name):
        return recipe
    encoding = _encoding(path, recipe.encoding)
    if (stated := _stated(path, encoding)) is not None:
        return dataclasses.replace(recipe, encoding=encoding, sep=stated)
    widths = {mark: _width(path, encoding, mark) for mark in (recipe.sep, *SEPARATORS)}
    best = max(widths, key=lambda mark: widths[mark])
    sep = recipe.sep if widths[recipe.sep] > 1 or widths[best] <= 1 else best
    return dataclasses.replace(recipe, encoding=encoding, sep=sep)


def _encoding(path: Path, first: str) -> str:
    start = next(_chunks(path), b"")[:4]
    marked = [name for mark, name in _BYTE_ORDER_MARKS.items() if start.startswith(mark)]
    for encoding in (*marked, first, "utf-8"):
        if _decodes(path, encoding):
            return encoding
    # Latin-1 decodes anything; its control characters are letters and quotes in Windows' code page.
    windows = any(0x80 <= byte < 0xA0 for chunk in _chunks(path) for byte in set(chunk))
    return "cp1252" if windows and _decodes(path, "cp1252") else "latin-1"


def _decodes(path: Path, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for chunk in _chunks(path):
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _chunks(path: Path) -> Iterator[bytes]:
    with open_bytes(path) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _stated(path: Path, encoding: str) -> str | None:
    """The separator that the first line states, where it does."""
    with open_bytes(path) as file, codecs.getreader(encoding)(file) as text:
        return stated_separator(next((line for line in text if line.strip()), "").lstrip("\ufeff"))


def _width(path: Path, encoding: str, sep: str) -> int:
    """The number of columns that a separator gives in every row; 0 where it differs."""
    with open_bytes(path) as file, codecs.getreader(encoding)(file) as text:
        rows = list(itertools.islice(csv.reader(text, delimiter=sep, skipinitialspace=True), _SAMPLE_ROWS))
    widths = {len(row) for row in rows if row}
    return widths.pop() if len(widths) == 1 else 0
