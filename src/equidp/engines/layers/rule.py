"""Layer rules: a way to run a call, and the per-example gradients that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from equidp.engines.layers.call import Call, Gradients
from equidp.engines.layers.sums import KEPT, precise, zero_left_out
from equidp.engines.layers.tape import Tape

Forward = Callable[[Tensor], Tensor]
"""A layer's own forward on one tensor [batch, ...]."""


class Rule(NamedTuple):
    """Rule for calls of one kind of layer, whose computation is known from the layer's class.

    Attributes:
        run: (call, the layer's own forward, inputs [batch, ...], tape) -> the layer's outputs; watches the
            tensors that the call's gradients need.
        covers: returns True if the rule knows this layer's settings.
    """

    run: Callable[[Call, Forward, Tensor, Tape], Tensor]
    covers: Callable[[Any], bool] = lambda layer: True


class LayerGradients(Gradients):
    """Per-example gradients from a layer's input and the gradient of its output.

    Args:
        call: call of the layer.
        inputs: [batch * rows, ...], inputs of the call.
        grad_output: [batch * rows, ...], gradient of its outputs.
    """

    def __init__(self, call: Call, inputs: Tensor, grad_output: Tensor) -> None:
        self.module, self.parameters, self.rows = call.module, call.parameters, call.rows
        self.inputs, self.grad_output = inputs, grad_output
        self.budget = KEPT * (inputs.numel() + grad_output.numel())
        self.held = (inputs, grad_output)

    @final
    def without(self, left_out: Tensor) -> Gradients:
        rows = left_out.repeat_interleave(self.rows)
        gradients = copy(self)
        gradients.inputs = (
            zero_left_out(self.inputs, rows) if self.inputs.is_floating_point() else self.inputs
        )
        gradients.grad_output = zero_left_out(self.grad_output, rows)
        return gradients

    @final
    def pair(self) -> tuple[Tensor, Tensor]:
        """Returns inputs and output gradient in at least float32."""
        return precise(self.inputs, self.grad_output)


def run_layer(
    read: Callable[[Call, Tensor, Tensor], Gradients],
    call: Call,
    forward: Forward,
    inputs: Tensor,
    tape: Tape,
) -> Tensor:
    """Runs a layer whose gradients `read` finds from the call, its inputs and its output's gradient.

    Takes norms as soon as that gradient arrives, to free activations during the backward pass.
    """
    known = inputs.detach()
    outputs = forward(inputs)
    if outputs._is_view():  # a change in place would bypass the hook
        outputs = torch.ops.aten._unsafe_view(outputs, outputs.shape)
    tape.watch(call.module, inputs, outputs, lambda gradient: call.take(read(call, known, gradient)))
    return outputs
