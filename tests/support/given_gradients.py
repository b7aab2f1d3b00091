"""An engine made of given gradients."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from equidp.engines import MeasuredBatch


class GivenGradients:
    """Per-example gradients are the inputs, [batch, d], to see what the private step does with them."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter

    def __call__(self, inputs: Tensor, targets: Tensor) -> MeasuredBatch:
        return MeasuredBatch(torch.linalg.vector_norm(inputs, dim=1), partial(self._add, inputs))

    def _add(self, gradients: Tensor, weights: Tensor) -> None:
        total = weights @ gradients
        self.parameter.grad = total if self.parameter.grad is None else self.parameter.grad + total
