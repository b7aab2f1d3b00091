"""What a layer rule consists of: how a call is run, and how its per-example gradients follow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from equidp.engines.layers.call import ByName, Call, Contribution, Gradients, Parameters, SquaredNorms
from equidp.engines.layers.sums import precise, squared_lengths
from equidp.engines.layers.tape import Tape


class RuledCall(Call):
    """A call of one layer on one tensor [batch, ...], where the layer's class says what it computes."""

    @abstractmethod
    def run(self, forward: Callable[[Tensor], Tensor], inputs: Tensor, tape: Tape) -> Tensor:
        """Returns the layer's outputs, and watches what it needs. `forward` is the layer's own."""


class Rule(NamedTuple):
    """How calls of one kind of layer are read.

    Attributes:
        call: (layer, its trained parameters) -> a call of it.
        covers: whether the rule knows this layer's settings.
    """

    call: Callable[[nn.Module, Parameters], RuledCall]
    covers: Callable[[Any], bool] = lambda layer: True


class LayerGradients(Gradients):
    """Per-example gradients from a layer's input and the gradient of its output.

    Args:
        module: the layer.
        parameters: its trained parameters.
        inputs: [batch, ...], what it was called with.
        grad_output: [batch, ...], the gradient of what it returned.
    """

    def __init__(self, module: Any, parameters: Parameters, inputs: Tensor, grad_output: Tensor) -> None:
        self.module, self.parameters = module, parameters
        self.inputs, self.grad_output = inputs, grad_output

    @final
    def pair(self) -> tuple[Tensor, Tensor]:
        """Returns inputs and output gradient in at least float32."""
        return precise(self.inputs, self.grad_output)

    @final
    def budget(self) -> int:
        """Returns how many numbers may be stored in place of inputs and output gradient."""
        return self.inputs.numel() + self.grad_output.numel()


Reader = Callable[[nn.Module, Parameters, Tensor, Tensor], Gradients]
"""(layer, trained parameters, inputs, gradient of the output) -> the call's gradients."""


@final
class LayerCall(RuledCall):
    """A call whose gradients follow from its input and its output's gradient.

    Takes norms as soon as that gradient arrives, to free activations during the backward pass.
    """

    def __init__(self, read: Reader, module: nn.Module, parameters: Parameters) -> None:
        super().__init__(module, parameters)
        self._read = read
        self._contributions: list[Contribution] = []

    def run(self, forward: Callable[[Tensor], Tensor], inputs: Tensor, tape: Tape) -> Tensor:
        known = inputs.detach()
        outputs = forward(inputs)
        if outputs._is_view():  # a change in place would bypass the hook
            outputs = torch.ops.aten._unsafe_view(outputs, outputs.shape)

        def receive(gradient: Tensor) -> None:
            gradients = self._read(self.module, self.parameters, known, gradient)
            self._contributions.append(self.contributed(gradients))

        tape.watch(self.module, inputs, outputs, receive)
        return outputs

    @property
    def reached(self) -> bool:
        return bool(self._contributions)

    def contribution(self) -> Contribution:
        return self._contributions.pop()


def norms_and_small(gradients: ByName, budget: int) -> SquaredNorms:
    """Squared norms of given gradients, which are kept where they hold no more numbers than `budget`."""
    small = sum(gradient.numel() for gradient in gradients.values()) <= budget
    return SquaredNorms(squared_lengths(gradients), gradients if small else None)
