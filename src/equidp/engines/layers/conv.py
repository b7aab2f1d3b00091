"""Convolutions in one to three dimensions, with any stride, padding, dilation and groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from equidp.engines.layers.base import LayerCall

_MANY_CHANNELS = 8
"""From so many input channels on, one product per kernel position beats one over a copy of the input for every position."""


class ConvCall(LayerCall):
    """nn.Conv1d, nn.Conv2d, nn.Conv3d on inputs [batch, channels, ...].

    Per-example weight gradients are held as [positions of the kernel, batch, groups, out / groups, in / groups], the order in which
    they are made: reordering them would cost more than making them.
    """

    module: Any

    def example_gradients(self) -> dict[str, Tensor]:
        gradients = self._gradients()
        if "weight" in gradients:
            kernel, weight = self.module.kernel_size, gradients["weight"]
            gradients["weight"] = weight.movedim(0, -1).flatten(1, 2).unflatten(-1, kernel)
        return gradients

    def squared_norms(self) -> Tensor:
        gradients = self._gradients()
        if sum(gradient.numel() for gradient in gradients.values()) <= self._budget():
            self._kept = gradients
        total = torch.zeros((), device=self.inputs.device)
        if "weight" in gradients:
            total = total + torch.linalg.vector_norm(gradients["weight"].flatten(2), dim=2).square().sum(
                dim=0
            )
        if "bias" in gradients:
            total = total + gradients["bias"].square().sum(dim=1)
        return total

    def weighted_gradients(self, weights: Tensor) -> dict[str, Tensor]:
        sums = {}
        if self._kept is None:
            if "weight" in self.parameters:
                sums["weight"] = self._convolved(weights)
            if "bias" in self.parameters:
                sums["bias"] = weights @ self._bias_gradients().to(weights.dtype)
            return sums
        if "weight" in self._kept:
            positions = self._kept["weight"]
            total = (weights.to(positions.dtype) @ positions.flatten(2)).unflatten(1, positions.shape[2:])
            sums["weight"] = total.movedim(0, -1).flatten(0, 1).unflatten(-1, self.module.kernel_size)
        if "bias" in self._kept:
            sums["bias"] = weights.to(self._kept["bias"].dtype) @ self._kept["bias"]
        return sums

    def _roles(self) -> tuple[Tensor, Tensor]:
        """The image that the kernel slides over, with its border, and the signal where it stands; [batch, channels, ...] both."""
        inputs, gradient = self.pair()
        borders = self.module._reversed_padding_repeated_twice
        if any(borders):
            mode = self.module.padding_mode
            inputs = pad(inputs, borders) if mode == "zeros" else pad(inputs, borders, mode=mode)
        return inputs, gradient

    def _gradients(self) -> dict[str, Tensor]:
        gradients = {}
        if "weight" in self.parameters:
            image, signal = self._roles()
            windows = list(self._windows(signal.shape[2:]))
            signal = signal.flatten(2).unflatten(1, (self.module.groups, -1))
            few = image.shape[1] // self.module.groups < _MANY_CHANNELS
            gradients["weight"] = (self._at_once if few else self._one_by_one)(image, signal, windows)
        if "bias" in self.parameters:
            gradients["bias"] = self._bias_gradients()
        return gradients

    def _bias_gradients(self) -> Tensor:
        return self.pair()[1].flatten(2).sum(dim=2)

    def _one_by_one(self, image: Tensor, signal: Tensor, windows: list[tuple[slice, ...]]) -> Tensor:
        """A product per kernel position, from a copy of the image with channels last."""
        batch, channels = image.shape[:2]
        groups = self.module.groups
        products = signal.new_empty(len(windows), batch, groups, signal.shape[2], channels // groups)
        last = image.movedim(1, -1).contiguous()
        for product, window in zip(products, windows, strict=True):
            shifted = last[(slice(None), *window)].reshape(batch, -1, groups, channels // groups)
            torch.matmul(signal, shifted.transpose(1, 2), out=product)
        return products

    def _at_once(self, image: Tensor, signal: Tensor, windows: list[tuple[slice, ...]]) -> Tensor:
        """One product, from as many copies of the image as the kernel has positions."""
        batch, channels = image.shape[:2]
        groups = self.module.groups
        shifted = [
            image[(slice(None), slice(None), *window)].reshape(batch, groups, channels // groups, -1)
            for window in windows
        ]
        columns = torch.stack(shifted, dim=2)
        products = signal @ columns.flatten(2, 3).transpose(2, 3)
        return products.reshape(*products.shape[:3], len(shifted), -1).movedim(3, 0)

    def _windows(self, sizes: Sequence[int]) -> Iterator[tuple[slice, ...]]:
        """For each kernel position, the places of the image that it meets, in the order of the signal."""
        module = self.module
        for position in itertools.product(*(range(extent) for extent in module.kernel_size)):
            yield tuple(
                slice(at * dilation, at * dilation + (size - 1) * stride + 1, stride)
                for at, dilation, stride, size in zip(
                    position, module.dilation, module.stride, sizes, strict=True
                )
            )

    def _convolved(self, weights: Tensor) -> Tensor:
        """The weight's weighted sum as ordinary training would compute it, from a weighted signal."""
        image, signal = self._roles()
        weighted = signal * weights.to(signal.dtype).reshape(-1, *[1] * (signal.dim() - 1))
        module, none = self.module, [0] * (signal.dim() - 2)
        gradient: Tensor = torch.ops.aten.convolution_backward(
            weighted,
            image,
            module.weight.detach().to(signal.dtype),
            None,
            module.stride,
            none,
            module.dilation,
            False,
            none,
            module.groups,
            [False, True, False],
        )[1]
        return gradient


class ConvTransposeCall(ConvCall):
    """nn.ConvTranspose1d to 3d: a convolution with inputs and outputs in each other's place."""

    def _roles(self) -> tuple[Tensor, Tensor]:
        signal, image = self.pair()
        module = self.module
        borders = [border for padding in reversed(module.padding) for border in (padding, padding)]
        # Output padding adds places that no input reaches.
        reached = (
            slice(0, (size - 1) * stride + (kernel - 1) * dilation + 1)
            for size, stride, kernel, dilation in zip(
                signal.shape[2:], module.stride, module.kernel_size, module.dilation, strict=True
            )
        )
        return pad(image, borders)[(slice(None), slice(None), *reached)], signal
