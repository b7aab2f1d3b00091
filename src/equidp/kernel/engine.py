"""What the kernel asks of an engine: per-example gradient norms, then one weighted sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from equidp.kernel.inputs import Inputs

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs [batch, ...], targets [batch, ...]) -> losses [batch], one per example."""


class Measured(Protocol):
    """A batch after its forward and backward pass: a value, independent of other batches."""

    @property
    def norms(self) -> Tensor:
        """Norms of the per-example gradients over all trainable parameters, [batch], float32 or wider.

        The norm of an example whose loss or gradient is not finite is not finite; other examples are
        unaffected.
        """

    @property
    def terms(self) -> Tensor | None:
        """The terms of a `Penalty`, [batch, 2]; None where there is none."""

    def weighted_sum(self, weights: Tensor, /) -> None:
        """Adds sum_i weights[i] * gradient_i to p.grad (created where missing) of each trainable parameter.

        Once; frees what the batch kept for it.

        Args:
            weights: [batch]. All norms of the batch are finite: the private step removes other examples and
                measures again.
        """


class Engine(Protocol):
    """Measures batches. Made from a model and a per-example loss; never sees groups, policies or noise.

    It keeps nothing about a batch: several measured batches may be in use at a time.
    """

    def __call__(self, inputs: Inputs, targets: Tensor, /) -> Measured:
        """Runs forward and backward over examples [batch, ...], batch >= 1."""


class Penalty(NamedTuple):
    """What a policy adds to the losses of a step; it follows from releases.

    The loss of an example of group a is l + factors[a, 0] slope + factors[a, 1] closeness, where slope is
    <grad l, u> and closeness to the decision boundary is 1 - sum_c p_c^2 over the classes' probabilities.

    Attributes:
        factors: of both terms, [K, 2].
        direction: u, [parameters]: all trainable ones in the model's order, flat.
    """

    factors: Tensor
    direction: Tensor


class PenalisingEngine(Protocol):
    """An engine that also measures losses with penalties."""

    def penalised(self, inputs: Inputs, targets: Tensor, factors: Tensor, direction: Tensor, /) -> Measured:
        """Measures examples [batch, ...] under factors [batch, 2]; `terms` of the result are set."""
