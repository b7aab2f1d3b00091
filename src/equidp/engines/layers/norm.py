"""Normalisation within an example, with a copy of scale and shift for each example. The gradients of the
copies are the per-example gradients, and the model's backward pass computes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from equidp.engines.layers.rule import Call, Forward, Rule, Tape, copies_of

Normalise = Callable[[Any, Forward, Tensor, Tensor | None, Tensor | None], Tensor]
"""(layer, its own forward, inputs [batch, ...], scales, shifts) -> outputs; scales and shifts of each row,
[batch, *shape], or None."""


def run_norm(normalise: Normalise, call: Call, forward: Forward, inputs: Tensor, tape: Tape) -> Tensor:
    """Run a layer that has a scale and a shift; `call` and what follows are as for `Rule.run`."""

    def of_rows(name: str) -> Tensor | None:
        if name in call.parameters:
            return copies_of(call, name, len(inputs), tape)
        fixed: Tensor | None = getattr(call.module, name, None)
        return None if fixed is None else fixed.expand(len(inputs), *fixed.shape)

    return normalise(call.module, forward, inputs, of_rows("weight"), of_rows("bias"))


def _over_last(
    of_rows: Callable[..., Tensor],
    layer: Any,
    forward: Forward,
    inputs: Tensor,
    scales: Tensor | None,
    shifts: Tensor | None,
) -> Tensor:
    """Normalise over the last dimensions, for each place of which there is a scale and a shift."""
    values = of_rows(inputs, layer.normalized_shape, eps=layer.eps)
    places = (1,) * (inputs.dim() - 1 - len(layer.normalized_shape))
    if scales is not None:
        values = values * scales.reshape(len(scales), *places, *scales.shape[1:])
    if shifts is not None:
        values = values + shifts.reshape(len(shifts), *places, *shifts.shape[1:])
    return values


def _over_groups(
    num_groups: Callable[[Any, Forward, Tensor], int],
    layer: Any,
    forward: Forward,
    inputs: Tensor,
    scales: Tensor | None,
    shifts: Tensor | None,
) -> Tensor:
    """Normalise over groups of channels of [batch, channels, ...], as one example with all of them."""
    groups = num_groups(layer, forward, inputs)
    scale, shift = (None if each is None else each.flatten() for each in (scales, shifts))
    joined = inputs.flatten(0, 1).unsqueeze(0)
    return torch.group_norm(joined, len(inputs) * groups, scale, shift, layer.eps).reshape(inputs.shape)


def _groups_of_group_norm(layer: Any, forward: Forward, inputs: Tensor) -> int:
    return int(layer.num_groups)


def _groups_of_instance_norm(layer: Any, forward: Forward, inputs: Tensor) -> int:
    with torch.no_grad():
        forward(inputs[:1])  # raises the layer's own errors about shapes
    return int(layer.num_features)


def _keeps_no_statistics(layer: Any) -> bool:
    return not getattr(layer, "track_running_stats", False)


LAYER_NORM = Rule(partial(run_norm, partial(_over_last, layer_norm)))
RMS_NORM = Rule(partial(run_norm, partial(_over_last, rms_norm)))
GROUP_NORM = Rule(partial(run_norm, partial(_over_groups, _groups_of_group_norm)))
INSTANCE_NORM = Rule(partial(run_norm, partial(_over_groups, _groups_of_instance_norm)), _keeps_no_statistics)
