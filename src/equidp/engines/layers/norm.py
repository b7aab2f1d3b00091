"""Normalisation within an example: the scale's gradient sums output gradient times normalised input."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from equidp.engines.layers.rule import Call, Forward, KnownGradients, LayerGradients, Rule, Tape, run_layer
from equidp.engines.layers.sums import ByName, by_example, chunk_numbers, join_parts, sum_of_rows


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
            size = self.rows * max(1, chunk_numbers(inputs) // (self.rows * math.prod(inputs.shape[1:])))
            parts = zip(inputs.split(size), gradient.split(size), strict=True)
            shape, eps = self.module.normalized_shape, self.module.eps
            products = [self._sum(part * self._normalise(given, shape, eps=eps)) for given, part in parts]
            gradients["weight"] = join_parts(products)
        if "bias" in self.parameters:
            gradients["bias"] = self._sum(gradient)
        return gradients

    def _sum(self, values: Tensor) -> Tensor:
        """Sum values [batch * rows, ...] to [batch, *shape of the scale]."""
        values = by_example(values, self.rows)
        return values.reshape(len(values), -1, *self.module.normalized_shape).sum(dim=1)


def run_channel_norm(
    num_groups: Callable[[Any, Forward, Tensor], int],
    call: Call,
    forward: Forward,
    inputs: Tensor,
    tape: Tape,
) -> Tensor:
    """Run one scale and shift per channel, on [batch, channels, ...]; normalised over groups of channels.

    Runs as one example that has the channels of all, with a copy of scale and shift for each: the gradients
    of the copies are then the examples' own, and the layer's backward pass computes them at no further cost.

    Args:
        num_groups: (layer, its own forward, inputs) -> groups of one example; refuses inputs that the layer
            would refuse.
        call, forward, inputs, tape: as for `Rule.run`.
    """
    layer = call.module
    groups = num_groups(layer, forward, inputs)
    batch, channels, *places = inputs.shape
    gradients: ByName = {}

    def receive(name: str, gradient: Tensor) -> None:
        gradients[name] = sum_of_rows(gradient.unflatten(0, (batch, -1)), call.rows)
        call.pending = partial(KnownGradients, gradients)

    def copy_parameter(name: str) -> Tensor | None:
        if name in call.parameters:
            copy = call.parameters[name].detach().repeat(batch).requires_grad_()
            tape.watch_copy(copy, partial(receive, name))
            return copy
        fixed: Tensor | None = getattr(layer, name)
        return None if fixed is None else fixed.repeat(batch)

    joined = inputs.reshape(1, batch * channels, *places)
    outputs = torch.group_norm(
        joined, batch * groups, copy_parameter("weight"), copy_parameter("bias"), layer.eps
    )
    return outputs.reshape(inputs.shape)


def _groups_of_group_norm(layer: Any, forward: Forward, inputs: Tensor) -> int:
    return int(layer.num_groups)


def _groups_of_instance_norm(layer: Any, forward: Forward, inputs: Tensor) -> int:
    with torch.no_grad():
        forward(inputs[:1])  # raises the layer's own errors about shapes
    return int(layer.num_features)


def _keeps_no_statistics(layer: Any) -> bool:
    return not getattr(layer, "track_running_stats", False)


LAYER_NORM = Rule(partial(run_layer, partial(TrailingNormGradients, layer_norm)))
RMS_NORM = Rule(partial(run_layer, partial(TrailingNormGradients, rms_norm)))
GROUP_NORM = Rule(partial(run_channel_norm, _groups_of_group_norm))
INSTANCE_NORM = Rule(partial(run_channel_norm, _groups_of_instance_norm), _keeps_no_statistics)
