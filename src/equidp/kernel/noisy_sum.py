"""Bounded sums with noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from equidp.kernel.bounding import _SMALLEST_NORM
from equidp.kernel.noise import Randomness, grid

_NOISE_BLOCK, _DEVICE_NOISE_BLOCK = 2**16, 2**22
"""Numbers that noise is drawn for at a time: what stays in a processor's cache; another device is not to wait for many calls."""


def private_sum(rows: Tensor, *, bound: float, noise_multiplier: float, randomness: Randomness) -> Tensor:
    """The sum of rows, each scaled to norm <= bound, plus Gaussian noise.

    Args:
        rows: [batch, d]; rows that are not finite count as 0. The batch may be empty.
        bound: L2 sensitivity of the sum, > 0 and finite.
        noise_multiplier: sigma; the noise scale is sigma * bound.
        randomness: where the noise comes from.

    Returns:
        [d], float64, on the grid of its noise (`equidp.kernel.noise.grid`).
    """
    rows = rows.to(torch.float64)
    rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    total = (rows * torch.clamp(bound / norms.clamp_min(_SMALLEST_NORM), max=1.0)).sum(dim=0)
    scale = noise_multiplier * bound
    return total if scale == 0 else _noisy([total], scale, randomness)


def _noisy(sums: Sequence[Tensor], scale: float, randomness: Randomness, divisor: float = 1.0) -> Tensor:
    """Flat sums, side by side, plus noise: added in float64, rounded to the noise's grid, and only then divided."""
    step = grid(scale)
    sizes = [part.numel() for part in sums]
    noisy = randomness.normal(sum(sizes), sums[0].device, scale / step)
    for part, noise in zip(sums, noisy.split(sizes), strict=True):
        noise.add_(part, alpha=1 / step)
    return noisy.round_().mul_(step / divisor)


def _blocks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Flat views of all of them, side by side as far as one draw of noise goes."""
    block: list[Tensor] = []
    room = 0
    for tensor in tensors:
        size = _NOISE_BLOCK if tensor.device.type == "cpu" else _DEVICE_NOISE_BLOCK
        flat = tensor.view(-1)
        for part in flat.split(size) if flat.numel() > size else (flat,):
            if block and (part.numel() > room or part.device != block[0].device):
                yield block
                block = []
            if not block:
                room = size
            block.append(part)
            room -= part.numel()
    if block:
        yield block
