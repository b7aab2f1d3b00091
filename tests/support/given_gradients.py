"""An engine made of given gradients."""

from __future__ import annotations

import torch
from torch import Tensor


class GivenGradients:
    """An engine whose per-example gradients are its inputs, [batch, d]: what the mechanism does with them is
    plain to see."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter
        self.gradients: Tensor | None = None

    def norms(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.gradients = inputs
        return torch.linalg.vector_norm(inputs, dim=1)

    def weighted_sum(self, weights: Tensor) -> None:
        assert self.gradients is not None
        total = weights @ self.gradients
        self.parameter.grad = total if self.parameter.grad is None else self.parameter.grad + total
        self.gradients = None
