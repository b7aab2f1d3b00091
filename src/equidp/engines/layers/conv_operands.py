"""What slides over what in a convolution, transposed or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import pad


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

    def padded(self) -> Tensor:
        """Returns the image with its border."""
        if not any(self.padding):
            return self.image
        return pad(self.image, [border for size in reversed(self.padding) for border in (size, size)])

    def chunks(self, size: int) -> Iterator[Operands]:
        """Splits into `size` examples at a time."""
        for image, signal in zip(self.image.split(size), self.signal.split(size), strict=True):
            yield Operands(image, signal, self.padding)


FindOperands = Callable[[Any, Tensor, Tensor], Operands]
"""(convolution, inputs, gradient of the outputs) -> the operands."""


def conv_operands(module: Any, inputs: Tensor, gradient: Tensor) -> Operands:
    """Of nn.Conv1d to 3d: the kernel slides over the inputs."""
    borders = module._reversed_padding_repeated_twice
    if module.padding_mode == "zeros" and borders[::2] == borders[1::2]:
        return Operands(inputs, gradient, tuple(borders[::-2]))
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return Operands(pad(inputs, borders, mode=mode), gradient, (0,) * len(module.kernel_size))


def conv_transpose_operands(module: Any, inputs: Tensor, gradient: Tensor) -> Operands:
    """Of nn.ConvTranspose1d to 3d: inputs and outputs change places, so the kernel slides over the outputs' gradient."""
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
    cropped = operands.padded()[(slice(None), slice(None), *reached)]
    return Operands(cropped, inputs, (0,) * len(module.padding))
