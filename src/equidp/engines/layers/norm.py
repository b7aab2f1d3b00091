"""Normalisation within an example: the gradient of the scale is output gradient times normalised input, summed over positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, instance_norm, layer_norm, rms_norm

from equidp.engines.layers.base import CHUNK_NUMBERS, LayerCall


class _NormCall(LayerCall):
    module: Any

    def _normalised(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError

    def _sum(self, values: Tensor) -> Tensor:
        """Sums values [batch, ...] to [batch, *shape of the scale]."""
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


class _TrailingNormCall(_NormCall):
    def _sum(self, values: Tensor) -> Tensor:
        shape = self.module.normalized_shape
        return values.reshape(len(values), -1, *shape).sum(dim=1)


class LayerNormCall(_TrailingNormCall):
    """nn.LayerNorm over trailing dimensions."""

    def _normalised(self, inputs: Tensor) -> Tensor:
        return layer_norm(inputs, self.module.normalized_shape, eps=self.module.eps)


class RMSNormCall(_TrailingNormCall):
    """nn.RMSNorm over trailing dimensions."""

    def _normalised(self, inputs: Tensor) -> Tensor:
        return rms_norm(inputs, self.module.normalized_shape, eps=self.module.eps)


class _ChannelNormCall(_NormCall):
    def _sum(self, values: Tensor) -> Tensor:
        return values.flatten(2).sum(dim=2) if values.dim() > 2 else values


class GroupNormCall(_ChannelNormCall):
    """nn.GroupNorm on [batch, channels, ...]."""

    def _normalised(self, inputs: Tensor) -> Tensor:
        return group_norm(inputs, self.module.num_groups, eps=self.module.eps)


class InstanceNormCall(_ChannelNormCall):
    """nn.InstanceNorm1d to 3d on [batch, channels, ...], without running statistics."""

    @classmethod
    def covers(cls, module: nn.Module) -> bool:
        return not getattr(module, "track_running_stats", False)

    def _normalised(self, inputs: Tensor) -> Tensor:
        return instance_norm(inputs, eps=self.module.eps)
