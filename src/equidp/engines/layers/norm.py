"""Normalisation within an example: the scale's gradient is output gradient times normalised input, summed over positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm

from equidp.engines.layers.rule import LayerCall, RuledCall
from equidp.engines.layers.sums import CHUNK_NUMBERS
from equidp.engines.layers.tape import Tape


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


class _ChannelNormCall(RuledCall):
    """One scale and shift a channel, on [batch, channels, ...]; normalised over groups of channels.

    Runs as one example that has the channels of all, with a copy of scale and shift for each: the gradients of the copies are then
    the examples' own, and the layer's backward pass gives them at no further cost.
    """

    module: Any

    def __init__(self, module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__(module, parameters)
        self._gradients: dict[str, Tensor] = {}

    def _num_groups(self) -> int:
        raise NotImplementedError

    def run(self, forward: Callable[[Tensor], Tensor], inputs: Tensor, tape: Tape) -> Tensor:
        batch, channels, *places = inputs.shape
        scales, shifts = (self._copy(name, batch, tape) for name in ("weight", "bias"))
        joined = inputs.reshape(1, batch * channels, *places)
        outputs = torch.group_norm(joined, batch * self._num_groups(), scales, shifts, self.module.eps)
        return outputs.reshape(inputs.shape)

    def _copy(self, name: str, batch: int, tape: Tape) -> Tensor | None:
        """The parameter for each example, side by side."""
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

    def example_gradients(self) -> dict[str, Tensor]:
        return self._gradients

    def drop(self) -> None:
        self._gradients = {}


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

    def run(self, forward: Callable[[Tensor], Tensor], inputs: Tensor, tape: Tape) -> Tensor:
        with torch.no_grad():
            forward(inputs[:1])  # the layer's own complaints about shapes
        return super().run(forward, inputs, tape)
