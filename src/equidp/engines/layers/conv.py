"""Convolutions in one to three dimensions, with any stride, padding, dilation and groups, and transposed ones.

Three ways to an example's weight gradient or its norm, by what costs least: one grouped convolution in which every example is
a group of its own; a product with the image's windows side by side, where there are few channels; and the norm alone from products
of positions with each other, where there are few positions and many channels (mixed ghost norm, Bu et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from equidp.engines.layers.rule import LayerCall
from equidp.engines.layers.sums import CHUNK_NUMBERS, gram_norms, squared_lengths

_FEW_CHANNELS = 8
_COST_OF_ADDING = 18
"""How many multiplications of a matrix product take as long as adding one number to another in memory."""


class _Roles(NamedTuple):
    """What slides over what.

    Attributes:
        image: [batch, channels, ...], what the kernel slides over, without its border of `padding` zeros.
        signal: [batch, channels, ...], what stands against each place of the kernel.
        padding: zeros at both ends of each dimension.
    """

    image: Tensor
    signal: Tensor
    padding: tuple[int, ...]

    def with_border(self) -> Tensor:
        if not any(self.padding):
            return self.image
        return pad(self.image, [border for size in reversed(self.padding) for border in (size, size)])

    def chunks(self, size: int) -> Iterator[_Roles]:
        for image, signal in zip(self.image.split(size), self.signal.split(size), strict=True):
            yield _Roles(image, signal, self.padding)


class ConvCall(LayerCall):
    """nn.Conv1d, nn.Conv2d, nn.Conv3d on inputs [batch, channels, ...]."""

    module: Any

    def example_gradients(self) -> dict[str, Tensor]:
        gradients = {}
        if "weight" in self.parameters:
            gradients["weight"] = torch.cat(list(self._weight_gradients(self._roles())))
        if "bias" in self.parameters:
            gradients["bias"] = self._bias_gradients()
        return gradients

    def squared_norms(self) -> Tensor:
        if "weight" not in self.parameters:
            return super().squared_norms()
        roles = self._roles()
        way = self._cheapest(roles)
        norms = (
            self._direct_norms(roles)
            if way == "gradients"
            else self._gram_norms(roles, in_windows=way == "windows")
        )
        if "bias" not in self.parameters:
            return norms
        biases = self._bias_gradients()
        if self.kept is not None:
            self.kept["bias"] = biases
        return norms + squared_lengths({"bias": biases})

    def weighted_gradients(self, weights: Tensor) -> dict[str, Tensor]:
        sums = {}
        weights = weights.to(self.pair()[1].dtype)
        if "weight" in self.parameters:
            sums["weight"] = self._convolved(weights)
        if "bias" in self.parameters:
            sums["bias"] = weights @ self._bias_gradients()
        return sums

    def _roles(self) -> _Roles:
        inputs, gradient = self.pair()
        module = self.module
        borders = module._reversed_padding_repeated_twice
        if module.padding_mode == "zeros" and borders[::2] == borders[1::2]:
            return _Roles(inputs, gradient, tuple(borders[::-2]))
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        return _Roles(pad(inputs, borders, mode=mode), gradient, (0,) * len(module.kernel_size))

    def _bias_gradients(self) -> Tensor:
        return self.pair()[1].flatten(2).sum(dim=2)

    def _direct_norms(self, roles: _Roles) -> Tensor:
        keep = len(self.inputs) * self.module.weight.numel() <= self.budget()
        norms, kept = [], []
        for gradients in self._weight_gradients(roles):
            norms.append(squared_lengths({"": gradients}))
            if keep:
                kept.append(gradients)
        if keep:
            self.kept = {"weight": torch.cat(kept)}
        return torch.cat(norms)

    def _weight_gradients(self, roles: _Roles) -> Iterator[Tensor]:
        """Of a few examples at a time, [chunk, *shape of the weight]."""
        # Only the CPU's library, and only in single precision, is fast at convolutions with many groups.
        grouped = roles.image.device.type == "cpu" and roles.image.dtype == torch.float32
        pointwise = self.module.weight[0, 0].numel() == 1
        if grouped and not pointwise and roles.image.shape[1] // self.module.groups >= _FEW_CHANNELS:
            # The library's own workspace is eight times as large as the gradients.
            largest = max(self.module.weight.numel() // 2, roles.image[0].numel(), roles.signal[0].numel())
            for part in roles.chunks(max(1, 2 * CHUNK_NUMBERS // largest)):
                yield self._grouped(part)
        else:
            window = self.module.weight[0].numel() * self.module.groups
            for part in roles.chunks(max(1, 4 * CHUNK_NUMBERS // (window * roles.signal[0, 0].numel()))):
                yield self._side_by_side(part)

    def _grouped(self, roles: _Roles) -> Tensor:
        """One convolution whose groups are examples."""
        batch = len(roles.image)
        one = _Roles(roles.image.flatten(0, 1)[None], roles.signal.flatten(0, 1)[None], roles.padding)
        gradients: Tensor = self._weight_gradient(one, batch).unflatten(0, (batch, -1))
        return gradients

    def _side_by_side(self, roles: _Roles) -> Tensor:
        """One product with the windows of the image."""
        image, signal, module = roles.with_border().contiguous(), roles.signal, self.module
        batch, channels, *_ = image.shape
        steps = image.stride()[2:]
        windows = image.as_strided(
            (batch, channels, *module.kernel_size, *signal.shape[2:]),
            (
                *image.stride()[:2],
                *(step * dilation for step, dilation in zip(steps, module.dilation, strict=True)),
                *(step * stride for step, stride in zip(steps, module.stride, strict=True)),
            ),
        ).reshape(batch, module.groups, -1, signal[0, 0].numel())
        grouped = signal.reshape(batch, module.groups, -1, windows.shape[3])
        gradients = torch.matmul(windows, grouped.transpose(2, 3)).transpose(2, 3)
        return gradients.reshape(batch, *module.weight.shape)

    def _cheapest(self, roles: _Roles) -> str:
        """What norms cost least from: examples' "gradients", products of "pixels", or of "windows" in the last dimension."""
        costs = {
            "gradients": roles.signal[0, 0].numel() * self.module.weight.numel(),
            "pixels": self._cost_of_products(roles, in_windows=False),
            "windows": self._cost_of_products(roles, in_windows=True),
        }
        return min(costs, key=costs.__getitem__)

    def _cost_of_products(self, roles: _Roles, *, in_windows: bool) -> int:
        """What `_gram_norms` does for an example, in multiplications."""
        kernel, sizes, places = self.module.kernel_size, list(roles.image.shape[2:]), roles.signal.shape[2:]
        channels, added = roles.image.shape[1], 0
        if in_windows:
            sizes[-1], channels = places[-1], channels * kernel[-1]
        multiplied = channels * math.prod(sizes) ** 2 + roles.signal.shape[1] * math.prod(places) ** 2
        for dimension in range(len(places) - in_windows):
            sizes[dimension] = places[dimension]
            added += kernel[dimension] * math.prod(sizes) ** 2 * self.module.groups
        return int(multiplied + _COST_OF_ADDING * added)

    def _gram_norms(self, roles: _Roles, *, in_windows: bool) -> Tensor:
        """sum_st <window s, window t> <signal s, signal t>.

        Products of windows are sums over the kernel of products of pixels; or, in the last dimension, products as they are.
        """
        norms, groups = [], self.module.groups
        sizes, places = list(roles.image.shape[2:]), roles.signal.shape[2:]
        if in_windows:
            sizes[-1] = places[-1]
        positions = math.prod(places)
        for part in roles.chunks(max(1, 2 * CHUNK_NUMBERS // (groups * math.prod(sizes) ** 2))):
            features = self._features(part, in_windows=in_windows)
            meeting = (
                (features.transpose(2, 3) @ features).flatten(0, 1).unflatten(1, sizes).unflatten(-1, sizes)
            )
            for dimension, size in enumerate(places[:-1] if in_windows else places):
                meeting = self._over_kernel(meeting, dimension, size, part.padding[dimension])
            signal = part.signal.flatten(2).unflatten(1, (groups, -1)).flatten(0, 1)
            products = meeting.reshape(-1, positions, positions) * (signal.transpose(1, 2) @ signal)
            norms.append(gram_norms(products).unflatten(0, (-1, groups)).sum(dim=1))
        return torch.cat(norms)

    def _features(self, roles: _Roles, *, in_windows: bool) -> Tensor:
        """Pixels, or windows in the last dimension, by position, [batch, groups, features, positions].

        They are copied in the order in which the image lies in memory: with its channels last, a window is one run of numbers.
        """
        module, image = self.module, roles.image
        windows = image.unsqueeze(-1)
        if in_windows:
            span = (module.kernel_size[-1] - 1) * module.dilation[-1] + 1
            image = pad(image, [roles.padding[-1]] * 2) if roles.padding[-1] else image
            windows = image.unfold(-1, span, module.stride[-1])[..., :: module.dilation[-1]]
        # [batch, groups, channels, ..., places in the kernel]
        grouped: Tensor = windows.unflatten(1, (module.groups, -1))
        positions = math.prod(grouped.shape[3:-1])
        if image.stride(1) == 1:
            by_position = grouped.movedim(2, -1).reshape(len(image), module.groups, positions, -1)
            return by_position.transpose(2, 3)
        return grouped.movedim(-1, 3).reshape(len(image), module.groups, -1, positions)

    def _over_kernel(self, meeting: Tensor, dimension: int, size: int, padding: int) -> Tensor:
        """Products of pixels as products of windows in this dimension: sums over the kernel's places in it.

        `meeting` has two dimensions of pixels for each dimension of the image, [batch, ..., ...]; `size` windows take their place,
        which stand as far apart as the stride says, and reach over a border of zeros.
        """
        stride, dilation = self.module.stride[dimension], self.module.dilation[dimension]
        twice = (1 + dimension, 1 + dimension + len(self.module.kernel_size))
        pixels = meeting.shape[twice[0]]
        shape = [size if at in twice else extent for at, extent in enumerate(meeting.shape)]
        windows = meeting.new_zeros(shape)
        for place in range(self.module.kernel_size[dimension]):
            offset = place * dilation - padding
            first, end = max(0, -(offset // stride)), min(size, (pixels - 1 - offset) // stride + 1)
            if first < end:
                of_windows, of_pixels = [slice(None)] * len(shape), [slice(None)] * len(shape)
                for at in twice:
                    of_windows[at] = slice(first, end)
                    of_pixels[at] = slice(offset + first * stride, offset + (end - 1) * stride + 1, stride)
                windows[tuple(of_windows)] += meeting[tuple(of_pixels)]
        return windows

    def _convolved(self, weights: Tensor) -> Tensor:
        """The weighted sum as ordinary training would compute it, from a weighted signal."""
        roles = self._roles()
        size = max(1, 4 * CHUNK_NUMBERS // roles.signal[0].numel())
        shape = (-1, *[1] * (roles.signal.dim() - 1))
        parts = (
            self._weight_gradient(part._replace(signal=part.signal * scale.reshape(shape)), 1)
            for part, scale in zip(roles.chunks(size), weights.split(size), strict=True)
        )
        total = next(parts)
        for part in parts:
            total += part
        return total

    def _weight_gradient(self, roles: _Roles, batch: int) -> Tensor:
        """Of a convolution with `batch` times the module's groups, [batch * rows of the weight, ...]."""
        module, weight = self.module, self.module.weight
        gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            roles.signal,
            roles.image,
            roles.signal.new_empty(1).expand(batch * len(weight), *weight.shape[1:]),  # read for its shape
            None,
            module.stride,
            roles.padding,
            module.dilation,
            False,
            [0] * len(roles.padding),
            batch * module.groups,
            [False, True, False],
        )
        return gradients[1]


class ConvTransposeCall(ConvCall):
    """nn.ConvTranspose1d to 3d: a convolution with inputs and outputs in each other's place."""

    def _roles(self) -> _Roles:
        signal, image = self.pair()
        module = self.module
        roles = _Roles(image, signal, module.padding)
        if not any(module.output_padding):
            return roles
        # Output padding adds places that no input reaches.
        reached = (
            slice(0, (size - 1) * stride + (kernel - 1) * dilation + 1)
            for size, stride, kernel, dilation in zip(
                signal.shape[2:], module.stride, module.kernel_size, module.dilation, strict=True
            )
        )
        cropped = roles.with_border()[(slice(None), slice(None), *reached)]
        return _Roles(cropped, signal, (0,) * len(module.padding))
