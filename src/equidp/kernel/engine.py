"""Interface of engines: per-example gradient norms, then one weighted sum of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from equidp.kernel.inputs import Inputs

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs [batch, ...], targets [batch, ...]) -> losses [batch], one per example."""


Sums = dict[nn.Parameter, Tensor]
"""Sums over examples in float64, [*shape], by parameter; one that no loss depends on may be missing."""


class Measured(Protocol):
    """A batch after its forward and backward pass: a value, independent of other batches.

    What is measured of an example follows from that example, and random numbers of the model, alone.

    | example | norm | in the weighted sum |
    | --- | --- | --- |
    | loss and gradient finite | at least |gradient| (1 - 2^-13) | weight times gradient |
    | loss or gradient infinite or NaN | infinite or NaN | nothing, whatever its weight |
    """

    @property
    def norms(self) -> Tensor:
        """Norms of the per-example gradients over all trainable parameters, [batch], float32 or wider."""

    @property
    def terms(self) -> Tensor | None:
        """The terms of a `Penalty`, [batch, 2]; None where there is none."""

    def sum_gradients(self, weights: Tensor, /) -> Sums:
        """Returns sum_i weights[i] * gradient_i of the trainable parameters; once, and frees the batch.

        Examples are added in float64, in parts of at most 2^13: the additions lose at most 2^-40 of
        sum_i weights[i] |gradient_i|, in whatever order they come, and 2^-53 for each part more. Where the
        gradient of an example is a sum over positions that is not formed first, the sum of the lengths of its
        terms takes the place of |gradient_i|.

        Args:
            weights: [batch], finite.
        """


class Engine(Protocol):
    """Measures batches. Made from a model and a per-example loss; never sees groups, policies or noise.

    It keeps nothing about a batch: several measured batches may be in use at a time.
    """

    def __call__(self, inputs: Inputs, targets: Tensor, /) -> Measured:
        """Runs forward and backward over examples [batch, ...], batch >= 1."""


class Penalty(NamedTuple):
    """Terms that a policy adds to the losses of a step; they follow from releases alone.

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
