"""One call of one layer in a forward pass: what a rule per layer has to say about it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from equidp.engines.layers.call import Call
from equidp.engines.layers.sums import precise

if TYPE_CHECKING:
    from equidp.engines.layers.tape import Tape


class RuledCall(Call):
    """A call of one layer on one tensor [batch, ...], of whose class we know what it computes."""

    @classmethod
    def covers(cls, module: nn.Module) -> bool:
        """Whether this layer's settings are among those that the rule knows."""
        return True

    @abstractmethod
    def run(self, forward: Callable[[Tensor], Tensor], inputs: Tensor, tape: Tape) -> Tensor:
        """The layer's outputs; has the tape hand over the gradients that are needed. `forward` is the layer's own."""


class LayerCall(RuledCall):
    """A layer's input and the gradient of its output, from which its rule computes.

    Args:
        module: the layer.
        parameters: those of its parameters that are trained.

    Attributes:
        inputs: [batch, ...], what it was called with.
        grad_output: [batch, ...], once it is there.
    """

    inputs: Tensor

    def __init__(self, module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__(module, parameters)
        self.grad_output: Tensor | None = None
        self._reached = False

    def run(self, forward: Callable[[Tensor], Tensor], inputs: Tensor, tape: Tape) -> Tensor:
        self.inputs = inputs.detach()
        outputs = forward(inputs)
        if outputs._is_view():  # a change in place would go past the hook
            outputs = torch.ops.aten._unsafe_view(outputs, outputs.shape)
        tape.watch(self.module, inputs, outputs, self.receive)
        return outputs

    @property
    def reached(self) -> bool:
        return self._reached

    def receive(self, gradient: Tensor) -> None:
        """Takes the gradient of the layer's output, [batch, ...]."""
        self.grad_output, self._reached = gradient, True
        self.settle()

    def drop(self) -> None:
        self.inputs = self.grad_output = None  # type: ignore[assignment]

    def budget(self) -> int:
        """No more than the layer's activations already hold."""
        assert self.grad_output is not None
        return self.inputs.numel() + self.grad_output.numel()

    def pair(self) -> tuple[Tensor, Tensor]:
        """Inputs and output gradient in at least float32."""
        assert self.grad_output is not None
        return precise(self.inputs, self.grad_output)
