"""Contexts that restore a model, its device, its gradients as one vector, and a comparison of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equidp.kernel.engine import Sums
from equidp.kernel.generators import restore_generators


@contextmanager
def preserve_model(model: nn.Module) -> Iterator[None]:
    """Restores the model's modes, its gradients and random numbers at the end of the context."""
    modes = {module: module.training for module in model.modules()}
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with restore_generators(*(parameter.device for parameter in model.parameters())):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Sets the model to evaluation mode inside the context; restores as `preserve_model` at the end."""
    with preserve_model(model):
        model.eval()
        yield


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of the model's first parameter: examples are moved there."""
    return next(model.parameters()).device


def flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """Returns all gradients as one vector, [parameters]; zeros for None."""
    return torch.cat(
        [
            (torch.zeros_like(parameter) if gradient is None else gradient).detach().flatten()
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
    )


def flat_sums(sums: Sums, parameters: Sequence[nn.Parameter]) -> Tensor:
    """Returns weighted sums as one vector in the parameters' precision, [parameters]; zeros for
    missing ones."""
    return flat([sums[each].to(each) if each in sums else None for each in parameters], parameters)


def same(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors are equal in shape, type and value; NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
