"""Normalisation within an example: the gradient of the scale is output gradient times normalised input, summed over positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm

from equidp.engines.layers.base import CHUNK_NUMBERS, LayerCall


class _TrailingNormCall(LayerCall):
    """A scale and perhaps a shift for each place of the trailing dimensions, which are normalised over."""

    module: Any

    def _normalised(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError

    def example_gradients(self) -> dict[str, Tensor]:
        inputs, gradient = self.pair()
        gradients = {}
        if "weight" in self.parameters:
            size = max(1, CHUNK_NUMBERS // inputs[0].numel())
            parts = zip(inputs.split(size), gradient.split(size), strict=True)
            gradients["weight"] = torch.cat(
                [self._sum(part * self._normalised(given)) for given, part in parts]
            )
        if "bias" in self.parameters:
            gradients["bias"] = self._sum(gradient)
        return gradients

    def _sum(self, values: Tensor) -> Tensor:
        """Sums values [batch, ...] to [batch, *shape of the scale]."""
        return values.reshape(len(values), -1, *self.module.normalized_shape).sum(dim=1)


class LayerNormCall(_TrailingNormCall):
    """nn.LayerNorm over trailing dimensions."""

    def _normalised(self, inputs: Tensor) -> Tensor:
        return layer_norm(inputs, self.module.normalized_shape, eps=self.module.eps)


class RMSNormCall(_TrailingNormCall):
    """nn.RMSNorm over trailing dimensions."""

    def _normalised(self, inputs: Tensor) -> Tensor:
        return rms_norm(inputs, self.module.normalized_shape, eps=self.module.eps)


class _ChannelNormCall(LayerCall):
    """One scale and shift a channel, on [batch, channels, ...]; normalised over groups of channels."""

    module: Any

    def _num_groups(self) -> int:
        raise NotImplementedError

    def example_gradients(self) -> dict[str, Tensor]:
        """(sum(g x) - mean sum(g)) / std, channel by channel, so that the normalised input is never made."""
        inputs, gradient = (values.reshape(*values.shape[:2], -1) for values in self.pair())
        sums = gradient.sum(dim=2)
        gradients = {}
        if "weight" in self.parameters:
            size = max(1, CHUNK_NUMBERS // inputs[0].numel())
            parts = zip(inputs.split(size), gradient.split(size), sums.split(size), strict=True)
            gradients["weight"] = torch.cat([self._scale_gradients(*part) for part in parts])
        if "bias" in self.parameters:
            gradients["bias"] = sums
        return gradients

    def _scale_gradients(self, inputs: Tensor, gradient: Tensor, sums: Tensor) -> Tensor:
        groups = self._num_groups()
        _, mean, inverse = torch.ops.aten.native_group_norm(
            inputs, None, None, *inputs.shape, groups, self.module.eps
        )
        products = torch.linalg.vecdot(inputs, gradient)
        products, sums = (values.unflatten(1, (groups, -1)) for values in (products, sums))
        scales: Tensor = (products - sums * mean[..., None]) * inverse[..., None]
        return scales.flatten(1)


class GroupNormCall(_ChannelNormCall):
    """nn.GroupNorm on [batch, channels, ...]."""

    def _num_groups(self) -> int:
        return int(self.module.num_groups)


class InstanceNormCall(_ChannelNormCall):
    """nn.InstanceNorm1d to 3d on [batch, channels, ...], without running statistics."""

    @classmethod
    def covers(cls, module: nn.Module) -> bool:
        return not getattr(module, "track_running_stats", False)

    def _num_groups(self) -> int:
        return int(self.module.num_features)
