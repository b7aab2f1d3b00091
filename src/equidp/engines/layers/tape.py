"""What is noted in a forward pass, so that the backward pass can hand each call the gradients it needs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from equidp.engines.layers.call import Call
from equidp.errors import ModelError


class Tape:
    """Takes note of the calls of a forward pass, and gives them the gradients of their outputs or of their copies of parameters.

    No others are asked for, so the backward pass forms none of the parameters themselves.

    Attributes:
        calls: in the order in which they were made.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._ends: list[GradientEdge] = []
        self._forward = True

    def note(self, call: Call) -> None:
        """Keeps the call, unless it is made on the way back, where `torch.utils.checkpoint` runs forward again."""
        if self._forward:
            self.calls.append(call)

    def watch(
        self, module: nn.Module, inputs: Tensor, output: Tensor, receive: Callable[[Tensor], None]
    ) -> None:
        """Has `receive` called with the gradient of `output`, which `module` computed from `inputs`, if the losses depend on it."""
        if not output.requires_grad:
            return
        if not inputs.requires_grad:
            # Where the backward pass ends; all other outputs lie on its way.
            self._ends.append(get_gradient_edge(output))
        output.register_hook(_Hook(module, inputs, receive))

    def watch_copy(self, copy: Tensor, receive: Callable[[Tensor], None]) -> None:
        """Has `receive` called with the gradient of a parameter's copy, a leaf, if the losses depend on it."""
        self._ends.append(get_gradient_edge(copy))
        copy.register_hook(receive)

    def backward(self, losses: Tensor) -> list[Call]:
        """The backward pass from the sum of the losses [batch]; returns the calls that they depend on.

        All is forgotten afterwards: calls know their tape, and would keep each other until the next garbage collection.
        """
        self._forward = False
        torch.autograd.grad(losses, self._ends, torch.ones_like(losses), allow_unused=True)
        reached = [call for call in self.calls if call.reached]
        self.calls, self._ends = [], []
        return reached


class _Hook:
    """Hands a gradient on, once. It outlives the backward pass's use of it, so it lets go of all that it holds."""

    def __init__(self, module: nn.Module, inputs: Tensor, receive: Callable[[Tensor], None]) -> None:
        self._held: tuple[nn.Module, Tensor, int, Callable[[Tensor], None]] | None = (
            module,
            inputs,
            inputs._version,
            receive,
        )

    def __call__(self, gradient: Tensor) -> None:
        assert self._held is not None
        (module, inputs, version, receive), self._held = self._held, None
        if inputs._version != version:
            raise ModelError(
                f"the input of {type(module).__name__} was changed in place after the layer read it. Use operations that are not "
                "in place, or engine='functional'."
            )
        receive(gradient)
