"""Recurrent layers and attention, run by forwards of ours that say what uses which parameter.

torch's recurrent layers and its attention pass all their weights to one fused operation, and nothing inside
it can be read. While an engine runs, their `forward` is replaced by ours, which computes the same from single
products; afterwards it is restored.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from equidp.engines.layers.attention import ATTENTION_PARAMETERS, attention
from equidp.engines.layers.linear import LinearGradients, by_position
from equidp.engines.layers.projection import Block, Forward, project
from equidp.engines.layers.recurrent import cell, recurrent
from equidp.engines.layers.rule import Call, Gradients, Parameters, Tape, without_base
from equidp.engines.model import device_of, replaced

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
    forwards = [
        (vars(module), "forward", partial(forward, module, partial(project, module)))
        for module in model.modules()
        if (forward := _step_by_step(module))
    ]
    fused = nullcontext() if device_of(model).type == "cpu" else sdpa_kernel(SDPBackend.MATH)
    with replaced(forwards), attention_in_full(), fused:
        yield


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """Leave out what torch.func says about its own speed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


@final
class Products:
    """The products with a module's parameters in one call of it.

    Each weight with its bias is one call. Several products with them, such as the steps of a recurrent layer,
    are its positions.
    """

    def __init__(self, module: nn.Module, parameters: Parameters, tape: Tape) -> None:
        self._module, self._parameters, self._tape = module, parameters, tape
        self._calls: dict[Block, tuple[Call, list[list[Tensor]]]] = {}

    def project(self, inputs: Tensor, block: Block, batch_dimension: int = 0) -> Tensor:
        """The `Projection` that records each product."""
        outputs = project(self._module, inputs, block)
        weight, bias = (name if name in self._parameters else None for name in block)
        own = {name: self._parameters[name] for name in (weight, bias) if name}
        if not own:
            return outputs
        outputs = without_base(outputs)
        if block not in self._calls:
            call = Call(self._module, own, self._tape.rows)
            self._tape.note(call)
            self._calls[block] = call, []
        call, products = self._calls[block]
        product = [by_position(inputs.detach().movedim(batch_dimension, 0))]
        products.append(product)

        def receive(gradient: Tensor) -> None:
            product.append(by_position(gradient.movedim(batch_dimension, 0)))
            call.pending = partial(_gradients, products, call, weight, bias)

        self._tape.watch(self._module, inputs, outputs, receive)
        return outputs


def _gradients(products: list[list[Tensor]], call: Call, weight: str | None, bias: str | None) -> Gradients:
    """Gradients of all products whose outputs the losses depend on: one without has no gradient."""
    arrived = [product for product in products if len(product) == 2]
    inputs, gradient = (by_position(torch.cat(each, dim=1), call.rows) for each in zip(*arrived, strict=True))
    if inputs.shape[1] == 1:
        inputs, gradient = inputs.squeeze(1), gradient.squeeze(1)
    if weight is None or call.parameters[weight].dim() == 2:
        return LinearGradients(inputs, gradient, weight, bias)
    return LinearGradients(inputs, gradient, weight, bias, lambda weights: weights.squeeze(-1))
