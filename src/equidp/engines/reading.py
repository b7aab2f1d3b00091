"""Which tables of embeddings read which of a model's inputs, and which inputs are masks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equidp.engines.called import called
from equidp.engines.trying import tried
from equidp.engines.units import UnitModel
from equidp.kernel.inputs import Inputs, mapped, tensors


class Reading(NamedTuple):
    """How a model reads one tensor of its inputs.

    Attributes:
        tables: of embeddings, whose rows its whole numbers count.
        mask: whether it tells which positions of others count.
        unread: whether no table was seen to read the tensor itself, so that `tables` are all of the model.
    """

    tables: list[Any]
    mask: bool
    unread: bool

    @classmethod
    def of(cls, model: nn.Module, inputs: Inputs) -> list[Reading]:
        """Returns the reading of each tensor [batch, ...], by its name and by a pass over zeros of its shape.

        Tables that read a tensor itself, all of it, bound its numbers; otherwise any table of the model may.
        """
        tables = [each for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
        names = _names(model, inputs)
        masks = [len(names) > 1 and "mask" in name for name in names]
        seen = _tables_read(model, inputs, tables, masks) if tables else [([], False) for _ in names]
        return [
            cls(read if whole else tables, mask, not read)
            for (read, whole), mask in zip(seen, masks, strict=True)
        ]


def _names(model: nn.Module, inputs: Inputs) -> list[str]:
    """Of each tensor: in a mapping its own, in a tuple that of the model's argument."""
    if isinstance(inputs, Mapping):
        return [str(name) for name, each in inputs.items() for _ in tensors(each)]
    if not isinstance(inputs, tuple):
        return [""]
    reads = model.model if isinstance(model, UnitModel) else model
    named = [*inspect.signature(reads.forward).parameters, *("" for _ in inputs)]
    return [name for name, each in zip(named, inputs, strict=False) for _ in tensors(each)]


def _tables_read(
    model: nn.Module, inputs: Inputs, tables: list[Any], masks: list[bool]
) -> list[tuple[list[Any], bool]]:
    """The tables that read each tensor's memory, and whether one reads all of it; none where the model fails.

    Where it fails on zeros, it is run on ones too, on a processor: a length of 0 may fail before a table.
    """
    places: list[tuple[int, int]] = []
    read: list[list[Any]] = [[] for _ in masks]
    whole = [False for _ in masks]

    def note(table: nn.Module, arguments: tuple[Any, ...]) -> None:
        for place, (start, size) in enumerate(places):
            if isinstance(arguments[0], Tensor) and arguments[0].untyped_storage().data_ptr() == start:
                read[place].append(table)
                whole[place] |= arguments[0].numel() == size

    watching = [table.register_forward_pre_hook(note) for table in tables]
    try:
        for value in (0.0, 1.0):
            filled = iter([max(value, float(mask)) for mask in masks])
            rows = mapped(partial(_rows_of, filled), inputs)
            places[:] = [(each.untyped_storage().data_ptr(), each.numel()) for each in tensors(rows)]
            with suppress(Exception), tried(model), torch.no_grad():
                called(model, rows)
                break
            if any(each.device.type != "cpu" for each in tensors(rows)):
                break
    finally:
        for each in watching:
            each.remove()
    return list(zip(read, whole, strict=True))


def _rows_of(values: Iterator[float], like: Tensor) -> Tensor:
    """Two rows of the next value."""
    return like.new_full((2, *like.shape[1:]), next(values))
