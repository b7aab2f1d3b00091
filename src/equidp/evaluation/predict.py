"""Predictions of a trained model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equidp.engines.preserved import device_of

_CHUNK = 4096  # examples predicted at a time


def diverged(model: nn.Module) -> bool:
    """Returns whether training left weights that are NaN or infinite."""
    return not all(torch.isfinite(parameter).all() for parameter in model.parameters())


def predict(model: nn.Module, inputs: Tensor) -> Tensor:
    """Returns the model's outputs in evaluation mode, [n, ...], on the CPU; in chunks, to bound memory."""
    was_training = model.training
    device = device_of(model)
    model.eval()
    try:
        with torch.no_grad():
            return torch.cat([model(chunk.to(device)).cpu() for chunk in torch.split(inputs, _CHUNK)])
    finally:
        model.train(was_training)
