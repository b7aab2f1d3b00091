"""An engine made of given gradients, and a loop over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from equidp.engines import MeasuredBatch
from equidp.kernel.engine import Sums
from equidp.kernel.loop import Batch, PrivateLoop
from equidp.kernel.step import PrivateStep


class GivenGradients:
    """Per-example gradients are the inputs, [batch, d], to see what the private step does with them."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter

    def __call__(self, inputs: Tensor, targets: Tensor) -> MeasuredBatch:
        norms = torch.linalg.vector_norm(inputs, dim=1)
        return MeasuredBatch(norms, partial(self._sums, inputs))

    def _sums(self, gradients: Tensor, weights: Tensor) -> Sums:
        kept = torch.isfinite(gradients).all(dim=1, keepdim=True)
        return {self.parameter: weights.double() @ torch.where(kept, gradients, 0.0).double()}


def loop_over(
    step: PrivateStep,
    gradients: Tensor,
    labels: Tensor | None,
    steps: int,
    groups: Tensor | None = None,
) -> PrivateLoop:
    """Return a loop over examples of these gradients, [n, d], labels and groups, [n]; parameters do not move.

    Groups are the labels, unless they are given too.
    """
    of = labels if groups is None else groups

    def load(samples: Iterable[Tensor]) -> Iterator[Batch]:
        for sample in samples:
            yield Batch(gradients[sample], torch.zeros(len(sample)), of[sample], sample)

    model = torch.nn.Module()
    model.weight = step.parameters[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return PrivateLoop(
        step, model, optimizer, num_examples=len(gradients), steps=steps, load=load, labels=labels
    )
