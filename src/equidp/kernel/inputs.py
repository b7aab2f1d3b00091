"""Inputs of a model: one tensor, or several in order or by name. The first axis of each is the examples.

Formal guarantee: every function here treats all tensors of the inputs alike, so that an example that leaves
the batch, or is in one part of it, does so with all that it has.

| case | what happens |
| --- | --- |
| no tensors at all | an empty form of the same kind; datasets refuse it |
| tensors of different lengths | not looked at here; the loop refuses them before a step |
| forms that differ | ValueError or KeyError |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""A tensor [batch, ...], a tuple of such, or a mapping from names to such."""


def map_tensors(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Return the results of `function` on the tensors at each place, in the form of the first inputs.

    Args:
        function: (one tensor of each of the inputs) -> a tensor.
        first, others: of one form. Tuples stay tuples, mappings become dictionaries; either may hold others.

    >>> map_tensors(lambda one: 2 * one, {"ids": torch.tensor([1, 2])})
    {'ids': tensor([2, 4])}
    """
    if isinstance(first, Tensor):  # first, since a step asks for little else, some thirty times
        return function(first, *others)
    if isinstance(first, tuple):
        return tuple(map_tensors(function, *each) for each in zip(first, *others, strict=True))
    if isinstance(first, Mapping):
        return {
            name: map_tensors(function, value, *(each[name] for each in others))
            for name, value in first.items()
        }
    return function(first, *others)


def tensors(inputs: Any) -> tuple[Tensor, ...]:
    """Return all tensors of the inputs, in their order.

    >>> len(tensors((torch.zeros(2), {"mask": torch.ones(2)})))
    2
    """
    if isinstance(inputs, Tensor):
        return (inputs,)
    if not isinstance(inputs, tuple):
        if not isinstance(inputs, Mapping):
            return (inputs,)
        inputs = tuple(inputs.values())
    found: list[Tensor] = []
    for each in inputs:
        found += (each,) if isinstance(each, Tensor) else tensors(each)
    return tuple(found)


def count_in(inputs: Any) -> int:
    """Return the number of examples, by the first of the tensors.

    >>> count_in({"ids": torch.zeros(4, 2)})
    4
    """
    return len(tensors(inputs)[0])


def taken(inputs: Any, which: Tensor | slice | list[int] | None) -> Any:
    """Return the examples at these places: indices, a mask [batch] or a slice; None: one example as a batch.

    >>> taken((torch.tensor([1, 2]), torch.tensor([3, 4])), torch.tensor([False, True]))
    (tensor([2]), tensor([4]))
    """
    return map_tensors(lambda each: each[which], inputs)


def in_parts(inputs: Any, size: int | None) -> list[Any]:
    """Return the examples in order, at most so many at a time; None: all at once. None of an empty batch.

    >>> in_parts((torch.arange(3), torch.ones(3)), 2)
    [(tensor([0, 1]), tensor([1., 1.])), (tensor([2]), tensor([1.]))]
    """
    count = len(tensors(inputs)[-1])
    if 0 < count <= (size or count):
        return [inputs]
    size = size or 1
    return [taken(inputs, slice(start, start + size)) for start in range(0, count, size)]


def join_batches(*inputs: Any) -> Any:
    """Return several batches of one form as one.

    >>> join_batches((torch.tensor([1]),), (torch.tensor([2]),))
    (tensor([1, 2]),)
    """
    return map_tensors(lambda *each: torch.cat(each), *inputs)


def moved_to(inputs: Any, device: torch.device | str) -> Any:
    """Return the inputs on a device; none is read before it has arrived.

    >>> moved_to({"ids": torch.tensor([1])}, "cpu")
    {'ids': tensor([1])}
    """
    # Work on CUDA waits for what it reads. The CPU does not, and MPS may read memory that was freed.
    ahead = torch.device(device).type == "cuda"
    return map_tensors(lambda each: each.to(device, non_blocking=ahead), inputs)
