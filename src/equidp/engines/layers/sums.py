"""Weighted sums and norms from per-example gradients, and what rounding may do to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from equidp.errors import ModelError
from equidp.kernel.noise import to_double

ByName = dict[str, Tensor]
"""Per-example gradients [batch, *shape], or weighted sums of them in float64 [*shape], by parameter name."""
_BLOCK, _ROWS = 512, 2**13
KEPT = 2
"""Per-example gradients are kept for the weighted sum if they are at most this many times the size of the
inputs and output gradients from which they follow. Those are then freed."""
FEW_POSITIONS = 32
"""Up to this many positions of an example, products in float64 cost less than forming its gradient in float32
and converting each of its numbers."""
_CHUNK, _DEVICE_CHUNK = 2**18, 2**25
"""Numbers per intermediate result: on a CPU few enough to stay in its cache. Elsewhere, starting a call takes
longer than most results, so it is at most 256 MiB in float64."""


def chunk_numbers(values: Tensor) -> int:
    """Return the size, in numbers, of intermediate results that follow from values.

    >>> chunk_numbers(torch.zeros(2))
    262144
    """
    return _CHUNK if values.device.type == "cpu" else _DEVICE_CHUNK


def precise(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in at least float32, so that norms and sums keep their precision under autocast."""
    if inputs.dtype == gradient.dtype in (torch.float32, torch.float64):
        return inputs, gradient
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    return inputs.to(dtype), gradient.to(dtype)


def by_example(values: Tensor, rows: int) -> Tensor:
    """Return [batch * rows, ...] as [batch, rows, ...]: the rows of an example (unit of privacy).

    Raises:
        ModelError: the rows are not a multiple of `rows`.

    >>> by_example(torch.zeros(6, 5), 3).shape
    torch.Size([2, 3, 5])
    """
    if len(values) % rows:
        raise ModelError(
            f"a layer reads {len(values)} rows, and each person, or example with its views, has {rows}: they "
            "must come first in every layer (batch_first=True?).",
            field="model",
        )
    grouped: Tensor = values.unflatten(0, (len(values) // rows, rows))
    return grouped


def sum_of_rows(values: Tensor, rows: int) -> Tensor:
    """Return sums over the rows of each example, [batch, ...], of values [batch * rows, ...]."""
    return values if rows == 1 else by_example(values, rows).sum(dim=1)


def as_rows(values: Tensor) -> Tensor:
    """Return values [batch, ...] as [batch, numbers].

    >>> as_rows(torch.zeros(2, 3, 4)).shape
    torch.Size([2, 12])
    """
    return values if values.dim() == 2 else values.reshape(len(values), -1)


def join_parts(parts: Sequence[Tensor]) -> Tensor:
    """Return parts of a batch as one tensor; a single part as it is, without a copy.

    >>> join_parts([torch.zeros(2, 3), torch.zeros(1, 3)]).shape
    torch.Size([3, 3])
    """
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def zero_left_out(values: Tensor, left_out: Tensor) -> Tensor:
    """Return values [batch, ...] with 0 for the examples that are left out, [batch]."""
    return values.masked_fill(left_out.reshape(-1, *[1] * (values.dim() - 1)), 0.0)


def weighted_sums(weights: Tensor, gradients: ByName) -> ByName:
    """Return sum_i weights[i] * gradients[i] in float64, by name."""
    return {name: weighted_sum(weights, each) for name, each in gradients.items()}


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return sum_i weights[i] * values[i] in float64, [*shape], of values [batch, *shape].

    Rounding: products of float32 are exact in float64. The additions lose at most k 2^-53 of sum_i
    |weights[i]| |values[i]| for batches of k = 2^13 or fewer; larger ones are added block by block. A few
    values of a block are converted at a time, so that copies stay in a CPU's cache.
    """
    rows = as_rows(values)
    if len(rows) <= _ROWS:
        total = _weighted_block(to_double(weights), rows)
        return total if values.dim() == 2 else total.reshape(values.shape[1:])
    blocks = zip(to_double(weights).split(_ROWS), rows.split(_ROWS), strict=True)
    return add_tensors(_weighted_block(some, rows) for some, rows in blocks).reshape(values.shape[1:])


def _weighted_block(weights: Tensor, rows: Tensor) -> Tensor:
    size = max(64, chunk_numbers(rows) // 2 // len(rows))
    if rows.device.type != "cpu" or rows.shape[1] <= size:
        return weights @ to_double(rows)
    total = weights.new_empty(rows.shape[1])
    copies = weights.new_empty(len(rows), size)
    for part, columns in zip(total.split(size), rows.split(size, dim=1), strict=True):
        torch.mv(copies[:, : len(part)].copy_(columns).T, weights, out=part)
    return total


def add_tensors(sums: Iterable[Tensor]) -> Tensor:
    """Return the sum of one or more tensors; overwrite the first."""
    first, *others = sums
    for each in others:
        first += each
    return first


def outer_sum(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return sum_i weights[i] left[i] right[i]' in float64, [p, q], of left [batch, p] and right [batch, q].

    Rounding: as in `weighted_sum`.
    """
    size = min(_ROWS, max(512, 8 * chunk_numbers(left) // (left.shape[1] + right.shape[1])))
    weights = to_double(weights)
    if len(weights) <= size:
        return _outer_block(weights, left, right)
    parts = zip(weights.split(size), left.split(size), right.split(size), strict=True)
    return add_tensors(_outer_block(*part) for part in parts)


def _outer_block(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return (to_double(left) * weights.unsqueeze(1)).T @ to_double(right)


def held_to_norms(weights: Tensor, before: Tensor, now: Tensor) -> Tensor:
    """Return weights [batch] under which recomputed gradients add no more than those that were measured.

    A module may run differently the second time (Python's own random numbers). The weight is 0 if a norm was
    not finite, or is not finite now.

    Args:
        weights: [batch], made for the norms `before`.
        before, now: norms of the gradients the first time and this time, [batch].
    """
    ratios = (before / now.clamp_min(torch.finfo(now.dtype).tiny)).clamp(max=1.0).nan_to_num(nan=0.0)
    return weights * torch.where(torch.isfinite(before), ratios, 0.0)


def lengths(rows: Tensor) -> Tensor:
    """Return norms of rows [batch, n], [batch]; too small by rounding by at most 2^-13 / 5 of their value.

    Numbers are added in blocks of 512, and blocks in the same way. k additions in float32 lose at most k
    2^-24 of a sum of squares, so blocks lose 2^-16 of a norm. 512^3 numbers have three levels.
    """
    while rows.shape[1] > _BLOCK:
        whole = rows.shape[1] // _BLOCK * _BLOCK
        blocks = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, _BLOCK)), dim=2)
        rest = torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True)
        rows = torch.cat([blocks, rest], dim=1)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms


def squared_lengths(gradients: ByName) -> Tensor:
    """Return squared norms over all tensors, [batch], of per-example gradients [batch, *shape]."""
    norms = [lengths(as_rows(each)) for each in gradients.values()]
    return norms[0].square() if len(norms) == 1 else torch.stack(norms).square().sum(0)


def lost_to_underflow(values: Tensor, count: int) -> float:
    """Return the most that a sum of `count` products of two numbers may lack because products underflowed.

    Squares of numbers below 1e-19 vanish in float32. This is harmless by itself, because bounds treat a norm
    below 1e-10 as that large (`kernel.bounding`). It matters if such a sum is multiplied by a large one, as
    |g|^2 by
    |x|^2: add this before multiplying. It changes no digit of ordinary sums.

    Args:
        values: values of the type that the products are computed in.
        count: number of products that were added.
    """
    return 2.0 * count * torch.finfo(values.dtype).tiny


def gram_norms(products: Tensor, additions: int) -> Tensor:
    """Return squared norms [batch], never too small, from products <x_s, x_t> <g_s, g_t> [batch, T, T].

    If the terms of a gradient cancel, so do these products, and their sum loses twice as many digits. An
    example with an understated norm could contribute more than its bound, so the largest rounding error of
    the sum is added.

    Args:
        products: products in float64.
        additions: number of terms of each product.
    """
    rounding = (additions + math.prod(products.shape[1:])) * torch.finfo(products.dtype).eps
    return products.sum(dim=(1, 2)).clamp_min(0.0) + rounding * products.abs().sum(dim=(1, 2))


def position_norms(inputs: Tensor, gradient: Tensor) -> Tensor:
    """Return squared norms [batch] of sum_t gradient_t inputs_t', from products of positions in float64.

    |sum_t g_t x_t'|^2 = sum_st <x_s, x_t> <g_s, g_t>: T^2 numbers, not p q (Li et al. 2022).

    Args:
        inputs, gradient: [batch, T, p] and [batch, T, q].
    """
    additions = inputs.shape[2] + gradient.shape[2]
    size = max(1, chunk_numbers(inputs) // (inputs.shape[1] * max(inputs.shape[1], additions)))
    squares = []
    for given, received in zip(inputs.split(size), gradient.split(size), strict=True):
        given, received = to_double(given), to_double(received)
        products = given @ given.transpose(1, 2)
        squares.append(gram_norms(products.mul_(received @ received.transpose(1, 2)), additions))
    return join_parts(squares).to(gradient)


def with_rounding(squares: Tensor, terms: Tensor, additions: int) -> Tensor:
    """Return squared norms [batch] of sums of float32 terms, raised by what the additions may have lost.

    Args:
        squares: squared norms of the computed sums, [batch].
        terms: sum of the lengths of each example's terms, or more, [batch].
        additions: number of terms of an example.
    """
    lost = (additions + 2) * torch.finfo(squares.dtype).eps / 2
    return (squares.sqrt() + lost * terms).square()
