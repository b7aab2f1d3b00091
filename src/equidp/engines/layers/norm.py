"""Normalisation within an example: the scale's gradient is output gradient times normalised input, summed over positions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from equidp.engines.layers.call import ByName, Contribution, KnownGradients, Parameters, SquaredNorms
from equidp.engines.layers.rule import LayerGradients, RuledCall, norms_and_small
from equidp.engines.layers.sums import CHUNK_NUMBERS, weighted_sums
from equidp.engines.layers.tape import Tape


class _TrailingNormGradients(LayerGradients):
    """A scale and perhaps a shift for each place of the trailing dimensions, which are normalised over."""

    @abstractmethod
    def _normalised(self, inputs: Tensor) -> Tensor: ...

    @final
    def example_gradients(self) -> ByName:
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

    @final
    def squared_norms(self) -> SquaredNorms:
        return norms_and_small(self.example_gradients(), self.budget())

    @final
    def weighted_gradients(self, weights: Tensor) -> ByName:
        return weighted_sums(weights, self.example_gradients())


@final
class LayerNormGradients(_TrailingNormGradients):
    """nn.LayerNorm over trailing dimensions."""

    def _normalised(self, inputs: Tensor) -> Tensor:
        return layer_norm(inputs, self.module.normalized_shape, eps=self.module.eps)


@final
class RMSNormGradients(_TrailingNormGradients):
    """nn.RMSNorm over trailing dimensions."""

    def _normalised(self, inputs: Tensor) -> Tensor:
        return rms_norm(inputs, self.module.normalized_shape, eps=self.module.eps)


class _ChannelNormCall(RuledCall):
    """One scale and shift per channel, on [batch, channels, ...]; normalised over groups of channels.

    Runs as one example that has the channels of all, with a copy of scale and shift for each: the gradients of the copies are then
    the examples' own, and the layer's backward pass computes them at no further cost.
    """

    def __init__(self, module: Any, parameters: Parameters) -> None:
        super().__init__(module, parameters)
        self._layer = module
        self._gradients: ByName = {}

    @abstractmethod
    def _num_groups(self, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> int:
        """Returns the number of groups of one example; refuses inputs that `forward`, the layer's own, would refuse."""

    @final
    def run(self, forward: Callable[[Tensor], Tensor], inputs: Tensor, tape: Tape) -> Tensor:
        groups = self._num_groups(forward, inputs)
        batch, channels, *places = inputs.shape
        scales, shifts = (self._copy(name, batch, tape) for name in ("weight", "bias"))
        joined = inputs.reshape(1, batch * channels, *places)
        outputs = torch.group_norm(joined, batch * groups, scales, shifts, self._layer.eps)
        return outputs.reshape(inputs.shape)

    def _copy(self, name: str, batch: int, tape: Tape) -> Tensor | None:
        """The parameter once per example, one after the other."""
        if name in self.parameters:
            copy = self.parameters[name].detach().repeat(batch).requires_grad_()
            tape.watch_copy(copy, partial(self._receive, name, batch))
            return copy
        fixed: Tensor | None = getattr(self.module, name)
        return None if fixed is None else fixed.repeat(batch)

    def _receive(self, name: str, batch: int, gradient: Tensor) -> None:
        self._gradients[name] = gradient.unflatten(0, (batch, -1))

    @property
    def reached(self) -> bool:
        return bool(self._gradients)

    @final
    def contribution(self) -> Contribution:
        return self.contributed(KnownGradients(self._gradients))


@final
class GroupNormCall(_ChannelNormCall):
    """nn.GroupNorm on [batch, channels, ...]."""

    def _num_groups(self, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> int:
        return int(self._layer.num_groups)


@final
class InstanceNormCall(_ChannelNormCall):
    """nn.InstanceNorm1d to 3d on [batch, channels, ...], without running statistics."""

    def _num_groups(self, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> int:
        with torch.no_grad():
            forward(inputs[:1])  # raises the layer's own errors about shapes
        return int(self._layer.num_features)


def covers_instance_norm(module: Any) -> bool:
    """Whether it normalises by the example alone."""
    return not getattr(module, "track_running_stats", False)
