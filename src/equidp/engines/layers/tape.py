"""A record of a forward pass, through which the backward pass hands each call the gradients it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from equidp.engines.layers.call import Call
from equidp.errors import ModelError


class Tape:
    """Records calls, and passes on the gradients of their outputs or of their copies of parameters.

    No other gradients are computed: the backward pass forms none of the parameters themselves.

    Args:
        batch: how many rows the forward pass is of.
        rows: how many of them each example (unit of privacy) has, one after the other.

    Attributes:
        calls: in the order of the forward pass.
        read_once: a layer that was given once per example what the model gave it once for all.
    """

    def __init__(self, batch: int, rows: int = 1) -> None:
        self.batch, self.rows = batch, rows
        self.calls: list[Call] = []
        self.read_once: nn.Module | None = None
        self._ends: list[GradientEdge] = []
        self._forward = True

    def note(self, call: Call) -> None:
        """Records the call, but not when `torch.utils.checkpoint` repeats it in the backward pass."""
        if self._forward:
            self.calls.append(call)

    def watch(
        self, module: nn.Module, inputs: Tensor, output: Tensor, receive: Callable[[Tensor], None]
    ) -> None:
        """Passes the gradient of `module`'s output to `receive`, if the losses depend on it."""
        if not output.requires_grad:
            return
        if not inputs.requires_grad:
            # The backward pass ends here; it passes all other outputs on its way.
            self._ends.append(get_gradient_edge(output))
        held = [(inputs, inputs._version, receive)]  # popped at its only use: the graph keeps its hooks

        def pass_on(gradient: Tensor) -> None:
            inputs, version, receive = held.pop()
            if inputs._version != version:
                raise ModelError(
                    f"the input of {type(module).__name__} was changed in place after the layer read it. Use "
                    "operations that are not in place."
                )
            receive(gradient)

        output.register_hook(pass_on)

    def watch_copy(self, copy: Tensor, receive: Callable[[Tensor], None]) -> None:
        """Passes the gradient of a parameter's copy, a leaf, to `receive`, if losses depend on it."""
        self._ends.append(get_gradient_edge(copy))
        copy.register_hook(receive)

    def backward(self, losses: Tensor) -> list[Call]:
        """Runs the backward pass from the sum of the losses [batch]; returns the calls that they depend on.

        Forgets everything afterwards: calls may refer to their tape, and a cycle would hold them until the
        next garbage collection.
        """
        self._forward = False
        users = Counter(parameter for call in self.calls for parameter in call.parameters.values())
        for call in self.calls:
            call.shared = any(users[parameter] > 1 for parameter in call.parameters.values())
        if not self._ends:
            raise ModelError(
                "no layer that owns a trained parameter was called, so there are no gradients to measure. "
                "Call the layers themselves (self.layer(x)), not functions of their weights."
            )
        torch.autograd.grad(losses, self._ends, torch.ones_like(losses), allow_unused=True)
        reached = [call for call in self.calls if call.gradients or call.pending]
        self.calls, self._ends = [], []
        return reached
