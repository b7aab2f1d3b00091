"""Which tables of embeddings read which of a model's inputs, and which inputs are masks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
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
    """

    tables: list[Any]
    mask: bool

    @classmethod
    def of(cls, model: nn.Module, inputs: Inputs) -> list[Reading]:
        """Returns the reading of each tensor [batch, ...], by its name and by a pass over zeros of its shape.

        Tables that read a tensor itself, all of it, bound its numbers; otherwise any table of the model may.
        """
        tables = [each for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
        names = _names(model, inputs)
        masks = [len(names) > 1 and "mask" in name for name in names]
        seen = _tables_read(model, inputs, tables, masks) if len(tables) > 1 else [[] for _ in names]
        return [cls(own or tables, mask) for own, mask in zip(seen, masks, strict=True)]


def _names(model: nn.Module, inputs: Inputs) -> list[str]:
    """Of each tensor: in a mapping its own, in a tuple that of the model's argument."""
    if isinstance(inputs, Mapping):
        return [str(name) for name, each in inputs.items() for _ in tensors(each)]
    if not isinstance(inputs, tuple):
        return [""]
    reads = model.model if isinstance(model, UnitModel) else model
    named = [*inspect.signature(reads.forward).parameters, *("" for _ in inputs)]
    return [name for name, each in zip(named, inputs, strict=False) for _ in tensors(each)]


def _tables_read(model: nn.Module, inputs: Inputs, tables: list[Any], masks: list[bool]) -> list[list[Any]]:
    """The tables that read each tensor's memory, where one reads all of it; none where the model fails."""
    left = iter(masks)
    zeros = mapped(lambda each: each.new_full((2, *each.shape[1:]), float(next(left))), inputs)
    places = [each.untyped_storage().data_ptr() for each in tensors(zeros)]
    sizes = [each.numel() for each in tensors(zeros)]
    read: list[list[Any]] = [[] for _ in places]
    whole = [False for _ in places]

    def note(table: nn.Module, arguments: tuple[Any, ...]) -> None:
        for place, start in enumerate(places):
            if isinstance(arguments[0], Tensor) and arguments[0].untyped_storage().data_ptr() == start:
                read[place].append(table)
                whole[place] |= arguments[0].numel() == sizes[place]

    watching = [table.register_forward_pre_hook(note) for table in tables]
    try:
        with suppress(Exception), tried(model), torch.no_grad():
            called(model, zeros)
    finally:
        for each in watching:
            each.remove()
    return [own if all_of_it else [] for own, all_of_it in zip(read, whole, strict=True)]
