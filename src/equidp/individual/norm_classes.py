"""Classes of examples whose share of the sensitivity is the same in every step, to count steps by class."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from equidp.individual.histories import Counts, Floats, Histories, Integers, chunks

_DROPPED_BITS = 15  # of a float32's 23-bit fraction; rounding up to the other 8 raises a norm by 0.4% at most
_CHUNK = 2**18  # examples whose classes are found at a time


class EachAlone:
    """Makes every example a class of its own, with its exact norm.

    Attributes:
        norms: of each class, [classes]; NaN: never taken.
        groups: of each class, [classes].
        rows: each example's class, [n].
    """

    def __init__(self, histories: Histories, groups: Integers) -> None:
        self.norms, self.groups, self.rows = np.full(len(groups), np.nan), groups, np.arange(len(groups))
        self._histories = histories

    def take(self, norms: Floats, examples: Integers | None = None) -> None:
        """Set the norms that these examples have from the next step on; default: all examples, [n]."""
        self.norms[self.rows if examples is None else examples] = norms

    def count(self, cells: Integers) -> None:
        """Count one step in which the share of each class was in these cells, [classes]."""
        self._histories.add(cells)

    def settle(self) -> None:
        """Move all steps counted so far into the histories; `count` did so already."""

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Return what `restore` makes the same classes of."""
        return (self.norms,)

    def restore(self, norms: Floats) -> None:
        """Put back what `arrays` returned."""
        self.norms = norms


class ByNorm:
    """Puts examples of one group with nearly equal norms in a class, so that a step's cost is free of n.

    Attributes and methods as `EachAlone`. Norms are rounded up to 9 significant bits. Norms taken of all
    examples end a period of the histories and begin new classes. An example that joins another class alone
    gets the steps of that class from then on: those before are subtracted from its history in advance, modulo
    2^32 like all counts.

    Args:
        histories: of the examples.
        groups: of the examples, [n], from 0 to num_groups - 1.
        num_groups: K.
    """

    def __init__(self, histories: Histories, groups: Integers, num_groups: int) -> None:
        self._histories, self._example_groups, self._num_groups = histories, groups, num_groups
        self._row_of = np.empty((_NEVER + 1) * num_groups, dtype=np.int32)  # by rank of the norm and group
        self.rows = np.empty(len(groups), dtype=np.int32)
        self._begin(np.full(len(groups), np.nan))

    def take(self, norms: Floats, examples: Integers | None = None) -> None:
        if examples is None:
            self.settle()
            self._begin(norms)
            return
        rows = self._rows(norms, self._example_groups[examples])
        self._histories.move(examples, self.rows[examples], rows, self._table)
        self.rows[examples] = rows

    def count(self, cells: Integers) -> None:
        flat = self._table.reshape(-1)  # one index is four times faster than two
        flat[np.arange(len(cells)) * self._table.shape[1] + cells] += np.uint32(1)

    def settle(self) -> None:
        self._histories.add_period(self.rows, self._table[: len(self.norms)])
        self._table[:] = 0

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        rows = self.rows.astype(np.min_scalar_type(len(self.norms)))
        return self.norms, self.groups, rows, self._table[: len(self.norms)]

    def restore(self, norms: Floats, groups: Integers, rows: npt.NDArray[Any], table: Counts) -> None:
        self.norms, self.groups, self._table = norms, groups, table
        self._row_of[:] = -1
        self._row_of[_rank(norms) * self._num_groups + groups] = np.arange(len(norms))
        self.rows[:] = rows

    def _begin(self, norms: Floats) -> None:
        """Begin new classes, of the norms of all examples."""
        self._row_of[:] = -1
        self._table = np.zeros((0, len(self._histories.shares)), dtype=np.uint32)
        self.norms, self.groups = np.empty(0), np.empty(0, dtype=np.int64)
        for chunk in chunks(0, len(norms), _CHUNK):
            self.rows[chunk] = self._rows(norms[chunk], self._example_groups[chunk])

    def _rows(self, norms: Floats, groups: Integers) -> npt.NDArray[np.int32]:
        """Return the class of each example, [n]; add those that do not exist yet."""
        keys = _rank(norms) * self._num_groups + groups
        rows: npt.NDArray[np.int32] = self._row_of[keys]
        if (rows < 0).any():
            self._add_classes(np.unique(keys[rows < 0]))
            rows = self._row_of[keys]
        return rows

    def _add_classes(self, keys: Integers) -> None:
        known = len(self.norms)
        self._row_of[keys] = np.arange(known, known + len(keys))
        self.norms = np.append(self.norms, _norm_at(keys // self._num_groups))
        self.groups = np.append(self.groups, keys % self._num_groups)
        if len(self.norms) > len(self._table):
            more = max(len(keys), len(self._table))
            room = np.zeros((more, self._table.shape[1]), dtype=np.uint32)
            self._table = np.concatenate([self._table, room])


NormClasses = EachAlone | ByNorm
"""Examples in classes of equal norm and group, with the attributes and methods of `EachAlone`."""


def _rank(norms: Floats) -> Integers:
    """Return each norm's rank among all norms of 9 significant bits, rounded up; NaN has the last rank."""
    bits = np.where(np.isnan(norms), np.float32(np.nan), norms.astype(np.float32)).view(np.int32)
    ranks: Integers = -(-bits.astype(np.int64) >> _DROPPED_BITS)
    return ranks


def _norm_at(ranks: Integers) -> Floats:
    return (ranks << _DROPPED_BITS).astype(np.int32).view(np.float32).astype(np.float64)


_NEVER = int(_rank(np.array([np.nan]))[0])
