"""Normalisation within an example: the scale's gradient sums output gradient times normalised input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from equidp.engines.layers.call import ByName, Contribution, KnownGradients, Parameters, SquaredNorms
from equidp.engines.layers.rule import LayerCall, LayerGradients, Rule, RuledCall, norms_and_small
from equidp.engines.layers.sums import CHUNK_NUMBERS, weighted_sums
from equidp.engines.layers.tape import Tape


@final
class TrailingNormGradients(LayerGradients):
    """A scale and a shift for each place of the trailing dimensions, which are normalised over."""

    def __init__(self, normalise: Callable[..., Tensor], *of_layer: Any) -> None:
        super().__init__(*of_layer)
        self._normalise = normalise

    def example_gradients(self) -> ByName:
        inputs, gradient = self.pair()
        gradients = {}
        if "weight" in self.parameters:
            size = max(1, CHUNK_NUMBERS // inputs[0].numel())
            parts = zip(inputs.split(size), gradient.split(size), strict=True)
            shape, eps = self.module.normalized_shape, self.module.eps
            products = [self._sum(part * self._normalise(given, shape, eps=eps)) for given, part in parts]
            gradients["weight"] = torch.cat(products)
        if "bias" in self.parameters:
            gradients["bias"] = self._sum(gradient)
        return gradients

    def _sum(self, values: Tensor) -> Tensor:
        """Sums values [batch, ...] to [batch, *shape of the scale]."""
        return values.reshape(len(values), -1, *self.module.normalized_shape).sum(dim=1)

    def squared_norms(self) -> SquaredNorms:
        return norms_and_small(self.example_gradients(), self.budget())

    def weighted_gradients(self, weights: Tensor) -> ByName:
        return weighted_sums(weights, self.example_gradients())


@final
class ChannelNormCall(RuledCall):
    """One scale and shift per channel, on [batch, channels, ...]; normalised over groups of channels.

    Runs as one example that has the channels of all, with a copy of scale and shift for each: the gradients
    of the copies are then the examples' own, and the layer's backward pass computes them at no further cost.

    Args:
        num_groups: (layer, its own forward, inputs) -> groups of one example; refuses inputs that the layer
            would refuse.
        module, parameters: as for `Call`.
    """

    def __init__(self, num_groups: Callable[..., int], module: Any, parameters: Parameters) -> None:
        super().__init__(module, parameters)
        self._layer, self._num_groups = module, num_groups
        self._gradients: ByName = {}

    def run(self, forward: Callable[[Tensor], Tensor], inputs: Tensor, tape: Tape) -> Tensor:
        groups = self._num_groups(self._layer, forward, inputs)
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

    def contribution(self) -> Contribution:
        return self.contributed(KnownGradients(self._gradients))


def _groups_of_group_norm(layer: Any, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> int:
    return int(layer.num_groups)


def _groups_of_instance_norm(layer: Any, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> int:
    with torch.no_grad():
        forward(inputs[:1])  # raises the layer's own errors about shapes
    return int(layer.num_features)


def _keeps_no_statistics(layer: Any) -> bool:
    return not getattr(layer, "track_running_stats", False)


LAYER_NORM = Rule(partial(LayerCall, partial(TrailingNormGradients, layer_norm)))
RMS_NORM = Rule(partial(LayerCall, partial(TrailingNormGradients, rms_norm)))
GROUP_NORM = Rule(partial(ChannelNormCall, _groups_of_group_norm))
INSTANCE_NORM = Rule(partial(ChannelNormCall, _groups_of_instance_norm), _keeps_no_statistics)
