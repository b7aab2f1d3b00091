"""Convolutions of one to three dimensions with any stride, padding, dilation and groups, also transposed.

Three ways to an example's weight gradient or its norm, by what costs least: one grouped convolution in which
every example is a group of its own; a product with the unfolded image, where there are few channels; and the
norm alone from products of positions, where there are few positions and many channels (`squared_gram_norms`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from equidp.engines.layers.rule import LayerGradients, Norms, Rule, run_layer
from equidp.engines.layers.sums import (
    FEW_POSITIONS,
    ByName,
    add_tensors,
    by_example,
    chunk_numbers,
    gram_norms,
    join_parts,
    lengths,
    squared_lengths,
    sum_of_rows,
    weighted_sum,
    with_rounding,
)
from equidp.kernel.noise import to_double

_COST_OF_ADDING = 18
"""Cost of adding a number in memory, in multiplications of a matrix product."""
_CHANNELS_TOGETHER = 8
"""Number of channels that the library computes at once; unless both sides are multiples of it, a grouped
convolution is slower than a product with the unfolded image."""
_COST_IN_FLOAT64 = 2.3
"""Ratio of the time of a product in float64 to its time in float32."""


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
        """Return the image with its border."""
        if not any(self.padding):
            return self.image
        return pad(self.image, [border for size in reversed(self.padding) for border in (size, size)])

    def chunks(self, size: int) -> Iterator[Operands]:
        """Split into `size` examples at a time."""
        if size >= len(self.image):
            yield self
            return
        for image, signal in zip(self.image.split(size), self.signal.split(size), strict=True):
            yield Operands(image, signal, self.padding)


class NormWay(Enum):
    """Quantity that norms are computed from."""

    GRADIENTS = "the examples' gradients"
    PIXELS = "products of pixels"
    WINDOWS = "products of windows in the last dimension"


@final
class ConvGradients(LayerGradients):
    """Per-example gradients of a convolution on inputs [batch, channels, ...].

    Args:
        find_operands: (layer, inputs, output gradient) -> the two tensors whose correlation is the gradient.
        *of_layer: as for `LayerGradients`.
    """

    def __init__(self, find_operands: Callable[[Any, Tensor, Tensor], Operands], *of_layer: Any) -> None:
        super().__init__(*of_layer)
        self._find_operands = find_operands

    def example_gradients(self) -> ByName:
        gradients = {}
        if "weight" in self.parameters:
            parts = [each for _, each in self._weight_gradients(self._operands())]
            gradients["weight"] = join_parts(parts)
        if "bias" in self.parameters:
            gradients["bias"] = self._bias_gradients()
        return gradients

    def squared_norms(self) -> Norms:
        if "weight" not in self.parameters:
            return super().squared_norms()
        operands = self._operands()
        way = self._way(operands)
        if way is NormWay.GRADIENTS:
            norms, kept = self._direct_norms(operands)
        else:
            norms, kept = squared_gram_norms(self.module, operands, unfolded=way is NormWay.WINDOWS), None
            if not _few(operands):
                norms = with_rounding(norms, self._size_of_terms(operands), _positions(operands))
        if "bias" not in self.parameters:
            return norms, kept
        biases = self._bias_gradients()
        if kept is not None:
            kept["bias"] = biases
        return norms + squared_lengths({"bias": biases}), kept

    def weighted_gradients(self, weights: Tensor) -> ByName:
        sums = {}
        if "weight" in self.parameters:
            operands = self._operands()
            if self._way(operands) is NormWay.GRADIENTS or not _few(operands):
                # With `GRADIENTS`, these are the same numbers again whose norms were taken.
                of_examples = self._weight_gradients(operands)
                sums["weight"] = add_tensors(weighted_sum(weights[some], each) for some, each in of_examples)
            else:
                sums["weight"] = _weighted_windows(self.module, operands, weights)
        if "bias" in self.parameters:
            sums["bias"] = weighted_sum(weights, self._bias_gradients())
        return sums

    def _way(self, operands: Operands) -> NormWay:
        return self.cheapest(operands) if self.rows == 1 else NormWay.GRADIENTS

    def cheapest(self, operands: Operands) -> NormWay:
        """Return the cheapest way to norms; kept gradients cost nothing more, as the sum needs them."""
        if self._keeps():
            return NormWay.GRADIENTS
        costs: dict[NormWay, float] = {
            NormWay.GRADIENTS: _positions(operands) * self.module.weight.numel(),
            NormWay.PIXELS: _COST_IN_FLOAT64 * gram_cost(self.module, operands, unfolded=False),
            NormWay.WINDOWS: _COST_IN_FLOAT64 * gram_cost(self.module, operands, unfolded=True),
        }
        return min(costs, key=costs.__getitem__)

    def _keeps(self) -> bool:
        return len(self.inputs) // self.rows * int(self.module.weight.numel()) <= self.budget

    def _operands(self) -> Operands:
        return self._find_operands(self.module, *self.pair())

    def _bias_gradients(self) -> Tensor:
        return sum_of_rows(self.pair()[1].flatten(2).sum(dim=2), self.rows)

    def _direct_norms(self, operands: Operands) -> Norms:
        keep = self._keeps()
        norms, kept = [], []
        for _, gradients in self._weight_gradients(operands):
            norms.append(squared_lengths({"": gradients}))
            if keep:
                kept.append(gradients)
        return join_parts(norms), {"weight": join_parts(kept)} if keep else None

    def _size_of_terms(self, operands: Operands) -> Tensor:
        """An upper bound on sum_s |window s| |signal s|, [batch]: a pixel is in one window per place."""
        image, signal = (lengths(each.flatten(1)) for each in (operands.image, operands.signal))
        return math.sqrt(math.prod(self.module.weight.shape[2:])) * image * signal

    def _weight_gradients(self, operands: Operands) -> Iterator[tuple[slice, Tensor]]:
        """A few examples at a time, and their gradients, [chunk, *shape of the weight]."""
        module, rows, image, signal = self.module, self.rows, operands.image, operands.signal
        # Only the CPU's library, and only in single precision, is fast at convolutions with many groups.
        grouped = image.device.type == "cpu" and image.dtype == torch.float32
        pointwise = math.prod(module.weight.shape[2:]) == 1
        sides = image.shape[1] // module.groups, signal.shape[1] // module.groups
        if grouped and not pointwise and not any(side % _CHANNELS_TOGETHER for side in sides):
            # The library's own workspace is eight times as large as the gradients.
            largest = max(
                module.weight.numel() // 2,
                rows * math.prod(image.shape[1:]),
                rows * math.prod(signal.shape[1:]),
            )
            make, size = _gradients_by_groups, max(1, 2 * chunk_numbers(image) // largest)
        else:
            windows = rows * math.prod(module.weight.shape[1:]) * module.groups * _positions(operands)
            make, size = _gradients_by_windows, max(1, 4 * chunk_numbers(image) // windows)
        for place, part in enumerate(operands.chunks(rows * size)):
            yield slice(place * size, (place + 1) * size), make(module, part, rows)


def _positions(operands: Operands) -> int:
    return math.prod(operands.signal.shape[2:])


def _few(operands: Operands) -> bool:
    return _positions(operands) <= FEW_POSITIONS


def _gradients_by_groups(module: Any, operands: Operands, rows: int) -> Tensor:
    """Per-example gradients by one convolution whose groups are examples, and whose batch are their rows."""
    image, signal = (
        by_example(each, rows).transpose(0, 1).flatten(1, 2) for each in (operands.image, operands.signal)
    )
    batch = len(operands.image) // rows
    one = Operands(image, signal, operands.padding)
    gradients: Tensor = _weight_gradient(module, one, batch).unflatten(0, (batch, -1))
    return gradients


def _gradients_by_windows(module: Any, operands: Operands, rows: int) -> Tensor:
    """Per-example gradients by one product with the windows of the image, those of all rows side by side."""
    signal = operands.signal
    batch = len(signal) // rows
    windows = _windows(module, operands, rows).reshape(batch, module.groups, -1, rows * _positions(operands))
    grouped = by_example(signal, rows).transpose(1, 2).reshape(batch, module.groups, -1, windows.shape[3])
    gradients: Tensor = torch.matmul(grouped, windows.transpose(2, 3))
    return gradients.reshape(batch, *module.weight.shape)


def _windows(module: Any, operands: Operands, rows: int) -> Tensor:
    """A view of the image's windows, [batch, channels, *kernel, rows, *positions]."""
    image = operands.pad_image().contiguous()
    by_row, by_channel, *steps = image.stride()
    return image.as_strided(
        (len(image) // rows, image.shape[1], *module.kernel_size, rows, *operands.signal.shape[2:]),
        (
            *(rows * by_row, by_channel),
            *(step * dilation for step, dilation in zip(steps, module.dilation, strict=True)),
            by_row,
            *(step * stride for step, stride in zip(steps, module.stride, strict=True)),
        ),
    )


def _weighted_windows(module: Any, operands: Operands, weights: Tensor) -> Tensor:
    """The weighted sum of the weight's gradients in float64, from windows and the signal."""
    groups, positions = module.groups, _positions(operands)
    size = max(
        1, 4 * chunk_numbers(operands.image) // (math.prod(module.weight.shape[1:]) * groups * positions)
    )
    sums = []
    for part, some in zip(operands.chunks(size), to_double(weights).split(size), strict=True):
        kernel = 1 + len(module.kernel_size)  # the windows' dimensions of channels and kernel
        windows = to_double(_windows(module, part, 1).movedim(0, kernel)).reshape(
            groups, -1, len(some) * positions
        )
        signal = (to_double(part.signal.flatten(2).movedim(0, 1)) * some.unsqueeze(1)).reshape(
            groups, -1, len(some) * positions
        )
        sums.append(signal @ windows.transpose(1, 2))
    return add_tensors(sums).reshape(module.weight.shape)


def _weight_gradient(module: Any, operands: Operands, batch: int) -> Tensor:
    """Weight gradient of a convolution with `batch` times its groups, [batch * rows of the weight, ...]."""
    weight = module.weight
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        operands.signal,
        operands.image,
        operands.signal.new_empty(1).expand(batch * len(weight), *weight.shape[1:]),  # only its shape is read
        None,
        module.stride,
        operands.padding,
        module.dilation,
        False,
        [0] * len(operands.padding),
        batch * module.groups,
        [False, True, False],
    )
    return gradients[1]


def _conv_operands(module: Any, inputs: Tensor, gradient: Tensor) -> Operands:
    borders = module._reversed_padding_repeated_twice
    if module.padding_mode == "zeros" and borders[::2] == borders[1::2]:
        return Operands(inputs, gradient, tuple(borders[::-2]))
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return Operands(pad(inputs, borders, mode=mode), gradient, (0,) * len(module.kernel_size))


def _conv_transpose_operands(module: Any, inputs: Tensor, gradient: Tensor) -> Operands:
    """Inputs and outputs change places: the kernel slides over the outputs' gradient."""
    operands = Operands(gradient, inputs, module.padding)
    if not any(module.output_padding):
        return operands
    # Output padding adds positions that no input reaches.
    reached = (
        slice(0, (size - 1) * stride + (kernel - 1) * dilation + 1)
        for size, stride, kernel, dilation in zip(
            inputs.shape[2:], module.stride, module.kernel_size, module.dilation, strict=True
        )
    )
    cropped = operands.pad_image()[(slice(None), slice(None), *reached)]
    return Operands(cropped, inputs, (0,) * len(module.padding))


CONV = Rule(partial(run_layer, partial(ConvGradients, _conv_operands)))
CONV_TRANSPOSE = Rule(partial(run_layer, partial(ConvGradients, _conv_transpose_operands)))


def gram_cost(module: Any, operands: Operands, *, unfolded: bool) -> int:
    """Return what `squared_gram_norms` computes for one example, in multiplications."""
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
    """Return squared norms of the weight's per-example gradients, [batch], without forming these.

    That is mixed ghost norm (Bu et al. 2022):
    |sum_s <window s, signal s>|^2 = sum_st <window s, window t> <signal s, signal t>. Products of windows are
    sums over the kernel of products of pixels, the image's autocorrelation; in the last dimension windows may
    be unfolded and multiplied as they are instead.

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
    additions = math.prod(module.weight.shape[1:]) + operands.signal.shape[1] // groups
    for part in operands.chunks(
        max(1, 2 * chunk_numbers(operands.image) // (groups * math.prod(sizes) ** 2))
    ):
        part = part._replace(image=to_double(part.image), signal=to_double(part.signal))
        features = _features(module, part, unfolded=unfolded)
        products = features.transpose(2, 3) @ features
        products = products.flatten(0, 1).unflatten(1, sizes).unflatten(-1, sizes)
        for dimension, extent in enumerate(places[:-1] if unfolded else places):
            products = _over_kernel(module, products, dimension, extent, part.padding[dimension])
        signal = part.signal.flatten(2).unflatten(1, (groups, -1)).flatten(0, 1)
        products = products.reshape(-1, positions, positions).mul_(signal.transpose(1, 2) @ signal)
        norms.append(gram_norms(products, additions).unflatten(0, (-1, groups)).sum(dim=1))
    return join_parts(norms).to(operands.signal)


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
