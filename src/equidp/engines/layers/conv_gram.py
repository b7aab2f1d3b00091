"""Norms of convolutions from products of positions in float64, without gradients (mixed ghost norm, Bu et al.
2022).

|sum_s <window s, signal s>|^2 = sum_st <window s, window t> <signal s, signal t>. Products of windows are
sums over the kernel of products of pixels, the image's autocorrelation; in the last dimension windows may be
unfolded and multiplied as they are instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from equidp.engines.layers.sums import CHUNK_NUMBERS, gram_norms
from equidp.kernel.noise import to_double

_COST_OF_ADDING = 18
"""How many multiplications of a matrix product take as long as adding one number to another in memory."""


class Operands(NamedTuple):
    """The two tensors whose correlation is the gradient of a convolution's weight.

    Attributes:
        image: [batch, channels, ...], what the kernel slides over, without its border of `padding` zeros.
        signal: [batch, channels, ...], one value per position of the kernel.
        padding: number of zeros at both ends of each dimension of the image.
    """

    image: Tensor
    signal: Tensor
    padding: tuple[int, ...]

    def pad_image(self) -> Tensor:
        """Returns the image with its border."""
        if not any(self.padding):
            return self.image
        return pad(self.image, [border for size in reversed(self.padding) for border in (size, size)])

    def chunks(self, size: int) -> Iterator[Operands]:
        """Splits into `size` examples at a time."""
        for image, signal in zip(self.image.split(size), self.signal.split(size), strict=True):
            yield Operands(image, signal, self.padding)


def gram_cost(module: Any, operands: Operands, *, unfolded: bool) -> int:
    """Returns what `squared_gram_norms` computes for one example, in multiplications."""
    kernel, sizes, places = module.kernel_size, list(operands.image.shape[2:]), operands.signal.shape[2:]
    channels, added = operands.image.shape[1], 0
    if unfolded:
        sizes[-1], channels = places[-1], channels * kernel[-1]
    multiplied = channels * math.prod(sizes) ** 2 + operands.signal.shape[1] * math.prod(places) ** 2
    for dimension in range(len(places) - unfolded):
        sizes[dimension] = places[dimension]
        added += kernel[dimension] * math.prod(sizes) ** 2 * module.groups
    return int(multiplied + _COST_OF_ADDING * added)


def squared_gram_norms(module: Any, operands: Operands, *, unfolded: bool) -> Tensor:
    """Returns squared norms of the weight's per-example gradients, [batch].

    Args:
        module: the convolution.
        operands: of the call.
        unfolded: whether windows in the last dimension are unfolded; otherwise all dimensions go by the
            autocorrelation.
    """
    norms, groups = [], module.groups
    sizes, places = list(operands.image.shape[2:]), operands.signal.shape[2:]
    if unfolded:
        sizes[-1] = places[-1]
    positions = math.prod(places)
    additions = module.weight[0].numel() + operands.signal.shape[1] // groups
    for part in operands.chunks(max(1, 2 * CHUNK_NUMBERS // (groups * math.prod(sizes) ** 2))):
        part = part._replace(image=to_double(part.image), signal=to_double(part.signal))
        features = _features(module, part, unfolded=unfolded)
        products = features.transpose(2, 3) @ features
        products = products.flatten(0, 1).unflatten(1, sizes).unflatten(-1, sizes)
        for dimension, size in enumerate(places[:-1] if unfolded else places):
            products = _over_kernel(module, products, dimension, size, part.padding[dimension])
        signal = part.signal.flatten(2).unflatten(1, (groups, -1)).flatten(0, 1)
        products = products.reshape(-1, positions, positions).mul_(signal.transpose(1, 2) @ signal)
        norms.append(gram_norms(products, additions).unflatten(0, (-1, groups)).sum(dim=1))
    return torch.cat(norms).to(operands.signal)


def _features(module: Any, operands: Operands, *, unfolded: bool) -> Tensor:
    """Pixels, or windows in the last dimension, by position, [batch, groups, features, positions].

    They are copied in the order in which the image lies in memory: with its channels last, a window is one
        run of numbers.
    """
    image = operands.image
    windows = image.unsqueeze(-1)
    if unfolded:
        span = (module.kernel_size[-1] - 1) * module.dilation[-1] + 1
        image = pad(image, [operands.padding[-1]] * 2) if operands.padding[-1] else image
        windows = image.unfold(-1, span, module.stride[-1])[..., :: module.dilation[-1]]
    # [batch, groups, channels, ..., places in the kernel]
    grouped: Tensor = windows.unflatten(1, (module.groups, -1))
    positions = math.prod(grouped.shape[3:-1])
    if image.stride(1) == 1:
        by_position = grouped.movedim(2, -1).reshape(len(image), module.groups, positions, -1)
        return by_position.transpose(2, 3)
    return grouped.movedim(-1, 3).reshape(len(image), module.groups, -1, positions)


def _over_kernel(module: Any, pixels: Tensor, dimension: int, size: int, padding: int) -> Tensor:
    """Products of windows in this dimension from products of pixels: sums over the kernel's places in it.

    `pixels` has two dimensions for each dimension of the image, [batch, ..., ...]. In both, `size` windows
    take the pixels' place; they are a stride apart and reach over a border of zeros.
    """
    stride, dilation = module.stride[dimension], module.dilation[dimension]
    twice = (1 + dimension, 1 + dimension + len(module.kernel_size))
    count = pixels.shape[twice[0]]
    shape = [size if at in twice else extent for at, extent in enumerate(pixels.shape)]
    windows = pixels.new_zeros(shape)
    for place in range(module.kernel_size[dimension]):
        offset = place * dilation - padding
        first, end = max(0, -(offset // stride)), min(size, (count - 1 - offset) // stride + 1)
        if first < end:
            of_windows, of_pixels = [slice(None)] * len(shape), [slice(None)] * len(shape)
            for at in twice:
                of_windows[at] = slice(first, end)
                of_pixels[at] = slice(offset + first * stride, offset + (end - 1) * stride + 1, stride)
            windows[tuple(of_windows)] += pixels[tuple(of_pixels)]
    return windows
