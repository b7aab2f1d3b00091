"""An engine made of given gradients, and a run over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from equidp.kernel.engine import Measured, Sums
from equidp.kernel.run import Batch, PrivateRun
from equidp.kernel.step import PrivateStep
from equidp.ledger.ledger import Ledger


class GivenGradients:
    """Per-example gradients are the inputs, [batch, d], to see what the private step does with them."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter

    def __call__(self, inputs: Tensor, targets: Tensor) -> Measured:
        norms = torch.linalg.vector_norm(inputs, dim=1)
        return Measured(norms, None, partial(self._sums, inputs))

    def _sums(self, gradients: Tensor, weights: Tensor) -> Sums:
        kept = torch.isfinite(gradients).all(dim=1, keepdim=True)
        return {self.parameter: weights.double() @ torch.where(kept, gradients, 0.0).double()}


def run_over(
    step: PrivateStep,
    gradients: Tensor,
    labels: Tensor | None,
    steps: int,
    groups: Tensor | None = None,
    ledger: Ledger | None = None,
    seen: list[Batch] | None = None,
) -> PrivateRun:
    """Return a run over examples of these gradients, [n, d], labels and groups, [n]; parameters do not move.

    Groups are the labels, unless they are given too. Samples that are loaded are put into `seen`.
    """
    of = labels if groups is None else groups

    def load(samples: Iterable[Tensor]) -> Iterator[Batch]:
        for sample in samples:
            batch = Batch(gradients[sample], torch.zeros(len(sample)), of[sample], sample)
            if seen is not None:
                seen.append(batch)
            yield batch

    model = torch.nn.Module()
    model.weight = step.parameters[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return PrivateRun(
        step,
        model,
        optimizer,
        Ledger() if ledger is None else ledger,
        num_examples=len(gradients),
        steps=steps,
        load=load,
        groups=labels,
    )
