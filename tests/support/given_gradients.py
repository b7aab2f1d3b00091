"""An engine made of given gradients."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from equidp.engines import MeasuredBatch
from equidp.kernel.engine import Sums


class GivenGradients:
    """Per-example gradients are the inputs, [batch, d], to see what the private step does with them."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter

    def __call__(self, inputs: Tensor, targets: Tensor) -> MeasuredBatch:
        return MeasuredBatch(torch.linalg.vector_norm(inputs, dim=1), partial(self._sums, inputs))

    def _sums(self, gradients: Tensor, weights: Tensor) -> Sums:
        kept = torch.isfinite(gradients).all(dim=1, keepdim=True)
        return {self.parameter: weights.double() @ torch.where(kept, gradients, 0.0).double()}
