"""Labels of rows: values of columns as codes with names.

A value is named by its text. A whole number has no decimal point. A missing value is named "missing", the
same as that text. The code of a row is the place of its name in a list of all names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp.errors import DataError
from equidp.tables.cells import MISSING, number_text

with require_extra("tables"):
    import pandas as pd

Codes = npt.NDArray[np.int64]


def distinct_texts(column: pd.Series) -> tuple[Codes, list[str]]:
    """Return codes, [n], in the order in which values first occur, and the text of each code.

    "missing" comes last. Values that differ may have one text, as 1 and "1" have.

    >>> distinct_texts(pd.Series([2.0, np.nan, 2.0]))
    (array([0, 1, 0]), ['2', 'missing'])
    """
    numbers = column.dtype == float
    places, values = pd.factorize(column + 0.0 if numbers else column)  # -0.0 is 0
    texts = [number_text(value) if numbers else str(value) for value in values]
    return np.where(places < 0, len(texts), places), [*texts, *([MISSING] if (places < 0).any() else [])]


def code_values(column: pd.Series) -> tuple[Codes, tuple[str, ...]]:
    """Return codes, [n] int64, and the name of each code, which no other code has.

    Numbers are in numeric order, texts in alphabetical order, and "missing" comes last.

    >>> code_values(pd.Series(["no", "yes", None, "no"], dtype=object))
    (array([0, 1, 2, 0]), ('no', 'yes', 'missing'))
    """
    places, texts = distinct_texts(column)
    dtype: Any = float if column.dtype == float else object
    in_order = pd.Series(sorted(column.dropna().unique()), dtype=dtype)
    names = list(dict.fromkeys(distinct_texts(in_order)[1]))
    if column.isna().any() and MISSING not in names:
        names.append(MISSING)
    return pd.Index(names).get_indexer(pd.Index(texts)).astype(np.int64)[places], tuple(names)


class Crossed(NamedTuple):
    """Combinations of values of columns that occur in a table.

    Attributes:
        codes: combination of each row, [n] int64.
        names: names of the combinations, such as "F, A"; for a single column, its plain values.
        values: names of the values of each column.
        places: for each column, the place of its value in each combination.
    """

    codes: Codes
    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    places: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, table: pd.DataFrame, columns: Sequence[str]) -> Crossed:
        """Return the labels of a table.

        >>> Crossed.of(pd.DataFrame({"sex": ["F", "M", "F"], "race": ["A", "A", "B"]}), ["sex", "race"])
        Crossed(codes=array([0, 2, 1]), names=('F, A', 'F, B', 'M, A'), values=(('F', 'M'), ('A', 'B')), \
places=((0, 0, 1), (0, 1, 0)))
        """
        parts = [code_values(table[column]) for column in columns]
        codes, rows = parts[0][0], [(value,) for value in range(len(parts[0][1]))]
        for further, found in parts[1:]:
            # Only combinations that occur: the product of all columns' values may be astronomical.
            both, codes = np.unique(codes * len(found) + further, return_inverse=True)
            rows = [(*rows[at], value) for at, value in zip(*divmod(both, len(found)), strict=True)]
        values = tuple(names for _, names in parts)
        names = tuple(", ".join(each[at] for each, at in zip(values, row, strict=True)) for row in rows)
        places = tuple(tuple(int(at) for at in column) for column in zip(*rows, strict=True))
        return cls(codes.reshape(-1).astype(np.int64), names, values, places)


def cross_columns(table: pd.DataFrame, columns: Sequence[str]) -> tuple[Codes, tuple[str, ...]]:
    """Return codes, [n] int64, of the combinations of values that occur, and their names; see `Crossed`."""
    found = Crossed.of(table, columns)
    return found.codes, found.names


def known_codes(table: pd.DataFrame, columns: Sequence[str], names: Sequence[str]) -> Codes:
    """Return codes, [n] int64, by the names that `code_values` or `cross_columns` gave to training data.

    Raises:
        DataError: a value, or a combination of values, that training data did not have.
    """
    places, texts = distinct_texts(table[columns[0]]) if len(columns) == 1 else cross_columns(table, columns)
    codes: Codes = pd.Index(names).get_indexer(pd.Index(texts)).astype(np.int64)[places]
    if (codes < 0).any():
        unknown = texts[places[codes < 0][0]]
        raise DataError(
            f"{', '.join(columns)} holds {unknown!r}, which the training data did not; known: "
            f"{', '.join(names)}.",
            field=", ".join(columns),
        )
    return codes
