"""One call of one module in a forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from equidp.engines.layers.sums import squared_lengths, weighted_sums


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
