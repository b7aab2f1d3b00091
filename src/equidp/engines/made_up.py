"""Plain rows made up from shapes and types: no row of the data decides which model is accepted."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from equidp.engines.model import call_model
from equidp.engines.units import UnitModel
from equidp.kernel.inputs import Inputs, map_tensors, tensors
from equidp.losses import output_tensors

_BYTES, _LARGE = 256, 100.0


def made_up_inputs(model: nn.Module, like: Inputs, count: int) -> Any:
    """Return `count` rows of these shapes and types; no value of `like`, [batch, ...], is read.

    Numbers are normal, in turns with some in [0, 1), zeros, large ones, and rows that are padded with zeros
    along their first or last dimension. Whole numbers are below the number of rows of the model's smallest
    embedding table. Without such a table they are 0 or 1, and bytes any byte. Tensors with "mask" in their
    name are 1, and 0 in padded places. If the model's settings name an end token (`eos_token_id`), it ends
    each row.
    """
    generator = torch.Generator().manual_seed(1)
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
    smallest = min(tables, key=lambda table: table.num_embeddings, default=None)
    end = getattr(getattr(model, "config", None), "eos_token_id", None)
    sizes = [table.num_embeddings for table in tables]
    largest = max(sizes or [2, *(size + 1 for each in tensors(like) for size in each.shape[1:])])
    masks = iter(["mask" in name for name in _names(model, like)])

    def rows(like: Tensor) -> Tensor:
        size = (count, *like.shape[1:])
        is_mask, filler = next(masks), 0
        if is_mask:
            made = torch.ones(size)
        elif like.dtype.is_floating_point or like.dtype.is_complex:
            made = torch.randn(size, generator=generator)
            made[3::4] = torch.rand(size, generator=generator)[3::4]
            made[5::16], made[6::16] = 0.0, _LARGE * made[6::16]
        else:
            whole = _BYTES if like.dtype == torch.uint8 and like.device.type == "cpu" else 2
            below = whole if smallest is None else int(smallest.num_embeddings)
            below = 2 if like.dtype == torch.bool else min(below, torch.iinfo(like.dtype).max)
            filler = int(getattr(smallest, "padding_idx", None) or 0)
            made = torch.randint(0, below, size, generator=generator)
            if like.device.type == "cpu" and like.dtype not in (torch.bool, torch.uint8):
                # Lengths, perhaps, or of a larger table; on a GPU one out of range would end the process.
                made[::2] = torch.randint(0, largest, size, generator=generator)[::2]
            made[5::16] = filler
        made = _padded(made, filler)
        if isinstance(end, int) and made.dtype == torch.int64 and made.dim() == 2 and below > max(end, 2):
            made = torch.where(made == end, 2 if end != 2 else 1, made)
            made[:, -1] = end
        return made.to(like.dtype).to(like.device)

    return map_tensors(rows, like)


def _padded(rows: Tensor, filler: int) -> Tensor:
    """Fill every other row up at its end, along its first dimension or its last, all tensors alike."""
    for place in range(1, len(rows) if rows.dim() > 1 else 0, 2):
        dimension = (0, -1)[place // 2 % 2]
        size = rows[place].shape[dimension]
        kept = max(1, size * (place % 8) // 8)
        rows[place].narrow(dimension, kept, size - kept).fill_(filler)
    return rows


def made_up_targets(
    model: nn.Module, inputs: Inputs, like: Inputs, num_classes: int | None, count: int
) -> Any:
    """Return targets of these shapes and types, [count, ...]: numbers, or classes in no order.

    Classes are below `num_classes`; if that is None, below the smallest output dimension above 1.
    """
    generator = torch.Generator().manual_seed(2)

    def targets(like: Tensor) -> Tensor:
        size = (count, *like.shape[1:])
        if like.dtype.is_floating_point and num_classes is None:
            made = torch.randn(size, generator=generator)
            made[1::2] = torch.rand(size, generator=generator)[1::2]
        else:
            below = 2 if like.dtype == torch.bool else num_classes or _classes(model, inputs)
            made = torch.randint(0, below, size, generator=generator)
        return made.to(like.dtype).to(like.device)

    return map_tensors(targets, like)


def _classes(model: nn.Module, inputs: Inputs) -> int:
    """The smallest output dimension above 1; 2 if the model runs on none of these rows."""
    for place in range(len(tensors(inputs)[0])):
        with suppress(Exception), torch.no_grad():
            outputs = output_tensors(call_model(model, map_tensors(lambda each: each[[place]], inputs)))  # noqa: B023
            return min((size for each in outputs for size in each.shape[1:] if size > 1), default=2)
    return 2


def _names(model: nn.Module, inputs: Inputs) -> list[str]:
    """The name of each tensor: its key in a mapping, or the model's argument for a tuple."""
    if isinstance(inputs, Mapping):
        return [str(name) for name, each in inputs.items() for _ in tensors(each)]
    reads = model.model if isinstance(model, UnitModel) else model
    named = [*inspect.signature(reads.forward).parameters] if isinstance(inputs, tuple) else []
    return [*named, *("" for _ in tensors(inputs))]
