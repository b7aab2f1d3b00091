"""Modules that do several products in one call: run by a forward of ours that says which product uses which parameter.

torch's recurrent layers and its attention hand all their weights to one fused operation, between whose parts nothing can be read.
While an engine is at work, their `forward` is replaced by one of ours, which computes the same from single products; afterwards it
is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from equidp.engines.layers.attention import ATTENTION_PARAMETERS, attention
from equidp.engines.layers.call import Call
from equidp.engines.layers.linear import LinearUse, by_position
from equidp.engines.layers.projection import Forward
from equidp.engines.layers.recurrent import cell, recurrent
from equidp.engines.layers.sums import weighted_sums
from equidp.engines.layers.tape import Tape

_RECURRENT: dict[type[nn.Module], Forward] = {
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU), recurrent),
    **dict.fromkeys((nn.RNNCell, nn.LSTMCell, nn.GRUCell), cell),
}
_EVERY = slice(None)


def forward_for(module: nn.Module) -> Forward | None:
    """Our forward for this module, if it is one that we know and its parameters are its own."""
    if "parametrizations" in dict(module.named_children()):
        return None
    if isinstance(module, nn.MultiheadAttention):
        own = {name for name, _ in module.named_parameters()}
        known = own <= ATTENTION_PARAMETERS and not module.add_zero_attn
        return attention if known and _unchanged(module, nn.MultiheadAttention) else None
    return _step_by_step(module)


def _step_by_step(module: nn.Module) -> Forward | None:
    for layer, forward in _RECURRENT.items():
        if isinstance(module, layer) and _unchanged(module, layer):
            return forward
    return None


def _unchanged(module: nn.Module, layer: type[nn.Module]) -> bool:
    """Whether it computes what its class does."""
    return type(module).forward is layer.forward and "forward" not in vars(module)


@contextmanager
def replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """These in place of the modules' own `forward`, while inside."""
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module, own in before.items():
            if own is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = own


@contextmanager
def attention_in_full() -> Iterator[None]:
    """Without the shortcut that attention takes in evaluation mode, while inside: no gradient passes through it."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def unrolled(model: nn.Module) -> Iterator[None]:
    """Recurrent layers step by step and attention in full, while inside: torch.func knows no rule for the fused ones."""
    forwards = {
        module: partial(forward, module, partial(_project, module))
        for module in model.modules()
        if (forward := _step_by_step(module))
    }
    with replaced(forwards), attention_in_full():
        yield


def _project(
    module: nn.Module,
    inputs: Tensor,
    weight: str,
    bias: str | None = None,
    *,
    weight_rows: slice = _EVERY,
    bias_rows: slice = _EVERY,
    batch_dimension: int = 0,
) -> Tensor:
    shift = None if bias is None else attrgetter(bias)(module)[bias_rows]
    return linear(inputs, attrgetter(weight)(module)[weight_rows], shift)


class _Block(NamedTuple):
    """The rows of a weight and a bias that some products of one call use."""

    weight: str
    bias: str | None
    first_row: int | None


class _Piece:
    """One product: its inputs, and the gradient of its outputs once it is there."""

    def __init__(self, inputs: Tensor, outputs: int) -> None:
        self.inputs = inputs
        self.gradient = inputs.new_empty(len(inputs), 0, outputs)

    @property
    def reached(self) -> bool:
        return self.gradient.shape[1] > 0


class OpenedCall(Call):
    """One call of an opened module, made of products with its parameters.

    Several products with the same block of parameters, such as the steps of a recurrent layer, are positions of one. Blocks of one
    parameter are used in the order of their rows.
    """

    def __init__(self, module: nn.Module, parameters: dict[str, nn.Parameter], tape: Tape) -> None:
        super().__init__(module, parameters)
        self._tape = tape
        self._pieces: dict[_Block, list[_Piece]] = {}
        self._read: list[LinearUse] | None = None
        self._reached = False

    def project(
        self,
        inputs: Tensor,
        weight: str,
        bias: str | None = None,
        *,
        weight_rows: slice = _EVERY,
        bias_rows: slice = _EVERY,
        batch_dimension: int = 0,
    ) -> Tensor:
        """See `Projection`; takes note of the product."""
        outputs = _project(self.module, inputs, weight, bias, weight_rows=weight_rows, bias_rows=bias_rows)
        if weight not in self.parameters and bias not in self.parameters:
            return outputs
        block = _Block(weight, bias, weight_rows.start)
        piece = _Piece(by_position(inputs.detach().movedim(batch_dimension, 0)), outputs.shape[-1])
        self._pieces.setdefault(block, []).append(piece)

        def receive(gradient: Tensor) -> None:
            piece.gradient = by_position(gradient.movedim(batch_dimension, 0))
            self._reached = True

        self._tape.watch(self.module, inputs, outputs, receive)
        return outputs

    @property
    def reached(self) -> bool:
        return self._reached

    def _uses(self) -> list[LinearUse]:
        if self._read is None:
            self._read = []
            for block, pieces in self._pieces.items():
                names = (name if name in self.parameters else None for name in (block.weight, block.bias))
                reached = [piece for piece in pieces if piece.reached]
                inputs = [piece.inputs for piece in reached] or [pieces[0].inputs[:, :0]]
                gradients = [piece.gradient for piece in reached] or [pieces[0].gradient]
                self._read.append(LinearUse(torch.cat(inputs, dim=1), torch.cat(gradients, dim=1), *names))
            self._pieces.clear()
        return self._read

    def drop(self) -> None:
        self._read = []

    def example_gradients(self) -> dict[str, Tensor]:
        return _by_name([use.example_gradients() for use in self._uses()], dimension=1)

    def squared_norms(self) -> Tensor:
        return torch.stack([use.squared_norms() for use in self._uses()]).sum(dim=0)

    def weighted_gradients(self, weights: Tensor) -> dict[str, Tensor]:
        parts = [
            use.weighted_gradients(weights) if use.kept is None else weighted_sums(weights, use.kept)
            for use in self._uses()
        ]
        return _by_name(parts, dimension=0)


def _by_name(parts: list[dict[str, Tensor]], *, dimension: int) -> dict[str, Tensor]:
    """Blocks of rows put together."""
    blocks: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, block in part.items():
            blocks.setdefault(name, []).append(block)
    return {
        name: each[0] if len(each) == 1 else torch.cat(each, dim=dimension) for name, each in blocks.items()
    }
