"""Columns as codes with names, and splits that keep every group on both sides."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from equidp.data.tables import MISSING
from equidp.errors import DataError


def as_text(column: pd.Series) -> pd.Series:
    """Values as text, whole numbers without a decimal point, "missing" where there is none."""
    if column.dtype == float:
        return column.map(lambda value: MISSING if np.isnan(value) else f"{value:.12g}")
    return column.map(lambda value: MISSING if value is None else str(value))


def coded(column: pd.Series) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes [n] int64 and the name of each; numbers in numeric order, texts in alphabetical order, missing ones last."""
    text = as_text(column)
    present = column.dropna()
    order = np.sort(present.unique()) if column.dtype == float else sorted(set(present))
    names = list(dict.fromkeys(as_text(pd.Series(order, dtype=column.dtype))))
    if column.isna().any() and MISSING not in names:
        names.append(MISSING)
    return pd.Index(names).get_indexer(pd.Index(text)).astype(np.int64), tuple(names)


def crossed(table: pd.DataFrame, columns: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes [n] int64 of the combinations of values that occur, and the name of each, such as "sex=F, race=A".

    One column's groups are named by its plain values.
    """
    parts = [coded(table[column]) for column in columns]
    if len(parts) == 1:
        return parts[0]
    # Combinations that occur, in the order of their values; never the whole product, which may be astronomical.
    found, codes = np.unique(np.stack([code for code, _ in parts], axis=1), axis=0, return_inverse=True)
    names = tuple(
        ", ".join(
            f"{column}={part[1][value]}" for column, part, value in zip(columns, parts, row, strict=True)
        )
        for row in found
    )
    return codes.reshape(-1).astype(np.int64), names


def stratified_rows(
    targets: np.ndarray, groups: np.ndarray, group_names: tuple[str, ...], test_share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train and to test on: by class and group where both allow it, by group alone otherwise.

    Raises:
        DataError: names a group that would have no row on one of the sides.
    """
    lacking = ""
    for strata in (groups * (targets.max() + 1) + targets, groups):
        try:
            train, test = train_test_split(
                np.arange(len(groups)), test_size=test_share, stratify=strata, random_state=seed
            )
        except ValueError:
            continue  # A stratum of one row, or fewer rows on a side than strata.
        sizes = {
            side: np.bincount(groups[rows], minlength=len(group_names))
            for side, rows in (("training", train), ("test", test))
        }
        empty = [(side, int(size.argmin())) for side, size in sizes.items() if size.min() == 0]
        if not empty:
            return train, test
        side, group = empty[0]
        lacking = f"no row of group {group_names[group]!r}, which has {int((groups == group).sum())}, falls into the {side} set"
    if not lacking:
        testing = math.ceil(test_share * len(groups))
        side, rows = min(("test", testing), ("train", len(groups) - testing), key=lambda each: each[1])
        lacking = (
            f"of {len(groups)} rows, {rows} are left to {side} on, too few for {len(group_names)} groups"
        )
    raise DataError(f"{lacking}. Merge groups, give more rows, or change test_share={test_share:g}.")


def known_codes(table: pd.DataFrame, columns: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Codes [n] int64 that `coded` or `crossed` gave these values when they gave `names`.

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
            f"{', '.join(columns)} holds {strange!r}, which the training data did not; known: {', '.join(names)}."
        )
    return codes
