"""One call of one module in a forward pass, and its per-example gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

from torch import Tensor, nn

from equidp.engines.layers.sums import ByName, squared_lengths, weighted_sums, zero_left_out
from equidp.errors import ModelError

Parameters = dict[str, nn.Parameter]
"""Trained parameters of a module, by their names in it."""
Norms = tuple[Tensor, ByName | None]
"""Squared norms of per-example gradients over all parameters of a call, [batch]; and these gradients, where
they were computed on the way and are small."""


class Gradients(ABC):
    """Per-example gradients of one call's parameters, computed as far as they are needed.

    A rule gives `example_gradients`, and norms or weighted sums where there is a cheaper way to them.

    Attributes:
        budget: how many numbers may be stored in place of what the gradients follow from.
        held: tensors of the model's own that the weighted sum will read: nothing may change them in between.
        drew_otherwise: which examples got other random numbers when the module was run again, [batch]; None:
            it was not, or draws none.
    """

    budget = 0
    held: tuple[Tensor, ...] = ()
    drew_otherwise: Tensor | None = None

    @abstractmethod
    def example_gradients(self) -> ByName:
        """Returns the per-example gradients, [batch, *shape]."""

    def squared_norms(self) -> Norms:
        """Returns their squared norms, in the cheapest way."""
        gradients = self.example_gradients()
        small = sum(gradient.numel() for gradient in gradients.values()) <= self.budget
        return squared_lengths(gradients), gradients if small else None

    @abstractmethod
    def without(self, left_out: Tensor) -> Gradients:
        """Returns these gradients with 0 for some examples, [batch], whatever theirs were (infinite, NaN)."""

    def weighted_gradients(self, weights: Tensor) -> ByName:
        """Returns sum_i weights[i] * gradient_i in float64, [*shape]; weights [batch]. Comes after
        `squared_norms`."""
        return weighted_sums(weights, self.example_gradients())


@final
class KnownGradients(Gradients):
    """Per-example gradients that are stored."""

    def __init__(self, gradients: ByName) -> None:
        self._gradients = gradients

    def example_gradients(self) -> ByName:
        return self._gradients

    def without(self, left_out: Tensor) -> Gradients:
        return KnownGradients({name: zero_left_out(each, left_out) for name, each in self._gradients.items()})


@final
class Call:
    """One call of one module, and what it contributes to norms and to the weighted sum.

    Args:
        module: the module.
        parameters: its trained parameters.
        rows: how many rows each example (unit of privacy) has. The module reads [batch * rows, ...]; its
            gradients are of units, [batch, ...].

    Attributes:
        shared: whether other calls use some of these parameters too; known before the backward pass.
        pending: makes the gradients after the backward pass, where they arrive in pieces; set by the first.
        gradients: what the weighted sum is computed from; None until the losses are known to depend on it.
        squares: squared norms, [batch]; None where shared: gradients must be added before a norm is taken.
        drew_otherwise: as in `Gradients`.
    """

    def __init__(self, module: Any, parameters: Parameters, rows: int = 1) -> None:
        self.module, self.parameters, self.rows = module, parameters, rows
        self.shared = False
        self.pending: Callable[[], Gradients] | None = None
        self.gradients: Gradients | None = None
        self.squares: Tensor | None = None
        self.drew_otherwise: Tensor | None = None
        self._versions: list[int] = []

    def take(self, gradients: Gradients) -> None:
        """Takes norms, and keeps of the gradients only what the weighted sum will need."""
        self.pending = None
        if self.shared:
            self.gradients = KnownGradients(gradients.example_gradients())
        else:
            self.squares, small = gradients.squared_norms()
            self.gradients = gradients if small is None else KnownGradients(small)
        self._versions = [each._version for each in self.gradients.held]
        self.drew_otherwise = gradients.drew_otherwise

    def weighted_gradients(self, weights: Tensor, left_out: Tensor | None) -> ByName:
        """Returns the weighted sums in float64, by name.

        Args:
            weights: [batch].
            left_out: mask of examples whose gradients count as 0, [batch]; None: no example.

        Raises:
            ModelError: a tensor that norms were taken of was changed in place.
        """
        if self.gradients is None:
            return {}
        if [each._version for each in self.gradients.held] != self._versions:
            raise ModelError(
                f"the input of {type(self.module).__name__}, or the gradient of its output, was changed in "
                "place after its norms were taken, so the sum would not keep to them. A backward pass of "
                "your own must return a new tensor."
            )
        gradients = self.gradients if left_out is None else self.gradients.without(left_out)
        return gradients.weighted_gradients(weights)
