"""Columns as codes with names, and rows to train and to test on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pandas as pd

from equidp.data.columns import MISSING
from equidp.errors import DataError


def as_text(column: pd.Series) -> pd.Series:
    """Returns values as texts: whole numbers without a decimal point, "missing" where there is none."""
    if column.dtype == float:
        return column.map(lambda value: MISSING if np.isnan(value) else f"{value:.12g}")
    return column.map(lambda value: MISSING if value is None else str(value))


def coded(column: pd.Series) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns codes, [n] int64, and the name of each.

    Numbers are in numeric order, texts in alphabetical order, and missing ones come last.

    >>> coded(pd.Series(["no", "yes", None, "no"], dtype=object))
    (array([0, 1, 2, 0]), ('no', 'yes', 'missing'))
    """
    text = as_text(column)
    present = column.dropna()
    order = np.sort(present.unique()) if column.dtype == float else sorted(set(present))
    names = list(dict.fromkeys(as_text(pd.Series(order, dtype=column.dtype))))
    if column.isna().any() and MISSING not in names:
        names.append(MISSING)
    return pd.Index(names).get_indexer(pd.Index(text)).astype(np.int64), tuple(names)


def crossed(table: pd.DataFrame, columns: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns codes, [n] int64, of the combinations of values that occur, and names such as "sex=F, race=A".

    The groups of a single column are named by its plain values.
    """
    parts = [coded(table[column]) for column in columns]
    if len(parts) == 1:
        return parts[0]
    # Only combinations that occur: the product of all columns' values may be astronomical.
    found, codes = np.unique(np.stack([code for code, _ in parts], axis=1), axis=0, return_inverse=True)
    names = tuple(
        ", ".join(
            f"{column}={part[1][value]}" for column, part, value in zip(columns, parts, row, strict=True)
        )
        for row in found
    )
    return codes.reshape(-1).astype(np.int64), names


def rows_by_content(
    table: pd.DataFrame, groups: np.ndarray, group_names: Sequence[str], test_share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows to train on and rows to test on, by a draw from the seed and each row's content.

    Rows with a draw below `test_share` are tested on; in a group without any, the row with the lowest draw
    is. So one more row in the file adds at most one row to the training set and removes none: what holds for
    training sets that differ in one example holds for files that differ in one row. Equal rows have draws of
    their own, as the first, second, ... of them.

    Raises:
        DataError: a group would have no row to train on.
    """
    draws = _draws(table, seed)
    tested = draws < test_share
    for group, name in enumerate(group_names):
        members = np.flatnonzero(groups == group)
        if not tested[members].any():
            tested[members[draws[members].argmin()]] = True
        elif tested[members].all():
            raise DataError(
                f"no row of group {name!r}, which has {len(members)}, falls into the training set. Merge it "
                f"with another group, or change the seed or test_share={test_share:g}."
            )
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def _draws(table: pd.DataFrame, seed: int) -> np.ndarray:
    """Returns a number in [0, 1) for each row, [n]."""
    alike: Counter[tuple[str, ...]] = Counter()
    draws = np.empty(len(table))
    cells = (
        # as_text rounds numbers, so that rows that differ would be equal.
        table[name].map(float.hex) if table[name].dtype == float else as_text(table[name])
        for name in table.columns
    )
    for at, row in enumerate(zip(*cells, strict=True)):
        content = repr((seed, alike[row], row)).encode()
        draws[at] = (int.from_bytes(blake2b(content, digest_size=8).digest(), "big") >> 11) / 2**53
        alike[row] += 1
    return draws


def known_codes(table: pd.DataFrame, columns: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Returns codes, [n] int64, by the names that `coded` or `crossed` gave when they read the training data.

    Raises:
        DataError: a value, or a combination of values, that was not among them.
    """
    texts = [as_text(table[column]) for column in columns]
    labels = texts[0]
    if len(texts) > 1:
        rows = zip(*texts, strict=True)
        labels = pd.Series([", ".join(f"{c}={v}" for c, v in zip(columns, row, strict=True)) for row in rows])
    codes: np.ndarray = pd.Index(names).get_indexer(pd.Index(labels)).astype(np.int64)
    if (codes < 0).any():
        strange = labels.to_numpy()[codes < 0][0]
        raise DataError(
            f"{', '.join(columns)} holds {strange!r}, which the training data did not; known: "
            f"{', '.join(names)}."
        )
    return codes
