"""Interface of engines: per-example gradient norms, then one weighted sum of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from equidp.kernel.inputs import Inputs

LossFunction = Callable[[Any, Any], Tensor]
"""(outputs [batch, ...], targets [batch, ...]) -> losses [batch], one per example; either may be a tuple or a
mapping of tensors, as the model and the data give them."""


LossOfExample = Callable[[dict[str, Tensor]], tuple[Tensor, Any]]
"""(trained parameters by name) -> loss of one example, a number, and the model's outputs for it, [1, ...]; a
tuple where they are several tensors."""

Context = tuple[Tensor, ...]
"""Public numbers beside the losses of examples, [batch, ...] each; empty for a policy that leaves losses."""

Sums = dict[nn.Parameter, Tensor]
"""Sums over examples in float64, [*shape], by parameter; one that no loss depends on may be missing."""


class Measured(Protocol):
    """A batch after its forward and backward pass: a value, independent of other batches.

    What is measured of an example follows from that example, its row of the context, and
    random numbers of the model, alone.

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
        """Terms that a policy adds to the losses, [batch, terms]; None without a context."""

    def sum_gradients(self, weights: Tensor, /) -> Sums:
        """Return sum_i weights[i] * gradient_i of the trainable parameters; once, and free the batch.

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

    def __call__(self, inputs: Inputs, targets: Inputs, /) -> Measured:
        """Run forward and backward over examples [batch, ...], batch >= 1."""


def measure(engine: Engine, inputs: Inputs, targets: Inputs, context: Context = ()) -> Measured:
    """Measure examples, [batch, ...], with their context where there is one.

    Then the engine has an attribute `objective`, that of the policy, which it applies to one example at a
    time, and takes the context after the targets.
    """
    measure: Callable[..., Measured] = engine
    return measure(inputs, targets, *context)
