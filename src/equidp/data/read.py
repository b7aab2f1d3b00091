"""Reads a CSV or Parquet file into columns of numbers or texts, and refuses what is neither."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from equidp._validate import unknown_name
from equidp.errors import DataError

PARQUET = (".parquet", ".pq")
MISSING = "missing"
_COMPRESSED = (".gz", ".zip", ".bz2", ".xz", ".zst")
_MOST_CATEGORIES = 1000
LARGEST_NUMBER = 1e18
_FEWEST_ROWS = 10
_DATE = r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[/.]\d{1,2}[/.]\d{4}"
_UNREADABLE = (
    *(OSError, ValueError, OverflowError, MemoryError),
    *(csv.Error, pd.errors.ParserWarning, pa.ArrowException),
)
_NOT_PLAIN = (list, tuple, dict, set, bytes, np.ndarray)


def read_table(
    path: Path, drop: Sequence[str] = (), *, only: Sequence[str] | None = None, fewest: int = _FEWEST_ROWS
) -> pd.DataFrame:
    """Returns columns of floats (NaN where missing) or of strings (None where missing).

    `?` counts as missing, as in census files; true and false are two strings.

    Args:
        path: the file.
        drop: columns to leave out.
        only: columns to read, where the file has them; None: all.
        fewest: rows that the file must have.

    Raises:
        DataError: not a table, duplicate or nameless columns, dates, neither numbers nor texts, too few rows.
    """
    table = _read(path)
    if len(table) < fewest:
        raise DataError(f"{path} holds {len(table)} rows; expected at least {fewest}. Give a larger file.")
    check_columns(table, drop, "drop")
    kept = [name for name in table.columns if name not in drop and (only is None or name in only)]
    return pd.DataFrame({name: _plain(name, table[name]) for name in kept})


def read_as_written(path: Path) -> pd.DataFrame:
    """Returns the whole file: cells of a CSV file as texts, those of a Parquet file with their types.

    Raises:
        DataError: not a table, duplicate or nameless columns.
    """
    return _read(path, as_written=True)


def _read(path: Path, *, as_written: bool = False) -> pd.DataFrame:
    try:
        table = _read_parquet(path) if path.suffix.lower() in PARQUET else _read_csv(path, as_written)
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if path.suffix.lower() in _COMPRESSED:
            reason = "it is compressed; unpack it first"
        elif isinstance(error, UnicodeDecodeError):
            reason = f"byte {error.start + 1:,} is not UTF-8"
        raise DataError(
            f"{path} cannot be read as a table: {reason}. Expected a CSV file in UTF-8 with a header, or "
            "Parquet."
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


def _read_parquet(path: Path) -> pd.DataFrame:
    stored = parquet.read_table(path)
    # Without this, texts that are not UTF-8 would fail later, where they are first used.
    stored.validate(full=True)
    table = stored.to_pandas()
    # pandas writes a named index beside the columns; it is a column of the user's.
    return table.reset_index(drop=all(name is None for name in table.index.names))


def _read_csv(path: Path, as_written: bool) -> pd.DataFrame:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file, skipinitialspace=True), [])
        if not header:
            raise ValueError("it is empty")
        names = [name.strip() for name in header]
        if not all(names):
            raise ValueError(
                f"column {names.index('') + 1} has no name (pandas' index? Write the file with index=False)"
            )
        if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
            raise ValueError(f"its header {names[0]!r} has no commas; separate columns by commas")
        with warnings.catch_warnings():
            # pandas drops values of rows longer than the header, with a warning alone.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            rows = pd.read_csv(
                file,
                header=None,
                dtype=str,
                na_values=["?"],
                na_filter=not as_written,
                skipinitialspace=True,
                names=range(len(names)),
                index_col=False,
            )
    rows.columns = pd.Index(names)
    return rows


def _plain(name: str, column: pd.Series) -> pd.Series:
    """Returns floats where every known value is a number, strings otherwise."""
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise _dates(name)
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return column.astype(float)
    odd = {type(value).__name__ for value in column.dropna() if isinstance(value, _NOT_PLAIN)}
    if odd:
        raise DataError(
            f"column {name!r} holds values of type {', '.join(sorted(odd))}; expected numbers or texts. "
            "Spread it over columns, or drop it."
        )
    text = column.astype("string").str.strip()
    text = text.mask(text.isin(["", "?"]))
    known = text[text.notna()]
    numbers = pd.to_numeric(known, errors="coerce")
    if numbers.notna().all():
        return numbers.astype(float).reindex(column.index)
    if known.str.fullmatch(_DATE).all():
        raise _dates(name)
    return text.astype(object).where(text.notna(), None)


def first_text(column: pd.Series) -> str:
    """Tells the row of the first known value. The value itself may be private."""
    return f"the first in row {int(np.flatnonzero(column.notna())[0]) + 1:,}"


def _dates(name: str) -> DataError:
    return DataError(f"column {name!r} holds dates; turn it into numbers (such as age in years), or drop it.")


def check_columns(table: pd.DataFrame, wanted: Iterable[str], option: str) -> None:
    """Raises unless each name is a column; `option` says where it was given.

    >>> check_columns(pd.DataFrame({"age": [1.0]}), ["agee"], "drop")
    Traceback (most recent call last):
    equidp.errors.DataError: unknown column in drop 'agee'. Did you mean 'age'? Known: age.
    """
    for name in wanted:
        if name not in table.columns:
            error = unknown_name(f"column in {option}", name, table.columns)
            raise DataError(str(error))


def check_read(table: pd.DataFrame, names: Sequence[str]) -> None:
    """Raises unless the table has each column that a trained model reads."""
    lacking = [name for name in names if name not in table.columns]
    if lacking:
        raise DataError(
            f"the table lacks {', '.join(map(repr, lacking))}; expected the columns that the model was "
            "trained on."
        )


def check_features(table: pd.DataFrame) -> None:
    """Raises for columns that cannot be inputs: infinite or very large numbers, or texts that name rows."""
    if not len(table.columns):
        raise DataError(
            "no column is left as an input; expected at least one beside target, groups and dropped columns."
        )
    for name in table.columns:
        column = table[name]
        if column.dtype == float:
            infinite = int(np.isinf(column).sum())
            if infinite:
                raise DataError(
                    f"column {name!r} holds {infinite} infinite values; fix them or drop the column."
                )
            if (column.abs() > LARGEST_NUMBER).any():
                raise DataError(
                    f"column {name!r} holds numbers beyond {LARGEST_NUMBER:g}; rescale it or drop it."
                )
        elif column.nunique() > _MOST_CATEGORIES:
            raise DataError(
                f"column {name!r} has {column.nunique()} distinct texts, more than the {_MOST_CATEGORIES} "
                "that make sense as categories. If it names the rows, drop it."
            )


def refuse_missing(table: pd.DataFrame, otherwise: str) -> None:
    """Raises where values are missing; `otherwise` says what to do about them."""
    counts = table.isna().sum()
    if counts.any():
        listed = ", ".join(f"{name!r}: {count}" for name, count in counts[counts > 0].items())
        raise DataError(
            f"{int(table.isna().any(axis=1).sum())} of {len(table)} rows have missing values ({listed}). "
            f"{otherwise}"
        )
