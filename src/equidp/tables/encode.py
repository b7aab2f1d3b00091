"""From columns of a table to inputs of a model, by an encoder that can be saved and used on new rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.preprocessing import StandardScaler

from equidp.errors import DataError
from equidp.tables.cells import MISSING
from equidp.tables.checks import LARGEST_NUMBER, check_read, refuse_missing
from equidp.tables.labels import distinct_texts

Floats = npt.NDArray[np.float64]

PRIVATE = (
    "Preprocessing was private: what it took from training rows was released with noise, which epsilon "
    "counts."
)
_BLOCK = 2**20  # values whose mean is taken in one go
CELLS = 2**16
"""Number of cells that texts are hashed to: public, so that a list of cells need not list texts."""


def hash_texts(column: pd.Series) -> npt.NDArray[np.int64]:
    """Return the cell of each text, [n], by the first two bytes of its BLAKE2b hash; missing is a text.

    >>> hash_texts(pd.Series(["cook", "clerk", None, "cook"])).tolist()
    [48805, 48912, 32596, 48805]
    """
    codes, texts = distinct_texts(column)
    cells = [int.from_bytes(blake2b(text.encode(), digest_size=2).digest(), "big") for text in texts]
    found: npt.NDArray[np.int64] = np.asarray(cells, dtype=np.int64)[codes]
    return found


def _one_hot(places: npt.NDArray[np.int64], width: int) -> Floats:
    """Return [n, width]: 1 at each row's place; all zeros for a negative place."""
    matches: Floats = np.zeros((len(places), width))
    rows = np.flatnonzero(places >= 0)
    matches[rows, places[rows]] = 1.0
    return matches


@dataclass(frozen=True)
class Categories:
    """A column of texts, one-hot over `values`. Any other text becomes all zeros."""

    name: str
    values: tuple[str, ...]

    @property
    def marks_missing(self) -> bool:
        """True where missing texts have an input."""
        return MISSING in self.values

    def encode(self, column: pd.Series) -> Floats:
        """Return [n, len(values)]."""
        return _one_hot(self._places(column), len(self.values))

    def knows(self, column: pd.Series) -> npt.NDArray[np.bool_]:
        """Return whether each text, [n], is among the values."""
        return self._places(column) >= 0

    def _places(self, column: pd.Series) -> npt.NDArray[np.int64]:
        codes, texts = distinct_texts(column)
        found: npt.NDArray[np.int64] = pd.Index(self.values).get_indexer(pd.Index(texts))[codes]
        return found


@dataclass(frozen=True)
class HashedCategories:
    """A column of texts, one-hot over `cells` of `hash_texts`. A text in any other cell becomes all zeros."""

    name: str
    cells: tuple[int, ...]

    @property
    def marks_missing(self) -> bool:
        """True where missing texts have an input."""
        return bool(self.knows(pd.Series([None], dtype=object))[0])

    def encode(self, column: pd.Series) -> Floats:
        """Return [n, len(cells)]."""
        return _one_hot(pd.Index(self.cells).get_indexer(hash_texts(column)), len(self.cells))

    def knows(self, column: pd.Series) -> npt.NDArray[np.bool_]:
        """Return whether each text, [n], is in one of the cells."""
        return np.isin(hash_texts(column), self.cells)


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: (x - shift) / scale.

    Attributes:
        name: name of the column.
        shift, scale: mean and deviation of the training rows; or low end and width of a range.
        low, high: range that numbers are clipped to; None: no clipping.
        fill: value of a missing number, after scaling.
        flagged: add an input before this one that is 1 for missing numbers.
    """

    name: str
    shift: float
    scale: float
    low: float | None = None
    high: float | None = None
    fill: float = 0.0
    flagged: bool = False

    @classmethod
    def scaled_by_deviation(cls, name: str, values: Floats, *, flagged: bool = False) -> Numbers:
        """Return a scaling to mean 0 and deviation 1 over these values, [n]; NaN are left out."""
        scaler = StandardScaler()
        parts = (values[start : start + _BLOCK] for start in range(0, len(values), _BLOCK))
        for known in (part[~np.isnan(part)] for part in parts):
            if len(known):
                scaler.partial_fit(known.reshape(-1, 1))
        if not hasattr(scaler, "mean_"):
            scaler.fit(np.zeros((1, 1)))
        return cls(name, float(scaler.mean_[0]), float(scaler.scale_[0]), flagged=flagged)

    @classmethod
    def scaled_by_bounds(cls, name: str, low: float, high: float, *, flagged: bool = False) -> Numbers:
        """Return a scaling of [low, high] to [0, 1]; missing numbers become the middle."""
        return cls(name, low, high - low, low, high, 0.5, flagged)

    @classmethod
    def scaled_by_range(cls, name: str, values: Floats) -> Numbers:
        """Return a scaling of the range of these values, [n], to [0, 1]."""
        return cls.scaled_by_bounds(name, float(values.min()), float(values.max()))

    @property
    def marks_missing(self) -> bool:
        """True where missing numbers have an input."""
        return self.flagged

    def check(self, column: pd.Series) -> None:
        """Raise unless the column holds numbers that can be scaled."""
        if column.dtype != float:
            raise DataError(f"column {self.name!r} holds texts, where the training data had numbers.")
        if (column.abs() > LARGEST_NUMBER).any():
            raise DataError(
                f"column {self.name!r} holds numbers beyond {LARGEST_NUMBER:g}, or infinite numbers; rescale "
                "it."
            )

    def encode(self, column: pd.Series) -> Floats:
        """Return [n, 1], or [n, 2] with the mark of missing numbers first."""
        values = column.to_numpy(dtype=np.float64).reshape(-1, 1)
        clipped = values if self.low is None else np.clip(values, self.low, self.high)
        scaled: Floats = np.nan_to_num((clipped - self.shift) / self.scale, nan=self.fill)
        if not self.flagged:
            return scaled
        return np.concatenate([np.isnan(values).astype(np.float64), scaled], axis=1)


@dataclass(frozen=True)
class TableEncoder:
    """Encoder of a table's columns as inputs.

    Attributes:
        columns: in the order of the inputs.
        missing: "refuse" or "category", as for `TableSource`.
        private: True if everything taken from rows was released with noise and charged.
        textual: target and groups that held texts, and hold texts in other tables too.

    >>> table = pd.DataFrame({"age": [20.0, 40.0], "job": ["cook", "clerk"]})
    >>> encoder = TableEncoder.fit(table, np.array([0, 1]), {"age": (0, 100)}, "refuse")
    >>> TableEncoder.from_json(encoder.to_json()).encode(table).tolist()
    [[0.20000000298023224, 0.0, 1.0], [0.4000000059604645, 1.0, 0.0]]
    """

    columns: tuple[Categories | HashedCategories | Numbers, ...]
    missing: str
    private: bool = False
    textual: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        features: pd.DataFrame,
        train: npt.NDArray[np.int64],
        bounds: Mapping[str, tuple[float, float]],
        missing: str,
    ) -> TableEncoder:
        """Fit scales and categories to the rows `train`; missing numbers are sought in all rows."""
        columns: list[Categories | Numbers] = []
        for name in features.columns:
            column = features[name]
            if column.dtype != float:
                codes, texts = distinct_texts(column)
                columns.append(
                    Categories(name, tuple(sorted({texts[code] for code in np.unique(codes[train])})))
                )
                continue
            flagged = bool(column.isna().any())
            if name in bounds:
                columns.append(Numbers.scaled_by_bounds(name, *bounds[name], flagged=flagged))
            else:
                values = column.to_numpy(dtype=np.float64)[train]
                columns.append(Numbers.scaled_by_deviation(name, values, flagged=flagged))
        return cls(tuple(columns), missing)

    def check(self, table: pd.DataFrame) -> None:
        """Raise a DataError unless `encode` can encode all rows."""
        names = [column.name for column in self.columns]
        check_read(table, names)
        if self.missing == "refuse":
            refuse_missing(
                table[names],
                "The model was trained on rows without any: fill them in, or leave those rows out.",
            )
        for column in self.columns:
            if isinstance(column, Numbers):
                column.check(table[column.name])

    def encode(self, table: pd.DataFrame) -> torch.Tensor:
        """Return [n, inputs], float32, from a table with at least the encoder's columns.

        Raises:
            DataError: a column is missing, holds texts instead of numbers, or missing values under "refuse".
        """
        self.check(table)
        blocks = [column.encode(table[column.name]).astype(np.float32) for column in self.columns]
        return torch.from_numpy(np.concatenate(blocks, axis=1))

    def unseen(self, table: pd.DataFrame) -> dict[str, int]:
        """Counts, for each column with such rows, the rows whose text the encoder does not know."""
        counts = {
            column.name: int((~column.knows(table[column.name])).sum())
            for column in self.columns
            if not isinstance(column, Numbers)
        }
        return {name: count for name, count in counts.items() if count}

    def notes(self) -> tuple[str, ...]:
        """Return sentences on the statistics that epsilon does not cover, or that it covers everything."""
        if self.private:
            return (PRIVATE,)
        numbers = [column for column in self.columns if isinstance(column, Numbers)]
        scaled = [column.name for column in numbers if column.low is None]
        listed = [column.name for column in self.columns if isinstance(column, Categories)]
        flagged = [column.name for column in numbers if column.flagged]
        means = "Means and deviations of {} come from the training split; epsilon does not cover them. "
        lists = (
            "The lists of categories of {} come from the training split; epsilon does not cover them, and "
            "the shape of an input and of the weights counts them."
        )
        marks = "That values are missing in {} was read off the data, to add a column that marks them; "
        sentences = (
            (scaled, means + "Public bounds would avoid that."),
            (listed, lists),
            (flagged, marks + "epsilon does not cover it, and the shape counts that column."),
        )
        return tuple(sentence.format(", ".join(names)) for names, sentence in sentences if names)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TableEncoder:
        """Read the output of `to_json`."""
        content = json.loads(text)
        columns = tuple(map(_column, content["columns"]))
        return cls(columns, content["missing"], content["private"], tuple(content["textual"]))


def _column(content: Mapping[str, Any]) -> Categories | HashedCategories | Numbers:
    """Return the column that `asdict` was applied to."""
    if "values" in content:
        return Categories(content["name"], tuple(content["values"]))
    if "cells" in content:
        return HashedCategories(content["name"], tuple(content["cells"]))
    return Numbers(**content)
