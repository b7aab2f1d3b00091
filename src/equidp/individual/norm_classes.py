"""Who shares a history: examples whose share of the sensitivity is the same in every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from equidp.individual.histories import Histories

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_DROPPED_BITS = 15  # of a float32's 23 bits after the first: norms that are left differ by 0.4% at most
_CHUNK = 2**14  # examples whose histories are brought up to date at a time


class Classes(Protocol):
    """Examples in classes of one norm and one group; steps are counted by class.

    Attributes:
        norms: of each class, [classes]; nan: never taken.
        groups: of each class, [classes].
        rows: each example's class, [n].
    """

    norms: Floats
    groups: Integers
    rows: Integers

    def take(self, norms: Floats, examples: Integers | None = None) -> None:
        """From the next step on, these examples have these norms; default: all of them, [n]."""

    def count(self, cells: Integers) -> None:
        """A step in which the share of each class was in these cells, [classes]."""

    def settle(self) -> None:
        """Puts all steps so far into the histories of the examples."""


class EachAlone:
    """Every example is a class, and its norm is exact."""

    def __init__(self, histories: Histories, groups: Integers) -> None:
        self.norms, self.groups, self.rows = np.full(len(groups), np.nan), groups, np.arange(len(groups))
        self._histories = histories

    def take(self, norms: Floats, examples: Integers | None = None) -> None:
        self.norms[self.rows if examples is None else examples] = norms

    def count(self, cells: Integers) -> None:
        self._histories.add(cells)

    def settle(self) -> None:
        """They are there."""


class ByNorm:
    """Examples of one group whose norms are alike are a class, so that what a step costs does not grow with the dataset.

    Norms are rounded up to 9 significant bits. An example that comes into a class gets the steps of that class from then on: those
    before are taken off its history in advance, modulo 2^32 as the table counts.

    Args:
        histories: of the examples.
        groups: of the examples, [n], from 0 to num_groups - 1.
        num_groups: K.
    """

    def __init__(self, histories: Histories, groups: Integers, num_groups: int) -> None:
        self._histories, self._example_groups, self._num_groups = histories, groups, num_groups
        self._row_of = np.full((_NEVER + 1) * num_groups, -1)  # by place and group
        self._table = np.zeros((0, len(histories.shares)), dtype=np.uint32)
        self.norms, self.groups = np.empty(0), np.empty(0, dtype=np.int64)
        self.rows = self._classes(np.full(len(groups), np.nan), groups)

    def take(self, norms: Floats, examples: Integers | None = None) -> None:
        if examples is None:
            examples = np.arange(len(self.rows))
        rows = self._classes(norms, self._example_groups[examples])
        counts = self._histories.counts
        for part in _chunks(len(examples)):
            counts[examples[part]] += self._table[self.rows[examples[part]]] - self._table[rows[part]]
        self.rows[examples] = rows

    def count(self, cells: Integers) -> None:
        flat = self._table.reshape(-1)  # one index is four times faster than two
        flat[np.arange(len(cells)) * self._table.shape[1] + cells] += np.uint32(1)

    def settle(self) -> None:
        for part in _chunks(len(self.rows)):
            self._histories.counts[part] += self._table[self.rows[part]]
        self._table[:] = 0

    def _classes(self, norms: Floats, groups: Integers) -> Integers:
        """Each example's class; makes those that there were not yet."""
        keys = _place(norms) * self._num_groups + groups
        rows: Integers = self._row_of[keys]
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


def _place(norms: Floats) -> Integers:
    """Of each norm >= 0 among those of 9 significant bits, as the bits of a float32 say it; nan has the last."""
    bits = np.where(np.isnan(norms), np.float32(np.nan), norms.astype(np.float32)).view(np.int32)
    places: Integers = -(-bits.astype(np.int64) >> _DROPPED_BITS)
    return places


def _norm_at(places: Integers) -> Floats:
    return (places << _DROPPED_BITS).astype(np.int32).view(np.float32).astype(np.float64)


_NEVER = int(_place(np.array([np.nan]))[0])


def _chunks(count: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK) for start in range(0, count, _CHUNK))
