"""From columns of a table to inputs of a model, in a form that can be kept and used again on new rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from equidp.data.labels import as_text
from equidp.data.read import LARGEST_NUMBER, check_read, first_text, refuse_missing
from equidp.errors import DataError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Categories:
    """A column of texts, one-hot over `values`; a text that is not among them is all zeros."""

    name: str
    values: tuple[str, ...]

    def encode(self, column: pd.Series) -> Floats:
        """[n, len(values)]."""
        text = as_text(column).to_numpy(dtype=object).reshape(-1, 1)
        matches: Floats = (text == np.asarray(self.values, dtype=object)).astype(np.float64)
        return matches


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: (x - shift) / scale, with `fill` where there is none.

    Attributes:
        name: of the column.
        shift, scale: mean and deviation of the training rows; or low end and width of public bounds.
        low, high: public bounds that numbers are clipped to; None: none.
        fill: what a missing number becomes.
        flagged: whether a column before it marks missing numbers.
    """

    name: str
    shift: float
    scale: float
    low: float | None
    high: float | None
    fill: float
    flagged: bool

    def encode(self, column: pd.Series) -> Floats:
        """[n, 1], or [n, 2] with the mark of missing numbers first."""
        if column.dtype != float:
            raise DataError(
                f"column {self.name!r} holds texts, {first_text(column)}, where the training data had numbers."
            )
        if (column.abs() > LARGEST_NUMBER).any():
            raise DataError(
                f"column {self.name!r} holds infinite numbers, or such beyond {LARGEST_NUMBER:g}; rescale it."
            )
        values = column.to_numpy(dtype=np.float64).reshape(-1, 1)
        bounded = values if self.low is None else np.clip(values, self.low, self.high)
        scaled = np.nan_to_num((bounded - self.shift) / self.scale, nan=self.fill)
        return (
            np.concatenate([np.isnan(values).astype(np.float64), scaled], axis=1) if self.flagged else scaled
        )


@dataclass(frozen=True)
class TableEncoder:
    """How a table's columns become inputs.

    Attributes:
        columns: in the order of the inputs.
        missing: "refuse" or "category", as for `TableSource`.
    """

    columns: tuple[Categories | Numbers, ...]
    missing: str

    @classmethod
    def fitted(
        cls,
        features: pd.DataFrame,
        train: npt.NDArray[np.int64],
        bounds: Mapping[str, tuple[float, float]],
        missing: str,
    ) -> TableEncoder:
        """Scales and lists of categories from the rows `train`; which columns have missing numbers, from all rows."""
        columns: list[Categories | Numbers] = []
        for name in features.columns:
            column = features[name]
            if column.dtype != float:
                text = as_text(column).to_numpy(dtype=object).reshape(-1, 1)
                columns.append(Categories(name, tuple(OneHotEncoder().fit(text[train]).categories_[0])))
                continue
            flagged = bool(column.isna().any())
            if name in bounds:
                low, high = bounds[name]
                columns.append(Numbers(name, low, high - low, low, high, 0.5, flagged))
            else:
                values = column.to_numpy(dtype=np.float64)[train]
                known = values[~np.isnan(values)].reshape(-1, 1)
                scaler = StandardScaler().fit(known if len(known) else np.zeros((1, 1)))
                shift, scale = float(scaler.mean_[0]), float(scaler.scale_[0])
                columns.append(Numbers(name, shift, scale, None, None, 0.0, flagged))
        return cls(tuple(columns), missing)

    def encode(self, table: pd.DataFrame) -> torch.Tensor:
        """[n, inputs], float32, from a table with at least the encoder's columns.

        Raises:
            DataError: a column is missing, holds texts where numbers are expected, or missing values that are to be refused.
        """
        names = [column.name for column in self.columns]
        check_read(table, names)
        if self.missing == "refuse":
            refuse_missing(
                table[names],
                "The model was trained on rows without any: fill them in, or leave those rows out.",
            )
        blocks = [column.encode(table[column.name]) for column in self.columns]
        return torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32))

    def unseen(self, table: pd.DataFrame) -> dict[str, int]:
        """How many rows hold a text that the training rows did not, by column; such a text tells the model nothing."""
        counts = {
            column.name: int((~as_text(table[column.name]).isin(column.values)).sum())
            for column in self.columns
            if isinstance(column, Categories)
        }
        return {name: count for name, count in counts.items() if count}

    def notes(self) -> tuple[str, ...]:
        """What epsilon does not cover."""
        numbers = [column for column in self.columns if isinstance(column, Numbers)]
        scaled = [column.name for column in numbers if column.low is None]
        listed = [column.name for column in self.columns if isinstance(column, Categories)]
        flagged = [column.name for column in numbers if column.flagged]
        notes = []
        if scaled:
            notes.append(
                f"Means and deviations of {', '.join(scaled)} come from the training split; epsilon does not cover them. "
                "Public bounds would avoid that."
            )
        if listed:
            notes.append(
                f"The lists of categories of {', '.join(listed)} come from the training split; epsilon does not cover them."
            )
        if flagged:
            notes.append(
                f"That values are missing in {', '.join(flagged)} was read off the data, to add a column that marks them; epsilon "
                "does not cover it."
            )
        return tuple(notes)

    def to_json(self) -> str:
        return json.dumps({"missing": self.missing, "columns": [asdict(column) for column in self.columns]})

    @classmethod
    def from_json(cls, text: str) -> TableEncoder:
        """Reads what `to_json` wrote."""
        content = json.loads(text)
        return cls(tuple(_column(each) for each in content["columns"]), content["missing"])


def _column(content: dict[str, Any]) -> Categories | Numbers:
    if "values" in content:
        return Categories(content["name"], tuple(content["values"]))
    return Numbers(**content)
