"""Recurrent layers, attention and nn.Bilinear, run by forwards of ours that say what uses which parameter.

torch's recurrent layers and its attention pass all their weights to one fused operation, and nothing inside
it can be read. While an engine runs, their `forward` is replaced by ours, which computes the same from single
products; afterwards it is restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from equidp.engines.layers.attention import ATTENTION_PARAMETERS, attention
from equidp.engines.layers.linear import LinearGradients, by_position
from equidp.engines.layers.projection import Block, Forward, bilinear, project
from equidp.engines.layers.recurrent import cell, recurrent
from equidp.engines.layers.rule import Call, Gradients, KnownGradients, Norms, Tape, without_base
from equidp.engines.layers.sums import ByName
from equidp.engines.model import device_of

_RECURRENT: dict[type[nn.Module], Forward] = {
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU), recurrent),
    **dict.fromkeys((nn.RNNCell, nn.LSTMCell, nn.GRUCell), cell),
}


def forward_for(module: nn.Module) -> Forward | None:
    """Return our forward for this module, if there is one and the module's parameters are its own."""
    if "parametrizations" in dict(module.named_children()):
        return None
    if isinstance(module, nn.MultiheadAttention):
        own = {name for name, _ in module.named_parameters()}
        known = own <= ATTENTION_PARAMETERS and not module.add_zero_attn
        return attention if known and has_forward_of(module, nn.MultiheadAttention) else None
    if isinstance(module, nn.Bilinear):
        return bilinear if has_forward_of(module, nn.Bilinear) else None
    return _step_by_step(module)


def _step_by_step(module: nn.Module) -> Forward | None:
    for layer, forward in _RECURRENT.items():
        if isinstance(module, layer) and has_forward_of(module, layer):
            return forward
    return None


def has_forward_of(module: nn.Module, layer: type[nn.Module]) -> bool:
    """Return True if the module's forward is the forward of `layer`."""
    return type(module).forward is layer.forward and "forward" not in vars(module)


@contextmanager
def replace_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the modules' own `forward` by these inside the context."""
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
    """Disable attention's inference fast path, which has no gradient, inside the context."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def without_fused_layers(model: nn.Module) -> Iterator[None]:
    """Run the model without fused recurrent layers and attention, which torch.func cannot read.

    Attention on a CPU stays fused: torch.func takes it there, and it is faster from 64 positions on.
    """
    forwards = {
        module: partial(forward, module, partial(project, module))
        for module in model.modules()
        if (forward := _step_by_step(module))
    }
    fused = nullcontext() if device_of(model).type == "cpu" else sdpa_kernel(SDPBackend.MATH)
    with replace_forwards(forwards), attention_in_full(), fused:
        yield


class _Product:
    """The inputs of one product, and the gradient of its outputs: no positions until it has arrived."""

    def __init__(self, inputs: Tensor, outputs: int) -> None:
        self.inputs = inputs
        self.gradient = inputs.new_empty(len(inputs), 0, outputs)


@final
class Products:
    """The products with a module's parameters in one call of it.

    Several products with the same block of parameters, such as the steps of a recurrent layer, are positions
    of one. Blocks of one parameter are used in the order of their rows.
    """

    def __init__(self, call: Call, tape: Tape) -> None:
        self._call, self._tape = call, tape
        self._products: dict[Block, list[_Product]] = {}

    def project(self, inputs: Tensor, block: Block, batch_dimension: int = 0) -> Tensor:
        """The `Projection` that records each product."""
        outputs = project(self._call.module, inputs, block)
        if block.weight not in self._call.parameters and block.bias not in self._call.parameters:
            return outputs
        outputs = without_base(outputs)
        product = _Product(by_position(inputs.detach().movedim(batch_dimension, 0)), outputs.shape[-1])
        self._products.setdefault(block, []).append(product)

        def receive(gradient: Tensor) -> None:
            product.gradient = by_position(gradient.movedim(batch_dimension, 0))
            self._call.pending = self._gradients

        self._tape.watch(self._call.module, inputs, outputs, receive)
        return outputs

    def _gradients(self) -> Gradients:
        blocks: list[Gradients] = []
        for block, products in self._products.items():
            names = (name if name in self._call.parameters else None for name in (block.weight, block.bias))
            gradient = torch.cat([each.gradient for each in products], dim=1)
            inputs = torch.cat([each.inputs[:, : each.gradient.shape[1]] for each in products], dim=1)
            inputs, gradient = (by_position(each, self._call.rows) for each in (inputs, gradient))
            if inputs.shape[1] == 1:
                inputs, gradient = inputs.squeeze(1), gradient.squeeze(1)
            blocks.append(LinearGradients(inputs, gradient, *names))
        return BlockGradients(blocks, {name: each.shape for name, each in self._call.parameters.items()})


@final
class BlockGradients(Gradients):
    """Gradients of parameters whose rows are used in blocks, one after the other.

    Args:
        blocks: in the order of their rows.
        shapes: of the parameters; one of three dimensions or more is used as a matrix.
    """

    def __init__(self, blocks: list[Gradients], shapes: Mapping[str, torch.Size]) -> None:
        self._blocks, self._shapes = blocks, shapes

    def example_gradients(self) -> ByName:
        return self._join_blocks([block.example_gradients() for block in self._blocks], dimension=1)

    def squared_norms(self) -> Norms:
        norms = [block.squared_norms() for block in self._blocks]
        self._blocks = [
            block if small is None else KnownGradients(small)
            for block, (_, small) in zip(self._blocks, norms, strict=True)
        ]
        return torch.stack([squares for squares, _ in norms]).sum(dim=0), None

    def without(self, left_out: Tensor) -> Gradients:
        return BlockGradients([block.without(left_out) for block in self._blocks], self._shapes)

    def weighted_gradients(self, weights: Tensor) -> ByName:
        return self._join_blocks([block.weighted_gradients(weights) for block in self._blocks], dimension=0)

    def _join_blocks(self, blocks: list[ByName], *, dimension: int) -> ByName:
        parts: dict[str, list[Tensor]] = {}
        for block in blocks:
            for name, rows in block.items():
                parts.setdefault(name, []).append(rows)
        joined = {
            name: rows[0] if len(rows) == 1 else torch.cat(rows, dim=dimension)
            for name, rows in parts.items()
        }
        return {
            name: each.reshape(*each.shape[:dimension], *self._shapes[name]) for name, each in joined.items()
        }
