"""From columns of a table to inputs of a model, by an encoder that can be saved and used on new rows."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
import torch

from equidp._extras import require_extra
from equidp.errors import DataError
from equidp.tables.cells import MISSING
from equidp.tables.checks import refuse_missing
from equidp.tables.intervals import BINNINGS, STANDARD, Binning, public_edges, quantile_edges, resolutions
from equidp.tables.labels import distinct_texts
from equidp.tables.new_file import INPUT_REMEDY, check_lacking
from equidp.tables.parse import LARGEST_NUMBER

with require_extra("tables"):
    import pandas as pd
    from sklearn.preprocessing import StandardScaler

Floats = npt.NDArray[np.float64]
Inputs = npt.NDArray[np.float32]

PRIVATE = (
    "Preprocessing was private: what it took from training rows was released with noise, which epsilon "
    "counts."
)
_BLOCK = 2**20  # values whose mean is taken in one go
_ROWS_AN_INPUT, _LARGEST_SQUARE = 10.0, 3.0
"""Examples an input of a block, times the number of blocks, with which the block has the weight of a trend;
and the largest square of a block's weight, that of a trend being 1."""
_LARGEST_COMMON, _COMMON_TIMES_EXAMPLES = 0.2, 320.0
"""Part of a row's square that all rows have in common, at least: 320 / n for n examples, but 0.2 at most. At
epsilon 0.5 learning rates sum to about n / 20, and the shares of classes take a sum of some 16 to learn."""
_FAR = 3
"""Deviations from the training mean, or widths of the range between edges, beyond which a code for a missing
value is no measurement."""
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


class Column(ABC):
    """A column of a table, and how its cells become inputs.

    Attributes:
        name: name of the column.
        has_trend: True where the last block is a trend.
    """

    name: str

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of inputs."""

    @property
    @abstractmethod
    def blocks(self) -> tuple[int, ...]:
        """Number of inputs of each block, of which a cell has one; () where inputs have no blocks."""

    @property
    def has_trend(self) -> bool:
        return False

    @property
    def common_parts(self) -> tuple[float, ...]:
        """Part of each block's square that rows have in common, where all its inputs are equally frequent:
        1 / k of k inputs; nothing of a trend, whose mean is 0."""
        of_blocks = [1 / max(1, size) for size in self.blocks]
        return (*of_blocks[:-1], 0.0) if self.has_trend else tuple(of_blocks)

    @property
    @abstractmethod
    def marks_missing(self) -> bool:
        """True where missing cells have an input."""

    unknown_phrase: ClassVar[str]
    """Words for values none of which the column knows."""

    @property
    def held_nothing(self) -> bool:
        """True where the column had no value in any training row, as far as is kept."""
        return False

    @abstractmethod
    def knows(self, column: pd.Series) -> npt.NDArray[np.bool_]:
        """Return whether each cell, [n], is one that training rows had, or near those."""

    @abstractmethod
    def write(self, column: pd.Series, inputs: Inputs) -> None:
        """Write the inputs of each cell, [n, width], over zeros."""

    def encode(self, column: pd.Series) -> Inputs:
        """Return the inputs of each cell, [n, width]."""
        inputs = np.zeros((len(column), self.width), dtype=np.float32)
        self.write(column, inputs)
        return inputs


class TextColumn(Column):
    """A column of texts as one block, in which a text has at most one place."""

    unknown_phrase = "the training data had none of them"

    @property
    def blocks(self) -> tuple[int, ...]:
        return (self.width,)

    @property
    def common_parts(self) -> tuple[float, ...]:
        """Part of the block's square that rows have in common, where frequencies of texts fall like 1, 1/2,
        1/3 and so on (Zipf's law)."""
        falling = 1 / np.arange(1, max(1, self.width) + 1)
        return (float((falling**2).sum() / falling.sum() ** 2),)

    @abstractmethod
    def places(self, column: pd.Series) -> npt.NDArray[np.int64]:
        """Return the place of each text, [n]; -1 for a text without a place."""

    def write(self, column: pd.Series, inputs: Inputs) -> None:
        _mark(inputs, self.places(column))

    def knows(self, column: pd.Series) -> npt.NDArray[np.bool_]:
        """Return whether each text, [n], has a place."""
        return self.places(column) >= 0

    def knows_texts(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return whether each text, [n], has a place."""
        return self.knows(pd.Series(texts, dtype=object))


def _mark(inputs: Inputs, places: npt.NDArray[np.int64]) -> None:
    """Write 1 at each row's place; nothing for a negative place."""
    rows = np.flatnonzero(places >= 0)
    inputs[rows, places[rows]] = 1.0


@final
@dataclass(frozen=True)
class Categories(TextColumn):
    """A column of texts, one-hot over `values`. Any other text becomes all zeros.

    Attributes:
        name: name of the column.
        values: texts that have an input.
        public: True if they are public codes; False if they come from training rows.
    """

    name: str
    values: tuple[str, ...]
    public: bool = False

    @property
    def width(self) -> int:
        return len(self.values)

    @property
    def marks_missing(self) -> bool:
        return MISSING in self.values

    @property
    def held_nothing(self) -> bool:
        return self.values == (MISSING,)

    def places(self, column: pd.Series) -> npt.NDArray[np.int64]:
        codes, texts = distinct_texts(column)
        found: npt.NDArray[np.int64] = pd.Index(self.values).get_indexer(pd.Index(texts))[codes]
        return found


@final
@dataclass(frozen=True)
class HashedCategories(TextColumn):
    """A column of texts, one-hot over `cells` of `hash_texts`. A text in any other cell becomes all zeros."""

    name: str
    cells: tuple[int, ...]

    @property
    def width(self) -> int:
        return len(self.cells)

    @property
    def marks_missing(self) -> bool:
        return bool(self.knows(pd.Series([None], dtype=object))[0])

    def places(self, column: pd.Series) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = pd.Index(self.cells).get_indexer(hash_texts(column))
        return found


class NumericColumn(Column):
    """A column of numbers."""

    unknown_phrase = "all lie far from those of the training data, as in another unit"

    def knows(self, column: pd.Series) -> npt.NDArray[np.bool_]:
        """Return whether each number, [n], is near those of the training rows."""
        near: npt.NDArray[np.bool_] = ~self.far(column).to_numpy(dtype=np.bool_)
        return near

    def check(self, column: pd.Series) -> None:
        """Raise unless the column holds numbers that can be encoded."""
        if column.dtype != float:
            raise DataError(
                f"column {self.name!r} holds texts, where the training data had numbers; write them with the "
                "marks of the training data, and leave cells without a number empty."
            )
        if (column.abs() > LARGEST_NUMBER).any():
            raise DataError(
                f"column {self.name!r} holds numbers beyond {LARGEST_NUMBER:g}, or infinite numbers; rescale "
                "it."
            )

    @abstractmethod
    def far(self, column: pd.Series) -> pd.Series:
        """Return a mask of numbers, [n], that lie far from those of the training rows."""


@final
@dataclass(frozen=True)
class Numbers(NumericColumn):
    """A column of numbers: (x - shift) / scale.

    Attributes:
        name: name of the column.
        shift, scale: mean and deviation of the training rows; or low end and width of a range.
        low, high: range that numbers are clipped to; None: no clipping.
        fill: value of a missing number, after scaling.
        flagged: add an input before this one that is 1 for missing numbers.
        from_rows: True if the range is that of training rows.
    """

    name: str
    shift: float
    scale: float
    low: float | None = None
    high: float | None = None
    fill: float = 0.0
    flagged: bool = False
    from_rows: bool = False

    blocks: ClassVar[tuple[int, ...]] = ()

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
        bounded = cls.scaled_by_bounds(name, float(values.min()), float(values.max()))
        return replace(bounded, from_rows=True)

    @property
    def width(self) -> int:
        return 1 + self.flagged

    @property
    def marks_missing(self) -> bool:
        return self.flagged

    @property
    def held_nothing(self) -> bool:
        return self.flagged and (self.shift, self.scale, self.low) == (0.0, 1.0, None)

    def write(self, column: pd.Series, inputs: Inputs) -> None:
        values = column.to_numpy(dtype=np.float64)
        clipped = values if self.low is None else np.clip(values, self.low, self.high)
        inputs[:, -1] = np.nan_to_num((clipped - self.shift) / self.scale, nan=self.fill)
        if self.flagged:
            inputs[:, 0] = np.isnan(values)

    def far(self, column: pd.Series) -> pd.Series:
        if self.low is None:
            return (column - self.shift).abs() > _FAR * self.scale
        return (column < self.low) | (column > self.high)


@final
@dataclass(frozen=True)
class Intervals(NumericColumn):
    """A column of numbers, one-hot over the intervals of one or several resolutions, and its trend.

    Each resolution is a block of inputs: an input for each interval, from the lowest to the highest, and one
    for missing numbers. An interval has its lower edge; the first and the last one have no end. The trend, a
    block of one input, rises by equal steps from the lowest interval of the finest resolution to the highest,
    with mean 0 and mean square 1 over intervals, and is 0 for missing numbers: few examples are enough to
    learn its weight. Of two intervals or fewer there is none.

    Attributes:
        name: name of the column.
        edges: of each resolution, rising, coarse ones first; one edge fewer than intervals.
        flagged: add an input for missing numbers to each block. Without it, they have no place.
        public: True if the edges follow from a public range alone.

    >>> column = Intervals("age", ((30.0,), (20.0, 30.0)), flagged=True)
    >>> column.places(pd.Series([25.0, np.nan])).tolist()
    [[0, 4], [2, 6]]
    >>> column.width, column.blocks, column.trend.round(3).tolist()
    (8, (3, 4, 1), [-1.225, 0.0, 1.225, 0.0])
    """

    name: str
    edges: tuple[tuple[float, ...], ...]
    flagged: bool = False
    public: bool = False

    @classmethod
    def by_quantiles(cls, name: str, values: Floats, binning: Binning, *, flagged: bool = False) -> Intervals:
        """Return intervals with about equally many of these values, [n]; NaN are left out."""
        edges = resolutions(quantile_edges(values[~np.isnan(values)], binning.intervals))
        return cls(name, edges, flagged)

    @classmethod
    def by_bounds(
        cls, name: str, low: float, high: float, binning: Binning, *, flagged: bool = False
    ) -> Intervals:
        """Return intervals of a public range, as `public_edges` cuts it."""
        edges = resolutions([public_edges(low, high, count) for count in binning.intervals])
        return cls(name, edges, flagged, public=True)

    @property
    def width(self) -> int:
        return sum(self.blocks)

    @property
    def blocks(self) -> tuple[int, ...]:
        one_hot = (len(each) + 1 + self.flagged for each in self.edges)
        return (*one_hot, 1) if self.has_trend else tuple(one_hot)

    @property
    def has_trend(self) -> bool:
        """True for three intervals or more, which one-hot inputs alone tell apart slowly."""
        return len(self.edges[-1]) > 1

    @property
    def trend(self) -> Floats:
        """Trend in each interval of the finest resolution, and last for missing numbers."""
        steps = np.linspace(-1.0, 1.0, len(self.edges[-1]) + 1)
        return np.append(steps / np.sqrt((steps**2).mean()), 0.0)

    @property
    def marks_missing(self) -> bool:
        return self.flagged

    @property
    def held_nothing(self) -> bool:
        return not any(self.edges)

    @property
    def _starts(self) -> npt.NDArray[np.int64]:
        """First input of each one-hot block, then their number of inputs."""
        return np.cumsum([0, *(len(each) + 1 + self.flagged for each in self.edges)])

    def places(self, column: pd.Series) -> npt.NDArray[np.int64]:
        """Return the place of each number in each one-hot block, [n, resolutions]; -1 for none."""
        values = column.to_numpy(dtype=np.float64)
        places = np.empty((len(values), len(self.edges)), dtype=np.int64)
        missing = np.isnan(values)
        for block, (start, edges) in enumerate(zip(self._starts[:-1].tolist(), self.edges, strict=True)):
            places[:, block] = start + np.searchsorted(np.asarray(edges), values, side="right")
            places[missing, block] = start + len(edges) + 1 if self.flagged else -1
        return places

    def write(self, column: pd.Series, inputs: Inputs) -> None:
        places = self.places(column)
        for of_block in places.T:
            _mark(inputs, of_block)
        if self.has_trend:
            last = len(self.trend) - 1
            intervals = np.where(places[:, -1] < 0, last, places[:, -1] - self._starts[-2])
            inputs[:, -1] = self.trend[intervals]

    def far(self, column: pd.Series) -> pd.Series:
        finest = self.edges[-1]
        if len(finest) < 2:
            return pd.Series(False, index=column.index)
        reach = _FAR * (finest[-1] - finest[0])
        return (column < finest[0] - reach) | (column > finest[-1] + reach)


@final
@dataclass(frozen=True)
class TableEncoder:
    """Encoder of a table's columns as inputs.

    Attributes:
        columns: in the order of the inputs.
        missing: "refuse" or "category", as for `TableSource`.
        private: True if everything taken from rows was released with noise and charged.
        textual: target and groups that held texts, and hold texts in other tables too.
        examples: number of training examples, which the weights of blocks follow from (`scales`). Only for
            columns that are one-hot or cut. None: inputs have no weights.

    >>> table = pd.DataFrame({"age": [20.0, 40.0], "job": ["cook", "clerk"]})
    >>> encoder = TableEncoder.fit(table, np.array([0, 1]), {"age": (0, 100)}, "refuse")
    >>> TableEncoder.from_json(encoder.to_json()).encode(table).tolist()
    [[0.20000000298023224, 0.0, 1.0], [0.4000000059604645, 1.0, 0.0]]
    """

    columns: tuple[Categories | HashedCategories | Numbers | Intervals, ...]
    missing: str
    private: bool = False
    textual: tuple[str, ...] = ()
    examples: int | None = None

    @classmethod
    def fit(
        cls,
        features: pd.DataFrame,
        train: npt.NDArray[np.int64],
        bounds: Mapping[str, tuple[float, float]],
        missing: str,
        binning: Binning = BINNINGS[STANDARD],
        *,
        examples: int | None = None,
    ) -> TableEncoder:
        """Fit scales or edges, and categories, to the rows `train`.

        Where numbers are scaled, missing ones are sought in all rows; where they are cut, each column has an
        input for missing numbers under "category", and weights suit so many examples; None: one a row.
        """
        columns: list[Categories | Numbers | Intervals] = []
        for name in features.columns:
            column = features[name]
            if column.dtype != float:
                codes, texts = distinct_texts(column)
                columns.append(
                    Categories(name, tuple(sorted({texts[code] for code in np.unique(codes[train])})))
                )
                continue
            values = column.to_numpy(dtype=np.float64)[train]
            flagged = missing == "category" if binning.cuts else bool(column.isna().any())
            if name in bounds:
                columns.append(bounded_column(name, bounds[name], binning, flagged=flagged))
            elif binning.cuts:
                columns.append(Intervals.by_quantiles(name, values, binning, flagged=flagged))
            else:
                columns.append(Numbers.scaled_by_deviation(name, values, flagged=flagged))
        weighted_for = (len(train) if examples is None else examples) if binning.cuts else None
        return cls(tuple(columns), missing, examples=weighted_for)

    @property
    def constant(self) -> float:
        """Square of a last input, of the same value in all rows; 0 where there is none.

        A model learns the shares of classes by the mean of its rows, whose square is their common part
        (`Column.common_parts`). Where that is less than 320 / n, up to 0.2, of a row's square, as with few
        rows of many columns of numbers, the constant makes up for it. It follows from n and the sizes of
        blocks alone.

        >>> table = pd.DataFrame({f"x{at}": np.arange(40.0) for at in range(9)})
        >>> encoder = TableEncoder.fit(table, np.arange(40), {}, "refuse", BINNINGS["cut"])
        >>> f"{encoder.constant:.2f}", {f"{each:.2f}" for each in encoder.encode(table)[:, -1]}
        ('0.19', {'0.44'})
        """
        if self.examples is None:
            return 0.0
        squares, _ = self._blocks()
        parts = [part for column in self.columns for part in column.common_parts]
        common = float(np.dot(squares, parts)) / max(1e-9, sum(squares))
        least = min(_LARGEST_COMMON, _COMMON_TIMES_EXAMPLES / max(1, self.examples))
        return 0.0 if common >= least else (least - common) / (1 - common)

    @property
    def width(self) -> int:
        """Number of inputs."""
        return sum(column.width for column in self.columns) + (self.constant > 0)

    @property
    def scales(self) -> Inputs:
        """Factor of each input, [width]: the weight of its block, over the root of the sum of their squares.

        The square of a trend's weight is 1, and that of a block of k inputs n / (10 k blocks), but at most 3,
        and at least 1 where the column has no trend: a fine block counts little until many examples fall into
        each of its intervals, and a model of few examples is nearly a line in each column. A row's square is
        then 1 in the mean, where intervals hold equally many rows, and below 3. A constant has its square of
        that, and the others the rest.
        """
        if self.examples is None:
            return np.ones(self.width, dtype=np.float32)
        squares, sizes = self._blocks()
        constant = self.constant
        of_inputs: Floats = np.repeat(squares, sizes) * (1 - constant) / max(1e-9, sum(squares))
        scales: Inputs = np.sqrt(np.append(of_inputs, [constant] * (constant > 0))).astype(np.float32)
        return scales

    def _blocks(self) -> tuple[list[float], list[int]]:
        """Return the square and the size of each block; that of a trend is 1."""
        assert self.examples is not None
        count = sum(len(column.blocks) for column in self.columns)
        squares: list[float] = []
        sizes: list[int] = []
        for column in self.columns:
            least = 0.0 if column.has_trend else 1.0
            for size in column.blocks[: len(column.blocks) - column.has_trend]:
                by_size = self.examples / (_ROWS_AN_INPUT * max(1, size) * count)
                squares.append(min(max(by_size, least), _LARGEST_SQUARE))
            squares += [1.0] * column.has_trend
            sizes += column.blocks
        return squares, sizes

    def check(self, table: pd.DataFrame) -> None:
        """Raise a DataError unless `encode` can encode all rows."""
        names = [column.name for column in self.columns]
        check_lacking(list(table.columns), names, remedy=INPUT_REMEDY)
        if self.missing == "refuse":
            refuse_missing(
                table[names],
                "The model was trained on rows without any: fill them in, or leave those rows out.",
            )
        for column in self.columns:
            if isinstance(column, NumericColumn):
                column.check(table[column.name])

    def encode(self, table: pd.DataFrame) -> torch.Tensor:
        """Return [n, inputs], float32, from a table with at least the encoder's columns.

        Raises:
            DataError: a column is missing, holds texts instead of numbers, or missing values under "refuse".
        """
        return self.encode_parts(table, [np.arange(len(table))])[0]

    def encode_parts(self, table: pd.DataFrame, parts: Sequence[npt.NDArray[np.int64]]) -> list[torch.Tensor]:
        """Return what `encode` does of each part's rows; a column is read once for all of them."""
        self.check(table)
        found = [np.zeros((len(rows), self.width), dtype=np.float32) for rows in parts]
        start = 0
        for column in self.columns:
            values = table[column.name]
            for rows, inputs in zip(parts, found, strict=True):
                column.write(values.take(rows), inputs[:, start : start + column.width])
            start += column.width
        for inputs in found:
            inputs[:, start:] = 1.0
            if self.examples is not None:
                inputs *= self.scales
        return [torch.from_numpy(inputs) for inputs in found]

    def unseen(self, table: pd.DataFrame) -> dict[str, int]:
        """Count, for each column with such rows, the rows whose text the encoder does not know."""
        counts = {
            column.name: int((~column.knows(table[column.name])).sum())
            for column in self.columns
            if isinstance(column, TextColumn)
        }
        return {name: count for name, count in counts.items() if count}

    def notes(self) -> tuple[str, ...]:
        """Return sentences on the statistics that epsilon does not cover, or that it covers everything."""
        if self.private:
            return (PRIVATE,)
        numbers = [column for column in self.columns if isinstance(column, Numbers)]
        scaled = [column.name for column in numbers if column.low is None]
        cut = [each.name for each in self.columns if isinstance(each, Intervals) and not each.public]
        ranged = [column.name for column in numbers if column.from_rows]
        listed = [each.name for each in self.columns if isinstance(each, Categories) and not each.public]
        flagged = [column.name for column in numbers if column.flagged]
        means = "Means and deviations of {} come from the training split; epsilon does not cover them. "
        ranges = "Ranges of {} come from the training split; epsilon does not cover them. "
        edges = (
            "The edges of the intervals of {} come from the training split; epsilon does not cover them, nor "
            "their number, which the sizes of inputs and weights show. "
        )
        lists = (
            "The lists of categories of {} come from the training split; epsilon does not cover them, nor "
            "their number, which the sizes of inputs and weights show."
        )
        marks = "That values are missing in {} was read off the data, to add a column that marks them; "
        sentences = (
            (scaled, means + "Public bounds would avoid that."),
            (ranged, ranges + "Public bounds would avoid that."),
            (cut, edges + "Public bounds would avoid that, and so would private preprocessing."),
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
        if content.get("unit_norm"):
            raise DataError(
                "the encoder of cut columns is of an earlier version of equidp, whose inputs had other "
                "weights; expected one of this version. Train the run again.",
                field="encoder",
            )
        columns = tuple(map(_column, content["columns"]))
        return cls(
            columns,
            content["missing"],
            content["private"],
            tuple(content["textual"]),
            content.get("examples"),
        )


def bounded_column(
    name: str, bounds: tuple[float, float], binning: Binning, *, flagged: bool
) -> Numbers | Intervals:
    """Return a column of numbers by its public range, from which no row is read: cut, or scaled.

    >>> bounded_column("age", (0.0, 100.0), Binning.parse("cut:2"), flagged=False).edges
    ((50.0,),)
    """
    if binning.cuts:
        return Intervals.by_bounds(name, *bounds, binning, flagged=flagged)
    return Numbers.scaled_by_bounds(name, *bounds, flagged=flagged)


def _column(content: Mapping[str, Any]) -> Categories | HashedCategories | Numbers | Intervals:
    """Return the column that `asdict` was applied to."""
    if "values" in content:
        return Categories(**{**content, "values": tuple(content["values"])})
    if "cells" in content:
        return HashedCategories(content["name"], tuple(content["cells"]))
    if "edges" in content:
        return Intervals(**{**content, "edges": tuple(map(tuple, content["edges"]))})
    return Numbers(**content)
