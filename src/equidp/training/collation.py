"""Makes a batch of rows. Each row is collated by itself and padded here, so that no row changes another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from equidp.errors import DataError, EquidpError, SettingError, error_text
from equidp.kernel.inputs import map_tensors, same, taken, tensors

Collate = Callable[[list[Any]], Any]
"""Rows, as a dataset gives them -> one batch (inputs, targets) or (inputs, targets, groups)."""


@final
@dataclass(frozen=True)
class Form:
    """Type and sizes of one tensor of a row, and how it is padded.

    Attributes:
        dtype: dtype of all rows.
        sizes: sizes of the longest of the rows that were tried.
        number: padding of shorter rows. None: all rows have these sizes.
        after: whether it is after a row, or before it.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    number: Any = None
    after: bool = True

    @classmethod
    def of(cls, together: Tensor, *alone: Tensor) -> Form:
        """Return how rows that were collated one by one, [1, ...] each, are padded in a batch.

        Raises:
            ValueError: the batch has another form than the rows, or pads them with several numbers.
        """
        dtype, sizes = alone[0].dtype, _longest(row.shape[1:] for row in alone)
        if {each.dtype for each in alone} != {together.dtype} or together.shape[1:] != sizes:
            raise ValueError("rows have another type or size in a batch than by themselves")
        short = next((place for place, row in enumerate(alone) if row.shape[1:] != sizes), None)
        if short is None:
            return cls(dtype, sizes)
        for after in (True, False):
            form = cls(dtype, sizes, together[short].flatten()[-int(after)].item(), after)
            pairs = zip(together.split(1), alone, strict=True)
            if all(same(form.resize(form.resize(each, row.shape[1:]), sizes), each) for each, row in pairs):
                return form
        raise ValueError("rows are filled up with several numbers")

    def join(self, *rows: Tensor) -> Tensor:
        """Return rows, [1, ...] each, as one batch, padded to the longest of them.

        Raises:
            ValueError: the rows differ in type, or differ in size without padding.
        """
        sizes, dtypes = {row.shape[1:] for row in rows}, {row.dtype for row in rows}
        if dtypes != {self.dtype}:
            raise ValueError(f"{', '.join(map(str, dtypes))}, not {self.dtype}")
        if self.number is None and sizes != {self.sizes}:
            raise ValueError(f"sizes {', '.join(str(list(each)) for each in sizes)}, not {list(self.sizes)}")
        longest = _longest(sizes)
        return torch.cat([self.resize(row, longest) for row in rows] if len(sizes) > 1 else rows)

    def resize(self, row: Tensor, sizes: Iterable[int]) -> Tensor:
        """Return a row, [1, ...], padded or cut to these sizes."""
        gaps = [wanted - size for size, wanted in zip(row.shape[1:], sizes, strict=True)]
        if not any(gaps):
            return row
        ends = [end for gap in reversed(gaps) for end in ((0, gap) if self.after else (gap, 0))]
        return nn.functional.pad(row, ends, value=self.number)


def _longest(sizes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(max, zip(*sizes, strict=True)))


@final
@dataclass(frozen=True)
class Collation:
    """Makes a batch of rows.

    Attributes:
        collate: collate function of one row. It was tried.
        forms: `Form` of each tensor, in the form of a batch.
        rows: rows that were tried, collated one by one.
    """

    collate: Collate
    forms: Any
    rows: tuple[Any, ...]

    @classmethod
    def of(cls, rows: list[Any], collate: Collate | None = None) -> Collation:
        """Test a user's function on a few rows, one by one and together. None: rows are tensors.

        Raises:
            DataError: the function fails, or does not return a batch of tensors with one place for each row.
            SettingError: it does not pad rows by one number at one end.
        """
        if collate is None:
            alone = tuple(_collate_tensors([row]) for row in rows)
            return cls(_collate_tensors, map_tensors(Form.of, alone[0], alone[0]), alone)
        collate = partial(_collate_rows, collate)
        alone, together = tuple(collate([row]) for row in rows), collate(rows)
        try:
            return cls(collate, map_tensors(Form.of, together, *alone), alone)
        except Exception as error:
            raise SettingError(
                f"collate changes rows when they are in a batch ({error_text(error)}); expected a function "
                "that only pads rows to the longest, with one number, all at one end.",
                field="collate",
            ) from error

    def __call__(self, rows: list[Any]) -> Any:
        """Return rows as one batch; without rows, an empty one.

        Raises:
            DataError: the collator fails, or rows differ in names, types or sizes.
        """
        return self.join([self.collate([row]) for row in rows]) if rows else taken(self.example, slice(0))

    def join(self, alone: Iterable[Any]) -> Any:
        """Return rows that were collated one by one as one batch."""
        try:
            return map_tensors(Form.join, self.forms, *alone)
        except Exception as error:
            raise DataError(
                f"rows of the dataset cannot be put into one batch ({error_text(error)}); expected the "
                "names, types and sizes of the first in every row. Turn images and texts into tensors, and "
                "pad shorter rows: in the dataset, or by Trainer(collate=...) to the longest of a sample.",
                field="inputs",
            ) from error

    @property
    def example(self) -> Any:
        """The rows that were tried, as one batch."""
        return self.join(self.rows)

    @property
    def pads(self) -> bool:
        """True if rows differ in size."""
        forms: Any = tensors(self.forms)
        return any(form.number is not None for form in forms)


def as_tuples(given: Any) -> Any:
    """Return a batch with tuples for lists, and a dictionary for any mapping, such as a tokenizer's."""
    if isinstance(given, list | tuple):
        return tuple(map(as_tuples, given))
    if isinstance(given, Mapping):
        return {name: as_tuples(each) for name, each in given.items()}
    return given


def _collate_tensors(rows: list[Any]) -> Any:
    """Return one row of tensors, arrays and numbers as a batch."""
    (row,) = rows
    if not (isinstance(row, tuple | list) and len(row) in (2, 3)):
        raise DataError(
            f"the dataset gives a {type(row).__name__} for an example; expected (input, target, group), or "
            "(input, target) for a method that needs no groups. Rows of another form need a function that "
            "makes batches of them: Trainer(collate=...).",
            field="data",
        )
    try:
        # Tensors first, as most parts of most rows are.
        return tuple([p[None] if type(p) is Tensor else map_tensors(_as_tensor, p) for p in row])
    except Exception as error:
        raise DataError(
            f"an example is ({', '.join(type(part).__name__ for part in row)}), which is not all tensors "
            f"({error_text(error)}); expected an input that is a tensor, an array or numbers, or a tuple or "
            "mapping of them, and a target and a group that count classes and groups from 0.",
            field="inputs",
        ) from error


def _as_tensor(part: Any) -> Tensor:
    if isinstance(part, float | int):
        return torch.tensor([part], dtype=torch.float64 if isinstance(part, float) else None)
    return torch.as_tensor(part)[None]


def _collate_rows(collate: Collate, rows: list[Any]) -> Any:
    """Return a collator's batch of rows: tensors with one place for each row."""
    try:
        batch = as_tuples(collate([copy(row) for row in rows]))  # some collators change rows in place
        parts: Any = tensors(batch)
        whole = all(isinstance(each, Tensor) and each.shape[:1] == (len(rows),) for each in parts)
        if not (whole and isinstance(batch, tuple) and len(batch) in (2, 3)):
            raise ValueError(f"it gives {map_tensors(_shape_or_kind, batch)}")
    except EquidpError:
        raise
    except Exception as error:
        raise DataError(
            f"collate fails on {len(rows)} rows of the dataset ({error_text(error)}); expected a function of "
            "a list of rows that returns (inputs, targets) or (inputs, targets, groups), of tensors with one "
            'place for each row. Of a mapping with labels, return (batch, batch.pop("labels")).',
            field="collate",
        ) from error
    return batch


def _shape_or_kind(part: Any) -> Any:
    return list(part.shape) if isinstance(part, Tensor) else type(part).__name__
