"""Rows made up from shapes and types, of one tensor and of all that a model reads together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from equidp.engines.reading import Reading
from equidp.kernel.inputs import Inputs, joined, mapped, tensors

_LARGE = 1e6
_BYTES = 256
_LENGTHS = (2, 3, 7, 1000)
"""Whole numbers to try too where no table says how large they are: lengths and indices trim and look up."""


@final
@dataclass(frozen=True)
class MadeUpRows:
    """Rows of one tensor of the inputs.

    Whole numbers are below `below`, and 0 or `padding` is what fills up short rows.

    Attributes:
        shape: of one row.
        dtype, device: of the rows.
        centred: whether floating-point numbers are normal; otherwise they are in [0, 1).
        below: what whole numbers are smaller than.
        padding: what short rows end or begin with.
        mask: whether the numbers tell which positions count: 1, and 0 where rows are short.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    centred: bool
    below: int
    padding: int
    mask: bool = False

    @classmethod
    def like(
        cls, inputs: Tensor, tables: Sequence[Any], *, centred: bool = True, mask: bool = False
    ) -> MadeUpRows:
        """Rows like these inputs [batch, ...], of which shape, type and device are read, no value.

        Whole numbers stay below the rows of the smallest of these tables of embeddings; without one they are
        0 or 1 but for a few extremes, and bytes any byte: nothing else says which numbers a model can read.
        """
        unknown = _BYTES if inputs.dtype == torch.uint8 and inputs.device.type == "cpu" else 2
        smallest = min(tables, key=lambda table: table.num_embeddings, default=None)
        below = unknown if smallest is None else int(smallest.num_embeddings)
        if inputs.dtype != torch.bool and not inputs.dtype.is_floating_point and not inputs.dtype.is_complex:
            below = min(below, torch.iinfo(inputs.dtype).max)
        padding = 0 if smallest is None or smallest.padding_idx is None else int(smallest.padding_idx)
        shape = tuple(inputs.shape[1:])
        # A table may be read by numbers that are not whole by type; out of range, a GPU stops for good.
        centred = centred and not (tables and inputs.device.type != "cpu")
        return cls(shape, inputs.dtype, inputs.device, centred, below, padding, mask)

    @property
    def real(self) -> bool:
        """Whether the numbers are not whole by type."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    def full(self, count: int, seed: int) -> Tensor:
        """Returns ordinary rows, [count, *shape]; whole numbers without padding, where there are others."""
        generator = torch.Generator().manual_seed(seed)
        size = (count, *self.shape)
        if self.mask:
            rows = torch.ones(size)
        elif self.real:
            draw = torch.randn if self.centred else torch.rand
            rows = draw(size, generator=generator)
        elif self.dtype == torch.bool or self.below < 2:
            rows = torch.randint(0, min(self.below, 2), size, generator=generator)
        else:
            rows = torch.randint(0, self.below - 1, size, generator=generator)
            rows = rows + (rows >= self.padding)
        return rows.to(self.dtype).to(self.device)

    def short(self, count: int, seed: int) -> Tensor:
        """Returns rows that are padded but for a quarter of their first dimension, in turns at either end."""
        rows = self.full(count, seed)
        if self.shape:
            kept = max(1, self.shape[0] // 4)
            rows[0::2, kept:] = self.filler
            rows[1::2, :-kept] = self.filler
        return rows

    @property
    def filler(self) -> int:
        """The number that short rows are padded with."""
        return 0 if self.mask or self.real or self.dtype == torch.bool else self.padding

    @property
    def large(self) -> float:
        """The largest number to try; on a GPU, a number out of a table's range would end the process."""
        if not self.real or (self.device.type != "cpu" and not self.centred):
            return 1.0
        return min(_LARGE, torch.finfo(self.dtype).max / 100)

    def extremes(self) -> list[Tensor]:
        """Returns rows unlike any other, [2, *shape] of each kind: constant, huge, empty, without padding."""
        if self.mask:
            return [self.full(2, seed=7), self.short(2, seed=7)]
        rows, large = self.full(2, seed=7), self.large
        constants = [0, 1, large, -large] if self.real else [0, self.padding, 1, self.below - 1]
        if self.dtype == torch.bool or self.below < 2 or (large == 1.0 and self.real):
            constants = [0, 1] if self.real or self.dtype == torch.bool else [0]
        if self.below == 2 and not self.real and self.dtype != torch.bool and self.device.type == "cpu":
            # Out of range, a processor fails, and the rows are left out; a GPU would stop for good.
            constants += [each for each in _LENGTHS if each <= torch.iinfo(self.dtype).max]
        kinds = [torch.full_like(rows, constant) for constant in constants]
        return [*kinds, 3 * rows + 1, rows * large, rows] if large > 1.0 else [*kinds, rows]

    def moderate(self) -> list[Tensor]:
        """Returns one row of each kind whose gradient is no matter of rounding, as a huge constant's is."""
        rows = self.full(1, seed=8)
        if self.mask:
            return [rows, self.short(1, seed=8)]
        spread = (rows * self.large).to(self.dtype)
        return [torch.zeros_like(rows), torch.full_like(rows, min(1, self.below - 1)), spread]


@final
class MadeUpInputs:
    """Rows of all tensors that a model reads, in the form of its inputs.

    Args:
        parts: `MadeUpRows` in that form.
    """

    def __init__(self, parts: Any) -> None:
        self._parts = parts

    @classmethod
    def like(cls, inputs: Inputs, model: nn.Module, *, centred: bool = True) -> MadeUpInputs:
        """Rows like these inputs: see `MadeUpRows.like`. Each tensor is bounded by the tables that read it.

        Of several tensors, one with "mask" in its name or in that of the model's argument is a mask.
        """
        found = iter(Reading.of(model, inputs))

        def part(each: Tensor) -> MadeUpRows:
            reading = next(found)
            return MadeUpRows.like(each, reading.tables, centred=centred, mask=reading.mask)

        return cls(mapped(part, inputs))

    @property
    def shaped(self) -> bool:
        """Whether rows can be short."""
        return any(rows.shape for rows in self._rows)

    def full(self, count: int, seed: int) -> Any:
        """See `MadeUpRows.full`."""
        return self._each(lambda rows, seed: rows.full(count, seed), seed)

    def short(self, count: int, seed: int) -> Any:
        """See `MadeUpRows.short`; all tensors are short at the same end."""
        return self._each(lambda rows, seed: rows.short(count, seed), seed)

    def extremes(self) -> list[Any]:
        """See `MadeUpRows.extremes`; each tensor's kinds in turns, as many as the one with most has."""
        return self._in_turns([rows.extremes() for rows in self._rows])

    def moderate(self) -> Any:
        """See `MadeUpRows.moderate`; one batch."""
        return joined(*self._in_turns([rows.moderate() for rows in self._rows]))

    @property
    def _rows(self) -> tuple[Any, ...]:
        return tensors(self._parts)

    def _each(self, make: Callable[[MadeUpRows, int], Tensor], seed: int) -> Any:
        """Rows of each tensor; seeds that differ by tensor, so that two are not the same."""
        places = iter(range(len(self._rows)))
        return mapped(lambda rows: make(rows, seed + 1000 * next(places)), self._parts)

    def _in_turns(self, kinds: list[list[Tensor]]) -> list[Any]:
        def kind(number: int) -> Any:
            left = iter(kinds)
            return mapped(lambda _: (own := next(left))[number % len(own)], self._parts)

        return [kind(number) for number in range(max(map(len, kinds)))]
