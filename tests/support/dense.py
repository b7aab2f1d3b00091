"""Diagnoses the dense way: per-example gradients and whole Hessians of small models, in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev

from support.oracle import loss


def _by_parameters(model: nn.Module, inputs: Tensor, targets: Tensor):
    """Losses as a function of one flat vector of the trained parameters, and that vector."""
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    shapes = {name: value.shape for name, value in trained.items()}

    def losses(vector: Tensor) -> Tensor:
        parts = vector.split([shape.numel() for shape in shapes.values()])
        values = {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        return loss(functional_call(model, values, (inputs,)), targets)

    return losses, torch.cat([value.detach().flatten() for value in trained.values()])


def gradients(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Per-example gradients, [n, parameters]."""
    losses, vector = _by_parameters(model, inputs, targets)
    return jacrev(losses)(vector)


def full_hessian(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Of the mean loss, [parameters, parameters]."""
    losses, vector = _by_parameters(model, inputs, targets)
    return hessian(lambda values: losses(values).mean())(vector)
