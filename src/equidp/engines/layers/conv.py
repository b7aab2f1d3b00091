"""Convolutions of one to three dimensions with any stride, padding, dilation and groups, also transposed.

An example's weight gradient is one grouped convolution in which every example is its own group; with few
channels, it is a product with the windows of the image. With few positions and many channels, a convolution
is a linear layer on the windows.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from equidp.engines.layers.linear import LinearGradients
from equidp.engines.layers.rule import Call, Gradients, LayerGradients, Rule, run_layer
from equidp.engines.layers.sums import (
    ByName,
    chunk_numbers,
    precise,
    sum_of_rows,
)

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


@final
class ConvGradients(LayerGradients):
    """Per-example gradients of a convolution, also transposed, on inputs [batch, channels, ...]."""

    def examples_at_a_time(self) -> int:
        module, ends = self.module, (self.inputs, self.grad_output)
        image, signal = (each.shape[1:] for each in (ends[::-1] if module.transposed else ends))
        if self._by_groups():  # the library's own workspace is eight times as large as the gradients
            numbers = self.rows * max(math.prod(image), math.prod(signal))
            numbers = max(module.weight.numel(), 2 * numbers) // 4
        else:
            windows = math.prod(module.weight.shape[1:]) * module.groups * math.prod(signal[1:])
            numbers = self.rows * windows // 4
        return max(1, chunk_numbers(self.inputs) // max(1, int(numbers)))

    def example_gradients(self) -> ByName:
        inputs, gradient = self.pair()
        gradients = {}
        if "weight" in self.parameters:
            find_operands = _conv_transpose_operands if self.module.transposed else _conv_operands
            of_rows = _gradients_by_groups if self._by_groups() else _gradients_by_windows
            weights = of_rows(self.module, find_operands(self.module, inputs, gradient))
            gradients["weight"] = sum_of_rows(weights, self.rows)
        if "bias" in self.parameters:
            gradients["bias"] = sum_of_rows(gradient.flatten(2).sum(dim=2), self.rows)
        return gradients

    def _by_groups(self) -> bool:
        """Only the CPU's library, and only in single precision, is fast at convolutions with many groups."""
        fast = self.inputs.device.type == "cpu" and self.pair()[0].dtype == torch.float32
        pointwise = math.prod(self.module.weight.shape[2:]) == 1
        sides = (each.shape[1] // self.module.groups for each in (self.inputs, self.grad_output))
        return fast and not pointwise and not any(side % _CHANNELS_TOGETHER for side in sides)


def _gradients_by_groups(module: Any, operands: Operands) -> Tensor:
    """Gradients of single rows by one convolution whose groups are rows."""
    image, signal = (each.flatten(0, 1).unsqueeze(0) for each in (operands.image, operands.signal))
    batch, weight = len(operands.image), module.weight
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        signal,
        image,
        signal.new_empty(1).expand(batch * len(weight), *weight.shape[1:]),  # only its shape is read
        None,
        module.stride,
        operands.padding,
        module.dilation,
        False,
        [0] * len(operands.padding),
        batch * module.groups,
        [False, True, False],
    )
    of_rows: Tensor = gradients[1].unflatten(0, (batch, -1))
    return of_rows


def _gradients_by_windows(module: Any, operands: Operands) -> Tensor:
    """Gradients of single rows by one product with the windows of the image."""
    signal = operands.signal.reshape(len(operands.signal), module.groups, -1, _positions(operands))
    windows = _windows(module, operands).reshape(len(signal), module.groups, -1, signal.shape[3])
    gradients: Tensor = torch.matmul(signal, windows.transpose(2, 3))
    return gradients.reshape(len(signal), *module.weight.shape)


def _positions(operands: Operands) -> int:
    return math.prod(operands.signal.shape[2:])


def _windows(module: Any, operands: Operands) -> Tensor:
    """A view of the image's windows, [batch, channels, *kernel, *positions]."""
    image = operands.pad_image().contiguous()
    by_row, by_channel, *steps = image.stride()
    return image.as_strided(
        (*image.shape[:2], *module.kernel_size, *operands.signal.shape[2:]),
        (
            *(by_row, by_channel),
            *(step * dilation for step, dilation in zip(steps, module.dilation, strict=True)),
            *(step * stride for step, stride in zip(steps, module.stride, strict=True)),
        ),
    )


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


def _read_gradients(call: Call, inputs: Tensor, gradient: Tensor) -> Gradients:
    """Gradients of a convolution; with few positions and many channels, of a product with its windows."""
    module, positions = call.module, math.prod(gradient.shape[2:])
    numbers = module.weight.numel()
    features = numbers // len(module.weight) + len(module.weight)
    few = _COST_IN_FLOAT64 * features * positions < numbers
    if not few or call.rows > 1 or module.groups > 1 or "weight" not in call.parameters:
        return ConvGradients(call, inputs, gradient)
    operands = _conv_operands(module, *precise(inputs, gradient))
    windows = _windows(module, operands).reshape(len(inputs), -1, positions)
    return LinearGradients(
        windows.transpose(1, 2),
        operands.signal.flatten(2).transpose(1, 2),
        "weight",
        "bias" if "bias" in call.parameters else None,
        lambda weights: weights.reshape(*weights.shape[:-2], *module.weight.shape),
    )


CONV = Rule(partial(run_layer, _read_gradients))
CONV_TRANSPOSE = Rule(partial(run_layer, ConvGradients))
