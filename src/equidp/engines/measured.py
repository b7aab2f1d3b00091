"""What the engines return for a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor

from equidp.kernel.inputs import Inputs


@final
class MeasuredBatch:
    """Norms of a batch and, once, a weighted sum of its gradients; see `kernel.engine.Measured`.

    Args:
        norms: [batch].
        add: adds the sum under weights [batch] to p.grad. It holds all that this takes, and is dropped after
            its only use.
        drew_otherwise: which examples got other random numbers (dropout) where a module was run again,
            [batch]; None: none did.
        terms: that a penalty added to the losses, [batch, 2]; None: it added none.
    """

    def __init__(
        self,
        norms: Tensor,
        add: Callable[[Tensor], None],
        drew_otherwise: Tensor | None = None,
        terms: Tensor | None = None,
    ) -> None:
        self.norms, self.drew_otherwise, self.terms = norms, drew_otherwise, terms
        self._add: Callable[[Tensor], None] | None = add

    def weighted_sum(self, weights: Tensor) -> None:
        """See `kernel.engine.Measured`.

        Raises:
            RuntimeError: at the second use.
        """
        if self._add is None:
            raise RuntimeError(
                "the weighted sum of this batch was taken before, which freed its gradients; measure the "
                "batch again: engine(inputs, targets)."
            )
        add, self._add = self._add, None
        add(weights)


MeasuringEngine = Callable[[Inputs, Tensor], MeasuredBatch]
"""(inputs [batch, ...], targets [batch, ...]) -> the measured batch."""
