"""Rows of a dataset as one batch, by a function of the user's that gets each row alone.

A collator may pad rows to the longest of a sample, and do nothing else: rows of a sample would change each
other. Before training each row is collated once alone and once among others, and the two are compared: a
collator that does more is refused, and how it pads is learnt. In training it gets one row at a time, so that
none changes another whatever it does, and rows are padded here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from equidp.engines.model import same
from equidp.errors import DataError, EquidpError, SettingError, error_text
from equidp.kernel.inputs import map_tensors, taken, tensors

Collate = Callable[[list[Any]], Any]
"""Rows, as a dataset gives them -> one batch (inputs, targets) or (inputs, targets, groups)."""
_AT_A_TIME = 32
"""Rows that are collated together when a collator is tried."""


@final
@dataclass(frozen=True)
class Extent:
    """Extent of one tensor of a batch over rows that were collated alone.

    Attributes:
        dtype: of the tensor.
        shortest, largest: the least and the greatest size of each dimension of a row.
        smallest: the least size above 0 of each dimension; 0 where all are 0.
        paddings: how rows may have been padded, as (number, whether it stands after the row); None: no row
            was.
    """

    dtype: torch.dtype
    shortest: tuple[int, ...]
    smallest: tuple[int, ...]
    largest: tuple[int, ...]
    paddings: frozenset[tuple[Any, bool]] | None

    def join(self, other: Extent) -> Extent:
        """Return the extent over the rows of both.

        Raises:
            DataError: they differ in type or in the number of dimensions.
            SettingError: rows were padded in different ways.
        """
        if self.dtype != other.dtype or len(self.largest) != len(other.largest):
            raise DataError(
                f"the collator gives one row {self.dtype} of {len(self.largest)} dimensions and another "
                f"{other.dtype} of {len(other.largest)}; expected one form for all rows.",
                field="collate",
            )
        paddings = other.paddings if self.paddings is None else self.paddings
        if self.paddings is not None and other.paddings is not None:
            paddings = self.paddings & other.paddings
            if not paddings:
                raise _more_than_padding()
        return Extent(
            self.dtype,
            tuple(map(min, self.shortest, other.shortest)),
            tuple(
                min(a, b) if a and b else max(a, b)
                for a, b in zip(self.smallest, other.smallest, strict=True)
            ),
            tuple(map(max, self.largest, other.largest)),
            paddings,
        )

    def zeros(self, sizes: tuple[int, ...]) -> Tensor:
        """Return one row of these sizes, [1, *sizes]."""
        return torch.zeros(1, *sizes, dtype=self.dtype)

    def pad(self, rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return rows [batch, ...] padded to these sizes as the collator pads, [batch, *sizes]."""
        number, after = max(self.paddings or {(0, True)}, key=lambda each: each[1])
        whole = rows.new_full((len(rows), *sizes), number)
        whole[(slice(None), *_corner(rows.shape[1:], sizes, after))] = rows
        return whole

    def join_rows(self, *rows: Tensor) -> Tensor:
        """Return rows, [1, ...] each, as one batch, padded to the longest in each dimension."""
        longest = tuple(map(max, zip(*(row.shape[1:] for row in rows), strict=True)))
        return torch.cat([row if row.shape[1:] == longest else self.pad(row, longest) for row in rows])

    def holds(self, batch: Tensor) -> bool:
        """Return whether a batch is of this type, and no row larger than these."""
        if not isinstance(batch, Tensor) or batch.dtype != self.dtype:
            return False
        sizes = batch.shape[1:]
        return len(sizes) == len(self.largest) and all(
            low <= size <= high for low, size, high in zip(self.shortest, sizes, self.largest, strict=True)
        )


@final
@dataclass(frozen=True)
class Collation:
    """A collator that was tried on each row of a dataset, and the form of its batches.

    Attributes:
        collate: function of the user's.
        extents: `Extent` of each tensor, in the form of a batch.
        not_finite: inputs and targets of one row that holds NaN or infinite numbers, [1, ...]; None: no row
            does.
    """

    collate: Collate
    extents: tuple[Any, ...]
    not_finite: Any | None = None

    @classmethod
    def of(
        cls,
        collate: Collate,
        dataset: Dataset[Any],
        workers: int = 0,
        start_of_worker: Callable[[int], None] | None = None,
        num_groups: int | None = None,
    ) -> Collation:
        """Try a collator on each row of a dataset, alone and among others.

        Args:
            collate: function of the user's.
            dataset: map-style, with one row at least.
            workers: number of processes that load and collate.
            start_of_worker: called with its number in each of these processes.
            num_groups: number of groups; None: not checked.

        Raises:
            DataError: it fails, or gives anything but one batch of tensors, one row for each, or groups
                outside 0 to num_groups - 1.
            SettingError: it gives a row another content among others than alone, padding aside.
        """
        count = len(dataset)  # type: ignore[arg-type]
        parts = -(-count // _AT_A_TIME)
        # The first row is in each part, so that rows of another length stand beside it.
        places = [[0, *range(first or parts, count, parts)] for first in range(parts)]
        loader = DataLoader(
            dataset,
            batch_sampler=places,
            num_workers=workers,
            collate_fn=partial(or_error, partial(_extents, collate, num_groups)),
            worker_init_fn=start_of_worker,
        )
        found: Any = None
        odd: Any = None
        for each, odd_here in raise_errors(loader):
            if found is not None and names_in(found) != names_in(each):
                raise _more_than_padding()
            found = each if found is None else map_tensors(Extent.join, found, each)
            odd = odd_here if odd is None else odd
        return cls(collate, found, odd)

    def __call__(self, rows: list[Any]) -> Any:
        """Return rows as one batch; without rows, an empty one.

        The collator gets one row at a time, and they are padded here: it could mix rows otherwise by
        something that its trial did not show it, such as how many there are.

        Raises:
            DataError: the collator fails, or a row is not of the form of those that were tried.
        """
        if not rows:
            return taken(self.example, slice(0))
        alone = [_collate_rows(self.collate, [row]) for row in rows]
        if not all(map(self._holds, alone)):
            raise DataError(
                "collate gives a row of other names, types or sizes than for the rows that it was tried on "
                "before training: all of the dataset's. Let the dataset give the same rows at each call.",
                field="collate",
            )
        return map_tensors(Extent.join_rows, self.extents, *alone)

    def _holds(self, row: Any) -> bool:
        """Return whether a row alone, [1, ...] each, is of the form of the rows that were tried."""
        alike = names_in(row) == names_in(self.extents)
        return alike and all(tensors(map_tensors(Extent.holds, self.extents, row)))

    @property
    def example(self) -> Any:
        """One row of zeros, in each dimension as large as the largest, in the form of a batch."""
        return map_tensors(lambda each: each.zeros(each.largest), self.extents)

    @property
    def pads(self) -> bool:
        """True where rows differ in size."""
        return any(each.shortest != each.largest for each in _leaves(self.extents))

    @property
    def short_example(self) -> Any:
        """Inputs and targets of one row of zeros, in each dimension as small as the smallest that has any."""
        return map_tensors(lambda each: each.zeros(each.smallest), self.extents[:2])

    @property
    def empty_example(self) -> Any | None:
        """Inputs and targets of one row without any numbers, as some rows are; None: none is."""
        if all(all(each.shortest) or not any(each.largest) for each in _leaves(self.extents[:2])):
            return None
        return map_tensors(lambda each: each.zeros(each.shortest), self.extents[:2])

    def pad_examples(self, examples: Any) -> Any:
        """Return inputs and targets [batch, ...] padded to the sizes of the largest row."""
        return map_tensors(lambda each, rows: each.pad(rows, each.largest), self.extents[:2], examples)


def _leaves(extents: Any) -> tuple[Extent, ...]:
    found: Any = tensors(extents)
    return tuple(found)


def or_error(gather: Callable[[list[Any]], Any], rows: list[Any]) -> Any:
    """Return what `gather` makes of rows, or its error: a DataLoader's worker would turn it into a text."""
    try:
        return gather(rows)
    except EquidpError as error:
        return error


def raise_errors(loaded: Iterable[Any]) -> Iterable[Any]:
    """Yield what was loaded; an error in its place is raised."""
    for each in loaded:
        if isinstance(each, EquidpError):
            raise each
        yield each


def as_tuples(given: Any) -> Any:
    """Lists become tuples; any mapping, of a tokenizer say, becomes a dictionary."""
    if isinstance(given, list | tuple):
        return tuple(map(as_tuples, given))
    if isinstance(given, Mapping):
        return {name: as_tuples(each) for name, each in given.items()}
    return given


def names_in(part: Any) -> Any:
    """Return names, and numbers of parts, of one row or of a batch."""
    if isinstance(part, Mapping):
        return {name: names_in(each) for name, each in part.items()}
    return [names_in(each) for each in part] if isinstance(part, tuple | list) else None


def form_of(part: Any) -> Any:
    """Return names, shapes and types of a row, of which nothing else is read: equal where rows are alike.

    >>> form_of((torch.ones(2), 1)) == form_of((torch.zeros(2), 0))
    True
    """
    kind = type(part)
    if kind is int or kind is float:  # first, as in the next line: most parts of most rows
        return kind
    if kind is Tensor or isinstance(part, Tensor | np.ndarray):
        return part.shape, part.dtype
    if isinstance(part, tuple | list):
        return tuple([form_of(each) for each in part])
    if isinstance(part, Mapping):
        return tuple((name, form_of(each)) for name, each in part.items())
    return kind


def is_finite(part: Any) -> bool:
    """Return whether no number of a row, of a part of it, or of several rows, is NaN or infinite.

    >>> is_finite((torch.ones(2), 1)), is_finite({"a": float("nan")})
    (True, False)
    """
    by_device: dict[torch.device, list[Tensor]] = {}

    def holds_finite(part: Any) -> bool:
        kind = type(part)
        if kind is int:  # first: most parts of most rows are numbers and tensors
            return True
        if kind is Tensor or isinstance(part, Tensor):
            if part.is_floating_point():
                by_device.setdefault(part.device, []).append(part.detach().reshape(-1))
            return True
        if kind is float:
            return math.isfinite(part)
        if isinstance(part, tuple | list):
            return all(map(holds_finite, part))
        if isinstance(part, np.ndarray | np.floating):
            return part.dtype.kind != "f" or bool(np.isfinite(part).all())
        return not isinstance(part, Mapping) or all(map(holds_finite, part.values()))

    return holds_finite(part) and all(
        bool(torch.isfinite(torch.cat(numbers)).all()) for numbers in by_device.values()
    )


def check_groups(groups: Tensor, num_groups: int | None) -> None:
    """Refuse groups of a batch that are not one of `num_groups` for each example; None: not known.

    Raises:
        DataError: says what was expected.
    """
    expected = "whole numbers from 0" + ("" if num_groups is None else f" to {num_groups - 1}")
    if groups.dim() != 1 or groups.is_floating_point() or groups.dtype == torch.bool:
        raise DataError(
            f"the dataset gives groups of shape {list(groups.shape[1:])} and type {groups.dtype} for an "
            f"example; expected {expected}.",
            field="groups",
        )
    if len(groups) and not (groups.min() >= 0 and (num_groups is None or groups.max() < num_groups)):
        raise DataError(f"the dataset gives a group that is not among the {expected}.", field="groups")


def _collate_rows(collate: Collate, rows: list[Any]) -> Any:
    """Return what a collator makes of rows: tensors with one row for each, in the form of a batch."""
    try:
        batch = as_tuples(collate([copy(row) for row in rows]))  # some collators change rows in place
    except EquidpError:
        raise
    except Exception as error:
        raise DataError(
            f"collate fails on {'one row' if len(rows) == 1 else f'{len(rows)} rows'} of the dataset "
            f"({error_text(error)}); expected a function of a list of rows, as the dataset gives "
            "them, that returns one batch: (inputs, targets) or (inputs, targets, groups).",
            field="collate",
        ) from error
    if not isinstance(batch, tuple) or len(batch) not in (2, 3):
        names = f" of {', '.join(map(repr, batch))}" if isinstance(batch, dict) else ""
        raise DataError(
            f"collate gives a {type(batch).__name__}{names}; expected (inputs, targets) or (inputs, targets, "
            "groups), where inputs are a tensor, or a tuple or mapping of tensors. Of a collator that gives "
            'a mapping with labels, return (batch, batch.pop("labels")).',
            field="collate",
        )
    if not all(isinstance(each, Tensor) and each.shape[:1] == (len(rows),) for each in tensors(batch)):
        given = map_tensors(
            lambda each: list(each.shape) if isinstance(each, Tensor) else type(each).__name__, batch
        )
        raise DataError(
            f"collate gives {given} for {len(rows)} rows; expected tensors whose first dimension has one "
            "place for each row. Packed rows cannot be distinguished.",
            field="collate",
        )
    if not all(isinstance(each, Tensor) for each in batch[2:]):
        raise DataError(
            f"collate gives a {type(batch[2]).__name__} for groups; expected one tensor of whole numbers.",
            field="collate",
        )
    return batch


def _extents(collate: Collate, num_groups: int | None, rows: list[Any]) -> tuple[Any, Any]:
    """Collate rows together and each alone, and return the extent of each tensor in the form of a batch.

    Beside it, inputs and targets of the first row that holds NaN or infinite numbers; None: no row does.

    Raises:
        DataError, SettingError: as of `Collation.of`.
    """
    together = _collate_rows(collate, rows)
    for groups in together[2:]:
        check_groups(groups, num_groups)
    found: Any = None
    odd: Any = None
    for place, row in enumerate(rows):
        alone = _collate_rows(collate, [row])
        if names_in(alone) != names_in(together):
            raise _more_than_padding()
        if odd is None and not is_finite(alone[:2]):
            odd = alone[:2]
        extents = map_tensors(partial(_extent_at, place), alone, together)
        found = extents if found is None else map_tensors(Extent.join, found, extents)
    return found, odd


def _extent_at(place: int, alone: Tensor, together: Tensor) -> Extent:
    """Return the extent of one row, which was collated alone and stands at this place of a batch."""
    paddings = _possible_paddings(alone[0], together[place])
    if paddings is not None and not paddings:
        raise _more_than_padding()
    sizes = tuple(alone.shape[1:])
    return Extent(alone.dtype, sizes, sizes, sizes, paddings)


def _possible_paddings(own: Tensor, whole: Tensor) -> frozenset[tuple[Any, bool]] | None:
    """Return how a row may have been padded, as in `Extent`: in no way where it was changed otherwise."""
    if own.shape == whole.shape:
        return None if same(own, whole) else frozenset()
    if own.dtype != whole.dtype or own.dim() != whole.dim():
        return frozenset()
    if any(size > most for size, most in zip(own.shape, whole.shape, strict=True)):
        return frozenset()
    found = set()
    for after in (True, False):
        corner = _corner(own.shape, whole.shape, after)
        if not same(whole[corner], own):
            continue
        rest = torch.ones_like(whole, dtype=torch.bool)
        rest[corner] = False
        numbers = whole[rest]
        if not len(numbers):
            return None
        if (numbers == numbers[0]).all():
            found.add((numbers[0].item(), after))
    return frozenset(found)


def _corner(sizes: Iterable[int], most: Iterable[int], after: bool) -> tuple[slice, ...]:
    """Return where a row of these sizes stands in a larger one that is padded after it, or before it."""
    return tuple(
        slice(0, size) if after else slice(whole - size, None)
        for size, whole in zip(sizes, most, strict=True)
    )


def _more_than_padding() -> SettingError:
    return SettingError(
        "the collator gives a row another content among others than alone: it mixes rows, cuts them to the "
        "shortest, draws random numbers (masked words), goes by the first row or one of another type, or "
        "pads with more than one number, and epsilon is of rows. Give one that pads rows alone, all at one "
        "end; let the dataset draw, or the model.",
        field="collate",
    )
