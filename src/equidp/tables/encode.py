"""From columns of a table to inputs of a model, by an encoder that can be saved and used on new rows."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
import torch

from equidp._extras import require_extra
from equidp._plain import converter
from equidp.tables.cells import MISSING
from equidp.tables.labels import distinct_texts

with require_extra("tables"):
    import pandas as pd

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Inputs = npt.NDArray[np.float32]

PRIVATE = (
    "Preprocessing was private: what it took from training rows was released with noise, which epsilon "
    "counts."
)
SEEDED = (
    "Preprocessing was private: statistics of the training rows were released with noise, drawn from the "
    "seed. The epsilon of a comparison counts them; the epsilon of another training on this split does not."
)
_EXACT = {
    "scaled": "Means and deviations of {} come from the training split; epsilon does not cover them. Public "
    "bounds would avoid that.",
    "ranged": "Ranges of {} come from the training split; epsilon does not cover them. Public bounds would "
    "avoid that.",
    "cut": "The edges of the intervals of {} come from the training split; epsilon does not cover them, nor "
    "their number, which the sizes of inputs and weights show. Public bounds would avoid that, and so would "
    "private preprocessing.",
    "listed": "The lists of categories of {} come from the training split; epsilon does not cover them, nor "
    "their number, which the sizes of inputs and weights show.",
    "marked": "That values are missing in {} was read off the data, to add a column that marks them; epsilon "
    "does not cover it, and the shape counts that column.",
}
"""What an encoder takes from training rows exactly -> the sentence that says so of columns."""
_ROWS_AN_INPUT, _LARGEST_SQUARE = 10.0, 3.0
"""A block of k inputs, one of B, has weight^2 n / (10 k B), at most 3, if a trend has weight^2 1."""
_LARGEST_COMMON, _COMMON_TIMES_EXAMPLES = 0.2, 320.0
"""Part of a row's square that all rows have in common, at least: 320 / n for n examples, but 0.2 at most. At
epsilon 0.5 learning rates sum to about n / 20, and the shares of classes take a sum of some 16 to learn."""
_FAR = 3
"""Deviations from the training mean, or widths of the range between edges, beyond which a number is far."""
CELLS = 2**16
"""Number of cells that texts are hashed to: public, so that a list of cells need not list texts."""


def hash_texts(column: pd.Series) -> Codes:
    """Return the cell of each text, [n], by the first two bytes of its BLAKE2b hash; missing is a text.

    >>> hash_texts(pd.Series(["cook", "clerk", None, "cook"])).tolist()
    [48805, 48912, 32596, 48805]
    """
    codes, texts = distinct_texts(column)
    return np.array(list(map(_cell, texts)), dtype=np.int64)[codes]


def _cell(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=2).digest(), "big")


class Column(ABC):
    """A column of a table, and how its cells become inputs.

    Attributes:
        name: name of the column.
        numeric: True for numbers, False for texts.
        blocks: number of inputs of each one-hot block, or () if inputs have no blocks.
        trend: values of a last input after the blocks, in each interval, or empty if there is none.
        marks_missing: whether missing cells have an input.
        held_nothing: whether the column had no value in any training row, as far as is kept.
    """

    name: str
    numeric: ClassVar[bool] = True
    trend: Any = ()

    @property
    def blocks(self) -> tuple[int, ...]:
        return ()

    @property
    def width(self) -> int:
        """Number of inputs."""
        return sum(self.blocks) + (len(self.trend) > 0)

    @property
    @abstractmethod
    def marks_missing(self) -> bool: ...

    @property
    def held_nothing(self) -> bool:
        return False

    @abstractmethod
    def knows(self, column: pd.Series) -> Bools:
        """Return whether each cell, [n], is one that training rows had, or near those."""

    @abstractmethod
    def encode(self, column: pd.Series) -> Inputs:
        """Return the inputs of each cell, [n, width]."""


def _one_hot(places: Codes, width: int) -> Inputs:
    """Return 1 at each row's places, [n] or [n, blocks], and 0 elsewhere. A negative place is none."""
    inputs = np.zeros((len(places), width), dtype=np.float32)
    for of_block in np.atleast_2d(places.T):
        rows = np.flatnonzero(of_block >= 0)
        inputs[rows, of_block[rows]] = 1.0
    return inputs


@final
@dataclass(frozen=True)
class Categories(Column):
    """A column of texts as one block, one-hot over `values`. Any other text becomes all zeros.

    Attributes:
        name: name of the column.
        values: texts that have an input; or cells of `hash_texts` that have one, as texts.
        public: True if they are public codes; False if they come from training rows.
        hashed: values are cells.
    """

    name: str
    values: tuple[str, ...]
    public: bool = False
    hashed: bool = False

    numeric = False

    @property
    def blocks(self) -> tuple[int, ...]:
        return (len(self.values),)

    @property
    def marks_missing(self) -> bool:
        return bool(self.knows(pd.Series([None], dtype=object))[0])

    @property
    def held_nothing(self) -> bool:
        return self.values == (MISSING,)

    def places(self, column: pd.Series) -> Codes:
        """Return the place of each text, [n]; -1 for a text without a place."""
        codes, texts = distinct_texts(column)
        known = [str(_cell(text)) for text in texts] if self.hashed else texts
        of_texts: Codes = pd.Index(self.values).get_indexer(pd.Index(known))
        return of_texts[codes]

    def knows(self, column: pd.Series) -> Bools:
        return self.places(column) >= 0

    def encode(self, column: pd.Series) -> Inputs:
        return _one_hot(self.places(column), self.width)


@final
@dataclass(frozen=True)
class Numbers(Column):
    """A column of numbers: (x - shift) / scale.

    Attributes:
        name: name of the column.
        shift, scale: mean and deviation of the training rows; or low end and width of a range.
        low, high: range that numbers are clipped to. None: no clipping.
        fill: value of a missing number, after scaling.
        flagged: add an input before this one that is 1 for missing numbers.
        from_rows: whether the range comes from training rows.
    """

    name: str
    shift: float
    scale: float
    low: float | None = None
    high: float | None = None
    fill: float = 0.0
    flagged: bool = False
    from_rows: bool = False

    @property
    def width(self) -> int:
        return 1 + self.flagged

    @property
    def marks_missing(self) -> bool:
        return self.flagged

    @property
    def held_nothing(self) -> bool:
        return self.flagged and (self.shift, self.scale, self.low) == (0.0, 1.0, None)

    def knows(self, column: pd.Series) -> Bools:
        if self.low is None:
            far = (column - self.shift).abs() > _FAR * self.scale
        else:
            far = (column < self.low) | (column > self.high)
        return np.asarray(~far, dtype=np.bool_)

    def encode(self, column: pd.Series) -> Inputs:
        values = column.to_numpy(dtype=np.float64)
        clipped = values if self.low is None else np.clip(values, self.low, self.high)
        scaled = np.nan_to_num((clipped - self.shift) / self.scale, nan=self.fill)
        return np.stack([np.isnan(values), scaled][not self.flagged :], axis=1).astype(np.float32)


@final
@dataclass(frozen=True)
class Intervals(Column):
    """A column of numbers, one-hot over the intervals of one or several resolutions, and its trend.

    Each resolution is a block of inputs: an input for each interval, from the lowest to the highest, and one
    for missing numbers. An interval contains its lower edge. The first and the last one have no end. The last
    input, the trend, rises by equal steps from the lowest interval of the finest resolution to the highest.
    It has mean 0 and mean square 1 over intervals, and is 0 for missing numbers. Few examples are enough to
    learn its weight. With two intervals or fewer, there is no trend.

    Attributes:
        name: name of the column.
        edges: edges of each resolution, rising, coarse ones first; one edge fewer than intervals.
        flagged: add an input for missing numbers to each block. Without it, they have no place.
        public: whether the edges follow only from a public range.

    >>> column = Intervals("age", ((30.0,), (20.0, 30.0)), flagged=True)
    >>> column.places(pd.Series([25.0, np.nan])).tolist()
    [[0, 4], [2, 6]]
    >>> column.width, column.blocks, column.trend.round(3).tolist()
    (8, (3, 4), [-1.225, 0.0, 1.225])
    """

    name: str
    edges: tuple[tuple[float, ...], ...]
    flagged: bool = False
    public: bool = False

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(len(each) + 1 + self.flagged for each in self.edges)

    @property
    def trend(self) -> Floats:
        """Trend in each of three intervals or more, which one-hot inputs by themselves learn slowly."""
        count = len(self.edges[-1]) + 1
        steps = np.linspace(-1.0, 1.0, count) if count > 2 else np.zeros(0)
        return steps / np.sqrt((steps**2).mean()) if count > 2 else steps

    @property
    def marks_missing(self) -> bool:
        return self.flagged

    @property
    def held_nothing(self) -> bool:
        return not any(self.edges)

    def knows(self, column: pd.Series) -> Bools:
        finest = self.edges[-1]
        if len(finest) < 2:
            return np.ones(len(column), dtype=np.bool_)
        reach = _FAR * (finest[-1] - finest[0])
        far = (column < finest[0] - reach) | (column > finest[-1] + reach)
        return np.asarray(~far, dtype=np.bool_)

    def places(self, column: pd.Series) -> Codes:
        """Return the place of each number in each one-hot block, [n, resolutions]; -1 for none."""
        values = column.to_numpy(dtype=np.float64)
        starts = np.cumsum([0, *self.blocks[:-1]])
        places = np.stack([np.searchsorted(edges, values, side="right") for edges in self.edges], axis=1)
        of_missing = [len(edges) + 1 for edges in self.edges]
        places[np.isnan(values)] = of_missing if self.flagged else -1 - starts
        of_blocks: Codes = places + starts
        return of_blocks

    def encode(self, column: pd.Series) -> Inputs:
        inputs = _one_hot(self.places(column), self.width)
        if len(self.trend):
            values = column.to_numpy(dtype=np.float64)
            known = ~np.isnan(values)
            inputs[known, -1] = self.trend[np.searchsorted(self.edges[-1], values[known], side="right")]
        return inputs


def _common_part(size: int, numeric: bool) -> float:
    """Return the part of a block's square that rows have in common, for equally frequent intervals, and texts
    with frequencies like 1, 1/2, 1/3 and so on (Zipf's law)."""
    frequencies = 1 / np.arange(1, max(1, size) + 1) ** (0 if numeric else 1)
    return float((frequencies**2).sum() / frequencies.sum() ** 2)


@final
@dataclass(frozen=True)
class TableEncoder:
    """Encoder of a table's columns as inputs; `fit_encoder` makes one.

    Attributes:
        columns: columns in the order of the inputs.
        missing: "refuse" or "category", as for `TableSource`.
        private: True if everything taken from rows was released with noise and charged.
        textual: target and groups that had texts, and have texts in other tables too.
        examples: number of training examples, which the weights of blocks follow from (`scales`). Only for
            columns that are one-hot or cut. None: inputs have no weights.

    >>> encoder = TableEncoder((Numbers("age", 0, 100), Categories("job", ("clerk", "cook"))), "refuse")
    >>> table = pd.DataFrame({"age": [20.0, 40.0], "job": ["cook", "clerk"]})
    >>> TableEncoder.from_json(encoder.to_json()).encode(table).tolist()
    [[0.20000000298023224, 0.0, 1.0], [0.4000000059604645, 1.0, 0.0]]
    """

    columns: tuple[Categories | Numbers | Intervals, ...]
    missing: str
    private: bool = False
    textual: tuple[str, ...] = ()
    examples: int | None = None

    def _blocks(self) -> Floats:
        """Return size, square and common part of each block, [blocks, 3]. A trend is a block, of square 1 and
        with nothing in common.

        The square of a block of k inputs, one of B, is n / (10 k B), but at most 3, and at least 1 if the
        column has no trend. A fine block counts little until many examples fall into each of its intervals. A
        model of few examples is nearly a line in each column.
        """
        assert self.examples is not None
        count = sum(len(column.blocks) + (len(column.trend) > 0) for column in self.columns)
        blocks: list[tuple[float, float, float]] = []
        for column in self.columns:
            has_trend = len(column.trend) > 0
            for size in column.blocks:
                square = self.examples / (_ROWS_AN_INPUT * max(1, size) * count)
                square = min(max(square, 0.0 if has_trend else 1.0), _LARGEST_SQUARE)
                blocks.append((size, square, _common_part(size, column.numeric)))
            blocks += [(1, 1.0, 0.0)] * has_trend
        return np.array(blocks).reshape(-1, 3)

    @property
    def constant(self) -> float:
        """Square of a last input with the same value in all rows, or 0 if there is none.

        A model learns the shares of classes by the mean of its rows, whose square is their common part. If
        this is less than 320 / n, up to 0.2, of a row's square, for example with few rows of many columns of
        numbers, the constant makes up for it. It follows only from n and the sizes of blocks.
        """
        if self.examples is None:
            return 0.0
        _, squares, parts = self._blocks().T
        common = float(squares @ parts) / max(1e-9, float(squares.sum()))
        least = min(_LARGEST_COMMON, _COMMON_TIMES_EXAMPLES / max(1, self.examples))
        return 0.0 if common >= least else (least - common) / (1 - common)

    @property
    def width(self) -> int:
        """Number of inputs."""
        return sum(column.width for column in self.columns) + (self.constant > 0)

    @property
    def scales(self) -> Inputs:
        """Factor of each input, [width]: the weight of its block, over the root of the sum of their squares.

        If intervals have equally many rows, a row's square is then 1 on average, and below 3. A constant
        takes its square of that, and the others the rest.
        """
        if self.examples is None:
            return np.ones(self.width, dtype=np.float32)
        sizes, squares, _ = self._blocks().T
        constant = self.constant
        of_inputs = np.repeat(squares, sizes.astype(int)) * (1 - constant) / max(1e-9, float(squares.sum()))
        scales: Inputs = np.sqrt(np.append(of_inputs, [constant] * (constant > 0))).astype(np.float32)
        return scales

    def encode(self, table: pd.DataFrame, rows: Codes | slice = slice(None)) -> torch.Tensor:
        """Return the inputs of rows of a table with the encoder's columns, [n, inputs], float32."""
        parts = [column.encode(table[column.name].iloc[rows]) for column in self.columns]
        count = len(table.index[rows])
        if self.constant:
            parts.append(np.ones((count, 1), dtype=np.float32))
        inputs = np.concatenate([np.zeros((count, 0), dtype=np.float32), *parts], axis=1)
        if self.examples is not None:
            inputs *= self.scales
        return torch.from_numpy(inputs)

    def notes(self, *, seeded: bool = False) -> tuple[str, ...]:
        """Return sentences on the statistics that epsilon does not cover, or that it covers everything.

        Args:
            seeded: noise of private statistics follows from the seed of the split.
        """
        if self.private:
            return (SEEDED if seeded else PRIVATE,)
        taken: dict[str, list[str]] = {what: [] for what in _EXACT}
        for column in self.columns:
            match column:
                case Numbers():
                    if column.low is None:
                        taken["scaled"].append(column.name)
                    if column.from_rows:
                        taken["ranged"].append(column.name)
                    if column.flagged:
                        taken["marked"].append(column.name)
                case Intervals(public=False):
                    taken["cut"].append(column.name)
                case Categories(public=False):
                    taken["listed"].append(column.name)
        return tuple(_EXACT[what].format(", ".join(names)) for what, names in taken.items() if names)

    def to_json(self) -> str:
        """Return the encoder as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TableEncoder:
        """Return the encoder that `to_json` wrote; raises if it did not."""
        encoder: TableEncoder = converter.structure(json.loads(text), cls)
        return encoder
