"""One call of one module in a forward pass, and what it contributes to gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, final

from torch import Tensor, nn

from equidp.engines.layers.sums import squared_lengths, weighted_sums

Parameters = dict[str, nn.Parameter]
"""Those parameters of a module that are trained, by their names in it."""
ByName = dict[str, Tensor]
"""Per-example gradients [batch, *shape], or weighted sums of them [*shape], by parameter name."""


class SquaredNorms(NamedTuple):
    """Squared norms of per-example gradients over all parameters of a call.

    Attributes:
        squares: [batch].
        gradients: the per-example gradients, where they were computed on the way and are small; None: not
            kept.
    """

    squares: Tensor
    gradients: ByName | None = None


class Gradients(ABC):
    """Per-example gradients of one call's parameters, computed as far as they are needed."""

    @abstractmethod
    def example_gradients(self) -> ByName:
        """Returns the per-example gradients, [batch, *shape]."""

    @abstractmethod
    def squared_norms(self) -> SquaredNorms:
        """Returns their squared norms, in the cheapest way."""

    @abstractmethod
    def weighted_gradients(self, weights: Tensor) -> ByName:
        """Returns sum_i weights[i] * gradient_i, [*shape]; weights [batch]. Comes after `squared_norms`."""


@final
class KnownGradients(Gradients):
    """Per-example gradients that are stored."""

    def __init__(self, gradients: ByName) -> None:
        self._gradients = gradients

    def example_gradients(self) -> ByName:
        return self._gradients

    def squared_norms(self) -> SquaredNorms:
        return SquaredNorms(squared_lengths(self._gradients))

    def weighted_gradients(self, weights: Tensor) -> ByName:
        return weighted_sums(weights, self._gradients)


class Contribution(NamedTuple):
    """What one call contributes to per-example norms and to the weighted sum.

    Attributes:
        module, parameters: as of the call.
        squares: squared norms, [batch]; None where other calls use some of these parameters too: their
            gradients must be added before a norm is taken, so `gradients` are stored then.
        gradients: what the weighted sum is computed from.
        drew_otherwise: which examples got other random numbers when the module was run again, [batch]; None:
            it was not.
    """

    module: nn.Module
    parameters: Parameters
    squares: Tensor | None
    gradients: Gradients
    drew_otherwise: Tensor | None = None


class Call(ABC):
    """One call of one module.

    Args:
        module: the module.
        parameters: its trained parameters.

    Attributes:
        shared: whether other calls use some of these parameters too; known before the backward pass.
    """

    def __init__(self, module: nn.Module, parameters: Parameters) -> None:
        self.module, self.parameters = module, parameters
        self.shared = False

    @property
    @abstractmethod
    def reached(self) -> bool:
        """Whether the losses depend on this call; known after the backward pass."""

    @abstractmethod
    def contribution(self) -> Contribution:
        """Returns what a reached call contributes; once, after the backward pass."""

    @final
    def contributed(self, gradients: Gradients) -> Contribution:
        """Takes norms, and keeps of the gradients only what the weighted sum will need."""
        if self.shared:
            known = KnownGradients(gradients.example_gradients())
            return Contribution(self.module, self.parameters, None, known)
        squares, small = gradients.squared_norms()
        kept = gradients if small is None else KnownGradients(small)
        return Contribution(self.module, self.parameters, squares, kept)
