"""Rows that two datasets share, found by digests of their inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

_PART = 1 << 17
"""Numbers that are hashed at a time."""
_ERRORS, _MARGIN = 4.0, 0.05
"""Standard errors, and share of rows, by which shared rows exceed what chance explains."""


@final
@dataclass(frozen=True, eq=False)
class RowDigests:
    """Digests of 64 bits of the rows of some inputs, in ascending order; equal rows have equal digests.

    Attributes:
        values: int64, [n], on the CPU.
    """

    values: Tensor

    @classmethod
    def of(cls, inputs: Sequence[Tensor]) -> RowDigests:
        """Return the digests of the rows of inputs, whose tensors are [n, ...] each, of any numbers.

        >>> inputs = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> digests = [RowDigests.of([each]).values.tolist() for each in (inputs, inputs.flip(0).double())]
        >>> digests[0] == digests[1]
        True
        """
        generator = torch.Generator().manual_seed(0)
        digests = sum(_hash_rows(each, generator) for each in inputs)
        return cls(torch.as_tensor(digests).sort().values)

    def __len__(self) -> int:
        return len(self.values)

    def count_shared(self, other: RowDigests) -> int:
        """Return how many of these rows are rows of other data, or 0 if chance may explain all of them.

        By chance, a row equals one of n rows with probability 1 - f_1 / n, and one that occurs once among
        them with probability 2 f_2 / n. Here f_k is the number of rows that occur k times there (Good, The
        population frequencies of species, Biometrika 1953). These are 0 for measurements, and larger for
        tables of few values. The first is compared with the share of different rows here that are there too.
        The second is compared with the share of rows that occur once in both, so that a common row, such as
        an empty form, is not a copy.

        >>> data = RowDigests.of([torch.arange(200.0)[:, None]])
        >>> RowDigests.of([torch.arange(150.0, 250.0)[:, None]]).count_shared(data)
        50
        >>> coins = RowDigests.of([torch.arange(200)[:, None] % 2])
        >>> RowDigests.of([torch.arange(100)[:, None] % 2]).count_shared(coins)
        0
        """
        if not len(self) or not len(other):
            return 0
        if torch.equal(self.values, other.values):
            return len(self)
        rows, times = self.values.unique_consecutive(return_counts=True)
        others, other_times = other.values.unique_consecutive(return_counts=True)
        there = _are_among(rows, others)
        once = _are_among(rows[times == 1], others[other_times == 1])
        singles, pairs = (int((other_times == count).sum()) for count in (1, 2))
        if _exceeds_chance(int(there.sum()), len(rows), len(other) - singles, len(other)) or _exceeds_chance(
            int(once.sum()), len(self), 2 * pairs, len(other)
        ):
            return int(times[there].sum())
        return 0


def _are_among(rows: Tensor, others: Tensor) -> Tensor:
    """Return which rows are among others. Both are sorted, each once."""
    if not len(others):
        return torch.zeros(len(rows), dtype=torch.bool)
    places = torch.searchsorted(others, rows).clamp_(max=len(others) - 1)
    return others[places] == rows


def _exceeds_chance(found: int, rows: int, expected: int, others: int) -> bool:
    """Return True if `found` of some rows, at least two, are more than `expected` of `others` explains."""
    chance = min(1.0, (expected + 2) / (others + 2))
    error = math.sqrt(chance * (1 - chance) * (1 / rows + 1 / others))
    return found > 1 and found / rows > chance + _ERRORS * error + _MARGIN


def _hash_rows(values: Tensor, generator: torch.Generator) -> Tensor:
    """Return a digest of each row: sums of its mixed numbers, multiplied by odd ones, modulo 2^64."""
    rows = torch.view_as_real(values) if values.is_complex() else values.detach()
    rows = rows.flatten(1) if rows.ndim > 1 else rows[:, None]
    factors = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator).to(rows.device) | 1
    parts = rows.split(max(1, _PART // max(1, rows.shape[1])))
    return torch.cat([((_mix_numbers(part) * factors).sum(1)) for part in parts]).cpu()


def _mix_numbers(values: Tensor) -> Tensor:
    """Return an integer of 64 bits for each number; close numbers differ in many bits."""
    if values.is_floating_point():
        values = (values.float() + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    words = values.long()
    return (words + (words << 17)) ^ (words >> 13)
