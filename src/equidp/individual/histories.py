"""Counts of each share of the sensitivity that an example used (Yu et al. 2023), for millions of examples."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from equidp._validate import unknown_name
from equidp.errors import SettingError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Counts = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.int32]

ROUNDINGS = ("up", "nearest")
_CHUNK = 2**13  # examples whose counts are summed at a time: they fit in a cache


class Period(NamedTuple):
    """Steps between which no example's norm was taken: examples of one class have the same counts.

    Attributes:
        rows: each example's class, [n], of the smallest unsigned type.
        table: steps of each class in each cell, [classes, cells].
    """

    rows: npt.NDArray[Any]
    table: Counts


class Histories:
    """Counts, for each example, the steps in which it used each share of the sensitivity.

    A share of one step is z = weight * norm / S in [0, 1], rounded to a multiple of the grid's width. Counts
    are sums modulo 2^32 of three parts: what counts for everyone, periods of classes of examples (about two
    bytes an example), and a table of all examples ([n, cells], 404 bytes an example with the usual grid). The
    table is made when an example is counted alone, or when periods take more room than it would.

    Args:
        num_examples: n.
        grid: width of the grid, in (0, 1].
        rounding: "up" gives upper bounds; "nearest", as in Yu et al., can understate.
        memory_limit: bytes of the periods in memory; a larger table is kept in a temporary file.

    Attributes:
        shares: the grid's values, [cells], from 0 to 1.
        everyone: steps that count for every example, [cells].
        periods: by a name that no other period of these histories ever has.
        table: of examples counted alone, [n, cells]; None: there are none.
        version: of the table; grows with each change.

    Formal guarantee: with rounding "up", z <= `shares[cells(z)]` < z + grid for every z in [0, 1]. A share
    that is not a number, or above 1, counts as 1, the worst case.
    """

    def __init__(
        self, num_examples: int, grid: float = 0.01, *, rounding: str = "up", memory_limit: int = 2**30
    ) -> None:
        if not 0 < grid <= 1:
            raise SettingError(f"grid={grid}; expected a width in (0, 1], such as 0.01.")
        if rounding not in ROUNDINGS:
            raise unknown_name("rounding", rounding, ROUNDINGS)
        self.num_examples, self.grid = num_examples, grid
        cells = math.ceil(1 / grid - 1e-9)
        self.shares: Floats = np.minimum(np.arange(cells + 1) * grid, 1.0)
        middles = (self.shares[1:] + self.shares[:-1]) / 2
        self._cell_ends = self.shares if rounding == "up" else np.append(middles, 1.0)
        self._memory_limit, self._names = memory_limit, count()
        self.everyone = np.zeros(cells + 1, dtype=np.uint32)
        self.periods: dict[str, Period] = {}
        self.table: Counts | None = None
        self.version = 0

    @property
    def counts(self) -> Counts:
        """Steps of each example in each cell, [n, cells]: a copy, all in memory."""
        return self.part(slice(None))

    def part(self, which: slice) -> Counts:
        """Return the counts of some examples, a copy, [examples, cells]."""
        start, stop, _ = which.indices(self.num_examples)
        counts = np.empty((stop - start, len(self.shares)), dtype=np.uint32)
        for chunk in chunks(start, stop, _CHUNK):
            some = counts[chunk.start - start : chunk.stop - start]
            some[:] = self.everyone if self.table is None else self.table[chunk] + self.everyone
            for rows, table in self.periods.values():
                some += table[rows[chunk]]
        return counts

    def cells(self, shares: Floats) -> Integers:
        """Return the cell of each share; same shape."""
        bounded = np.maximum(np.fmin(shares, 1.0), 0.0)  # fmin ignores NaN, so NaN becomes 1
        # The first end >= share. A division finds it up to rounding, twenty times faster than a search.
        guess = np.ceil((bounded - self._cell_ends[0]) / self.grid).astype(np.int64)
        cells: Integers = guess.clip(0, len(self._cell_ends) - 1)
        cells += self._cell_ends[cells] < bounded
        cells -= (cells > 0) & (self._cell_ends[cells - 1] >= bounded)
        return cells

    def add(self, cells: Integers, steps: int = 1) -> None:
        """Add `steps` steps of every example, in these cells, [n]."""
        flat = self._table_to_change().reshape(-1)  # one index is four times faster than two
        flat[np.arange(self.num_examples) * len(self.shares) + cells] += np.uint32(steps)

    def add_worst(self, steps: int) -> None:
        """Add steps in which every example may have used all of the sensitivity."""
        self.everyone[-1] += np.uint32(steps)

    def add_period(self, rows: Rows, table: Counts) -> None:
        """Add the steps of classes; see `Period`. Keep copies of both, or add them to the table."""
        if not table.any():
            return
        smallest = np.min_scalar_type(len(table) - 1)
        self.periods[f"period-{next(self._names)}"] = Period(rows.astype(smallest), table.copy())
        room = sum(each.rows.nbytes + each.table.nbytes for each in self.periods.values())
        if room >= min(self._memory_limit, 4 * self.num_examples * len(self.shares)):
            whole = self._table_to_change()
            for chunk in chunks(0, self.num_examples, _CHUNK):
                for period in self.periods.values():
                    whole[chunk] += period.table[period.rows[chunk]]
            self.periods.clear()

    def move(self, examples: Integers, old: Rows, new: Rows, table: Counts) -> None:
        """Move examples from old to new classes of a table that will be added as a period later.

        They get the steps of their new class from now on: those so far are subtracted in advance, and those
        of the old class added.
        """
        whole = self._table_to_change()
        for chunk in chunks(0, len(examples), _CHUNK):
            whole[examples[chunk]] += table[old[chunk]] - table[new[chunk]]

    def restore(self, name: str, rows: npt.NDArray[Any], table: Counts) -> None:
        """Put back a period under its name; the last one last."""
        self.periods[name] = Period(rows, table)
        self._names = count(1 + int(name.rpartition("-")[2]))

    def restore_table(self, parts: Iterable[Counts], version: int) -> None:
        """Put back the table, from parts of it."""
        whole, start = self._table_to_change(), 0
        for part in parts:
            whole[start : start + len(part)] = part
            start += len(part)
        self.version = version

    def _table_to_change(self) -> Counts:
        """The table, which is about to change."""
        self.version += 1
        if self.table is None:
            shape = (self.num_examples, len(self.shares))
            if 4 * math.prod(shape) <= self._memory_limit:
                self.table = np.zeros(shape, dtype=np.uint32)
            else:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the table does
                self.table = np.memmap(self._file, dtype=np.uint32, mode="w+", shape=shape)
        return self.table


def chunks(start: int, stop: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size`, one after the other."""
    return (slice(each, min(each + size, stop)) for each in range(start, stop, size))
