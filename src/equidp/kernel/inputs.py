"""Inputs of a model: one tensor, or several in order or by name. The first axis of each is the batch.

Formal guarantee: all tensors of the inputs are treated alike. If an example leaves the batch, or is put into
one part of it, this applies to all of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""A tensor [batch, ...], a tuple of inputs, or a mapping from names to inputs."""


def map_tensors(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Apply `function` to the tensors at each place, and return results in the form of the first inputs.

    Tuples stay tuples, mappings become dictionaries, and both can be nested. All inputs have the same form.

    >>> map_tensors(lambda one: 2 * one, {"ids": torch.tensor([1, 2])})
    {'ids': tensor([2, 4])}
    """
    if isinstance(first, Tensor):  # at once: to ask for a Mapping takes longer than most functions here
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
    if isinstance(inputs, Mapping):
        inputs = tuple(inputs.values())
    if not isinstance(inputs, tuple):
        return (inputs,)
    return tuple(found for each in inputs for found in tensors(each))


def count_in(inputs: Any) -> int:
    """Return the number of examples, by the first of the tensors.

    >>> count_in({"ids": torch.zeros(4, 2)})
    4
    """
    return len(tensors(inputs)[0])


def taken(inputs: Any, which: Tensor | slice | list[int] | None) -> Any:
    """Return the examples at these places: indices, a mask [batch] or a slice. None: one example as a batch.

    >>> taken((torch.tensor([1, 2]), torch.tensor([3, 4])), torch.tensor([False, True]))
    (tensor([2]), tensor([4]))
    """
    return map_tensors(lambda each: each[which], inputs)


def in_parts(inputs: Any, size: int | None) -> list[Any]:
    """Return the examples in order, in parts of at most `size`. None: one part. An empty batch has no parts.

    >>> in_parts((torch.arange(3), torch.ones(3)), 2)
    [(tensor([0, 1]), tensor([1., 1.])), (tensor([2]), tensor([1.]))]
    """
    count = len(tensors(inputs)[-1])
    if 0 < count <= (size or count):
        return [inputs]
    size = size or 1
    return [taken(inputs, slice(start, start + size)) for start in range(0, count, size)]


def moved_to(inputs: Any, device: torch.device | str) -> Any:
    """Return the inputs on a device; none is read before it has arrived.

    >>> moved_to({"ids": torch.tensor([1])}, "cpu")
    {'ids': tensor([1])}
    """
    # Work on CUDA waits for what it reads. The CPU does not, and MPS may read memory that was freed.
    ahead = torch.device(device).type == "cuda"
    return map_tensors(lambda each: each.to(device, non_blocking=ahead), inputs)


def count_changes(values: Tensor) -> int:
    """Return torch's count of in-place changes so far, or 0 if torch does not count them."""
    return 0 if values.is_inference() else values._version


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal in shape, type, device and value; NaN equals only NaN.

    >>> unknown = torch.tensor([torch.nan])
    >>> same(unknown, unknown.clone()), same(unknown, torch.zeros(1))
    (True, False)
    """
    kinds = [(each.shape, each.dtype, each.layout, each.device) for each in (one, other)]
    if kinds[0] != kinds[1]:
        return False
    if one.layout is not torch.strided:
        first, second = (each.detach().to_sparse_coo().coalesce() for each in (one, other))
        return same(first.indices(), second.indices()) and same(first.values(), second.values())
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
