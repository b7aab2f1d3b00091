"""Leaves a model as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; modes, gradients and random numbers as before outside."""
    modes = {module: module.training for module in model.modules()}
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with torch.random.fork_rng():
            model.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for parameter, gradient in gradients:
            parameter.grad = gradient


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of a model's parameters."""
    return next(model.parameters()).device


def flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """Returns all gradients as one vector, [parameters]; zeros where there is none."""
    pairs = zip(gradients, parameters, strict=True)
    return torch.cat(
        [(torch.zeros_like(like) if each is None else each).detach().flatten() for each, like in pairs]
    )
