"""Weighted sums and norms from per-example gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from equidp.errors import ModelError

ByName = dict[str, Tensor]
"""Per-example gradients [batch, *shape], or weighted sums of them [*shape], by parameter name."""
CHUNK_NUMBERS = 2**18
"""Numbers per intermediate result: few enough to stay in a processor's cache."""


def precise(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both in at least float32, so that norms and sums keep their precision under autocast."""
    if inputs.dtype == gradient.dtype in (torch.float32, torch.float64):
        return inputs, gradient
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    return inputs.to(dtype), gradient.to(dtype)


def by_example(values: Tensor, rows: int) -> Tensor:
    """Returns [batch * rows, ...] as [batch, rows, ...]: the rows of an example (unit of privacy).

    Raises:
        ModelError: there are rows left.

    >>> by_example(torch.zeros(6, 5), 3).shape
    torch.Size([2, 3, 5])
    """
    if len(values) % rows:
        raise ModelError(
            f"a layer reads {len(values)} rows, and each person, or example with its views, has {rows}: they "
            "must come first in every layer (batch_first=True?)."
        )
    grouped: Tensor = values.unflatten(0, (len(values) // rows, rows))
    return grouped


def sum_of_rows(values: Tensor, rows: int) -> Tensor:
    """Returns sums over the rows of each example, [batch, ...], of values [batch * rows, ...]."""
    return values if rows == 1 else by_example(values, rows).sum(dim=1)


def weighted_sums(weights: Tensor, gradients: ByName) -> ByName:
    """Returns sum_i weights[i] * gradients[i], by name."""
    return {name: torch.tensordot(weights.to(each.dtype), each, dims=1) for name, each in gradients.items()}


def accumulate(parameters: Mapping[str, nn.Parameter], sums: ByName) -> None:
    """Adds sums to p.grad, which is created where missing; in a new tensor, since others may hold the old."""
    for name, total in sums.items():
        parameter = parameters[name]
        total = total.to(parameter.dtype)
        parameter.grad = total if parameter.grad is None else parameter.grad + total


def held_to_norms(weights: Tensor, gradients: ByName, before: Tensor, now: Tensor) -> Tensor:
    """Returns weights [batch] under which recomputed gradients add no more than those that were measured.

    A module may run differently the second time (Python's own random numbers). Gradients that are not finite
    this time are set to 0 in place.

    Args:
        weights: [batch], made for the norms `before`.
        gradients: [batch, *shape], by name.
        before, now: their norms the first time and this time, [batch].
    """
    broken = ~torch.isfinite(now)
    if broken.any():
        for each in gradients.values():
            each[broken] = 0.0
    return weights * (before / now.clamp_min(torch.finfo(now.dtype).tiny)).clamp(max=1.0).nan_to_num(nan=0.0)


def squared_lengths(gradients: ByName) -> Tensor:
    """Returns squared norms over all tensors, [batch], of per-example gradients [batch, *shape]."""
    norms = [torch.linalg.vector_norm(each.reshape(len(each), -1), dim=1) for each in gradients.values()]
    return torch.stack(norms).square().sum(0)


def lost_to_underflow(values: Tensor, count: int) -> float:
    """Returns what a sum of `count` products of two numbers may lack because products underflowed.

    Squares of numbers below 1e-19 vanish in float32. That alone is harmless: bounds treat a norm below 1e-10
    as that large (`kernel.bounding`). It matters where such a sum is multiplied by a large one, as |g|^2 by
    |x|^2: add this before multiplying. It changes no digit of ordinary sums.

    Args:
        values: of the type that the products are computed in.
        count: how many products were added.
    """
    return 2.0 * count * torch.finfo(values.dtype).tiny


def gram_norms(products: Tensor) -> Tensor:
    """Returns squared norms [batch], never too small, from products <x_s, x_t> <g_s, g_t> [batch, T, T].

    Where the terms of a gradient cancel, so do these products, and their sum loses twice as many digits. An
    example whose norm is understated could contribute more than its bound, so the largest rounding error of
    the sum is added.
    """
    rounding = 8 * torch.finfo(products.dtype).eps
    return products.sum(dim=(1, 2)).clamp_min(0.0) + rounding * products.abs().sum(dim=(1, 2))


def product_norms(first: Tensor, second: Tensor, widths: tuple[int, int]) -> Tensor:
    """Returns `gram_norms` of first * second, never too small where one of them underflowed.

    A product of rows that underflowed lacks at most u, and the sum over s and t at most u times the sum of
    the other's |products|, which is at most T times its diagonal.

    Args:
        first, second: products of rows <x_s, x_t> and <g_s, g_t>, [batch, T, T]; `second` is overwritten.
        widths: how many numbers a row x and a row g have.
    """
    positions = first.shape[1]
    lost = [
        other.diagonal(dim1=1, dim2=2).sum(dim=1) * lost_to_underflow(other, positions * width)
        for other, width in zip((second, first), widths, strict=True)
    ]
    return gram_norms(second.mul_(first)) + lost[0] + lost[1]
