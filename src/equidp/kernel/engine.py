"""Interface of engines: per-example gradient norms, then one weighted sum of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

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


class Measured(NamedTuple):
    """A batch after its forward and backward pass: a value, independent of other batches.

    What is measured of an example follows from that example, its row of the context, and
    random numbers of the model, alone.

    | example | norm | in the weighted sum |
    | --- | --- | --- |
    | loss and gradient finite | at least |gradient| (1 - 2^-13) | weight times gradient |
    | loss or gradient infinite or NaN | infinite or NaN | nothing, whatever its weight |

    Attributes:
        norms: of the per-example gradients over all trainable parameters, [batch], float32 or wider.
        terms: that a policy adds to the losses, [batch, terms]; None without a context.
        sums: function of finite weights [batch] that returns sum_i weights[i] * gradient_i. It holds what the
            batch needs, until it is dropped. Examples are added in float64, in parts of at most 2^13: the
            additions lose at most 2^-40 of sum_i weights[i] |gradient_i|, in whatever order they come, and
            2^-53 for each part more. Where the gradient of an example is a sum over positions that is not
            formed first, the sum of the lengths of its terms takes the place of |gradient_i|.
    """

    norms: Tensor
    terms: Tensor | None
    sums: Callable[[Tensor], Sums]


class Engine(Protocol):
    """Measures batches. Made from a model and a per-example loss; never sees groups, policies or noise.

    It keeps nothing about a batch: several measured batches may be in use at a time.
    """

    def __call__(self, inputs: Inputs, targets: Inputs, /, *context: Tensor) -> Measured:
        """Run forward and backward over examples [batch, ...], batch >= 1.

        An engine that is given a context has an attribute `objective`, that of the policy, which it applies
        to one example at a time. One whose gradients are not the model's, as an audit's canaries, has an
        attribute `made_up`, True: they are compared with no backward pass.
        """
