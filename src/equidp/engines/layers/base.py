"""One call of one layer in a forward pass: what a rule per layer has to say about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from equidp.engines.layers.tape import Tape

CHUNK_NUMBERS = 2**18
"""Numbers of one intermediate result at a time: what stays in a processor's cache, and is small beside the activations."""


class Call(ABC):
    """One call of one module: the per-example gradients of its parameters.

    A rule gives `example_gradients`; where there is a cheaper way to their norms or weighted sum, it overrides those too.

    Args:
        module: the module.
        parameters: those of its parameters that are trained, by their names in the module.

    Attributes:
        shared: whether other calls use some of these parameters too, so that norms must wait for the sum of all calls' gradients.
        squares: squared norms of the per-example gradients over all these parameters, [batch]; None where shared, or not settled.
        kept: the per-example gradients themselves, [batch, *shape] by name, where they are worth keeping; None otherwise.
    """

    def __init__(self, module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        self.module, self.parameters = module, parameters
        self.shared = False
        self.squares: Tensor | None = None
        self.kept: dict[str, Tensor] | None = None

    @property
    @abstractmethod
    def reached(self) -> bool:
        """Whether the losses depend on this call."""

    @abstractmethod
    def example_gradients(self) -> dict[str, Tensor]:
        """Per-example gradients of each parameter, [batch, *shape]."""

    @abstractmethod
    def drop(self) -> None:
        """Forgets what per-example gradients are computed from."""

    def budget(self) -> int:
        """How many numbers `kept` may hold."""
        return 0

    def squared_norms(self) -> Tensor:
        """Squared norms over all these parameters, [batch]; fills `kept` if what it makes on the way is worth it."""
        gradients = self.example_gradients()
        if sum(gradient.numel() for gradient in gradients.values()) <= self.budget():
            self.kept = gradients
        return squared_lengths(gradients)

    def weighted_gradients(self, weights: Tensor) -> dict[str, Tensor]:
        """sum_i weights[i] * gradient_i of each parameter."""
        return weighted_sums(weights, self.example_gradients())

    def settle(self) -> None:
        """Takes norms as soon as all gradients are in, so that what is not needed any more is let go during the backward pass."""
        if self.shared:
            self.kept = self.example_gradients()
        else:
            self.squares = self.squared_norms()
        if self.kept is not None:
            self.drop()

    def sums(self, weights: Tensor) -> dict[str, Tensor]:
        """sum_i weights[i] * gradient_i of each parameter, of a settled call."""
        return self.weighted_gradients(weights) if self.kept is None else weighted_sums(weights, self.kept)


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


def precise(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Both in at least float32, so that norms and sums keep their precision under autocast."""
    if inputs.dtype == gradient.dtype in (torch.float32, torch.float64):
        return inputs, gradient
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    return inputs.to(dtype), gradient.to(dtype)


def weighted_sums(weights: Tensor, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """sum_i weights[i] * gradients[i], by name."""
    return {name: torch.tensordot(weights.to(each.dtype), each, dims=1) for name, each in gradients.items()}


def held_to_norms(weights: Tensor, gradients: dict[str, Tensor], before: Tensor, now: Tensor) -> Tensor:
    """Weights [batch] under which gradients that are computed again add no more than those that were measured.

    A module may not run alike twice (random numbers of Python's own). Gradients that are no numbers this time become 0 in place.

    Args:
        weights: [batch], made for the norms `before`.
        gradients: [batch, *shape], by name.
        before, now: their norms the first time and this time, [batch].
    """
    broken = ~torch.isfinite(now)
    if broken.any():
        for each in gradients.values():
            each[broken] = 0.0
    return weights * (before / now.clamp_min(torch.finfo(now.dtype).tiny)).clamp(max=1.0).nan_to_num(nan=0.0)


def squared_lengths(gradients: dict[str, Tensor]) -> Tensor:
    """Squared norms over all tensors together, [batch], from per-example gradients [batch, *shape]."""
    return (
        torch.stack([torch.linalg.vector_norm(each.flatten(1), dim=1) for each in gradients.values()])
        .square()
        .sum(0)
    )


def gram_norms(products: Tensor) -> Tensor:
    """Squared norms from products <x_s, x_t> <g_s, g_t> [batch, T, T], never below the true ones for want of precision, [batch].

    Where the terms of a gradient cancel, so do these products, and their sum loses twice as many digits. An example with a norm
    understated could contribute more than its bound, so the sum's largest rounding error is added.
    """
    rounding = 8 * torch.finfo(products.dtype).eps
    return products.sum(dim=(1, 2)).clamp_min(0.0) + rounding * products.abs().sum(dim=(1, 2))
