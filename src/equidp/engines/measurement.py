"""Measured batches, with norms and a weighted sum of gradients, and gradient norms of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from equidp.kernel.engine import Context, Engine, Sums, measure
from equidp.kernel.inputs import Inputs, in_parts, moved_to

Examples = tuple[Inputs, Inputs]
"""Inputs and targets, [batch, ...]."""


@final
class MeasuredBatch:
    """Norms of a batch and, once, a weighted sum of its gradients; see `kernel.engine.Measured`.

    Args:
        norms: [batch].
        sum_under: function of weights [batch] that returns the weighted sum. It holds all tensors that this
            takes, and is dropped after its only use.
        redraw_mask: mask of examples that got other random numbers (dropout) when a module was run again,
            [batch]; None: no example did.
        terms: terms that a policy adds to the losses, [batch, terms]; None: no context.
    """

    def __init__(
        self,
        norms: Tensor,
        sum_under: Callable[[Tensor], Sums],
        redraw_mask: Tensor | None = None,
        terms: Tensor | None = None,
    ) -> None:
        self.norms, self.redraw_mask, self.terms = norms, redraw_mask, terms
        self._sum_under: Callable[[Tensor], Sums] | None = sum_under

    def sum_gradients(self, weights: Tensor) -> Sums:
        """See `kernel.engine.Measured`.

        Raises:
            RuntimeError: at the second use, of this or of `weighted_sum`.
        """
        if self._sum_under is None:
            raise RuntimeError(
                "the weighted sum of this batch was taken before, which freed its gradients; measure the "
                "batch again: engine(inputs, targets)."
            )
        sum_under, self._sum_under = self._sum_under, None
        return sum_under(weights)

    def weighted_sum(self, weights: Tensor) -> None:
        """Add sum_i weights[i] * gradient_i to p.grad (created where missing), for a loop without noise."""
        for parameter, total in self.sum_gradients(weights).items():
            total = total.to(parameter)
            parameter.grad = total if parameter.grad is None else parameter.grad + total


def dataset_norms(
    engine: Engine,
    inputs: Inputs,
    targets: Inputs,
    chunk_size: int = 256,
    device: torch.device | None = None,
    context: Context = (),
) -> Tensor:
    """Return the gradient norm of each example at the model's present parameters, [n].

    They are private: never release them. Costs less than training on as many examples: no sum is taken.

    Args:
        engine: of the model.
        inputs, targets: [n, ...], n >= 1.
        chunk_size: examples at a time; bounds memory.
        device: device of the model, to which each chunk is moved; None: the examples are already there.
        context: of a policy that changes losses, [n, ...] each.

    >>> from equidp.engines import make_engine
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> weight = torch.nn.init.zeros_(model.weight)  # each class has probability 1/2
    >>> engine = make_engine("ghost", model, torch.nn.CrossEntropyLoss(reduction="none"))
    >>> dataset_norms(engine, torch.ones(5, 2), torch.zeros(5, dtype=torch.int64))
    tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
    """
    parts = iter(in_parts((inputs, targets, context), chunk_size))
    if device is not None:
        parts = (moved_to(part, device) for part in parts)
    return torch.cat([measure(engine, *part).norms.detach() for part in parts])
