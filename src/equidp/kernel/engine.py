"""What a gradient engine does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs [batch, ...], targets [batch, ...]) -> losses [batch], one per example."""


class GradientEngine(Protocol):
    """Per-example gradient norms, then one weighted sum of the same gradients.

    An engine is made from a model and a per-example loss function. Its work comes in pairs: `norms` for a batch, then at most one
    `weighted_sum` for that same batch. Engines never see groups, policies or noise.
    """

    def norms(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward; returns the per-example gradient norms over all trainable parameters, [batch], float32 or wider.

        The norm of an example whose loss or gradient is not finite is not finite; other examples are unaffected.
        """

    def weighted_sum(self, weights: Tensor) -> None:
        """Adds sum_i weights[i] * gradient_i into p.grad (creating it) of each trainable parameter; frees what norms() kept.

        weights: [batch]. Every example of the batch has a finite norm: the mechanism takes others out before it asks for a sum.
        """
