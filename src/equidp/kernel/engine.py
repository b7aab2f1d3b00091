"""Interface of engines: per-example gradient norms, then one weighted sum of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from equidp.kernel.inputs import Inputs

LossFunction = Callable[[Any, Any], Tensor]
"""(outputs [batch, ...], targets [batch, ...]) -> losses [batch], one per example. Outputs and targets may be
tuples or mappings of tensors."""


LossOfExample = Callable[[dict[str, Tensor]], tuple[Tensor, Any]]
"""(trained parameters by name) -> loss of one example, a number, and the model's outputs for it, [1, ...]; a
tuple if they are several tensors."""

Context = tuple[Tensor, ...]
"""Public numbers for the losses of examples, [batch, ...] each, or empty if the policy changes no loss."""

Sums = dict[nn.Parameter, Tensor]
"""Sums over examples in float64, [*shape], by parameter, perhaps without those that no loss depends on."""


class Measured(NamedTuple):
    """A batch after its forward and backward pass, independent of other batches.

    The measurements of an example are functions only of that example, its row of the context, and random
    numbers of the model.

    | example | norm | in the weighted sum |
    | --- | --- | --- |
    | loss and gradient finite | at least |gradient| (1 - 2^-13) | weight times gradient |
    | loss or gradient infinite or NaN | infinite or NaN | nothing, for any weight |

    Attributes:
        norms: per-example gradient norms over all trainable parameters, [batch], float32 or wider.
        terms: terms that a policy adds to the losses, [batch, terms], or None without a context.
        sums: function of finite weights [batch] that returns sum_i weights[i] * gradient_i. It keeps what it
            needs of the batch in memory until it is deleted. Examples are added in float64, in parts of at
            most 2^13. In any order, the additions lose at most 2^-40 of sum_i weights[i] |gradient_i|, and
            2^-53 of it more for each part. If an example's gradient is a sum over positions and is not formed
            first, the sum of the norms of its terms replaces |gradient_i|.
    """

    norms: Tensor
    terms: Tensor | None
    sums: Callable[[Tensor], Sums]


class Engine(Protocol):
    """Measures batches. Made from a model and a per-example loss; never sees groups, policies or noise.

    It stores nothing about a batch, so several measured batches may be in use at a time.
    """

    def __call__(self, inputs: Inputs, targets: Inputs, /, *context: Tensor) -> Measured:
        """Run forward and backward over examples [batch, ...], batch >= 1.

        If a context is passed, the engine needs the policy's `objective` as an attribute, and applies it to
        one example at a time. If an engine's gradients are not the model's, such as an audit's canaries, it
        has an attribute `made_up`, True. Its gradients are not compared with a backward pass.
        """
