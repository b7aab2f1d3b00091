"""Trainable parameters moved for a while: what a model does behind a gate that starts at 0 shows then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equidp.engines.preserved import same

_SHARE = 0.1


@contextmanager
def moved(model: nn.Module) -> Iterator[None]:
    """Moves each trainable parameter, by the same numbers every time, and back at the end.

    A parameter of one value everywhere (a gate, a scale) is drawn anew, with its sign, or with any where it
    is 0, whatever its size: a closed gate opens. Others get normal noise of a tenth of their size. Weights
    are moved the less the more numbers they sum. What the model wrote to meanwhile is left as it is, for
    `trying.tried` to find.
    """
    generator = torch.Generator().manual_seed(6)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    after = {}
    for name, parameter in trained.items():
        parameter.data.copy_(_elsewhere(parameter.detach(), generator))
        after[name] = parameter.detach().clone()
    torch.clear_autocast_cache()  # copies from before the move
    try:
        yield
    finally:
        for name, parameter in trained.items():
            if same(parameter.detach(), after[name]):
                parameter.data.copy_(before[name])
        torch.clear_autocast_cache()


def _elsewhere(values: Tensor, generator: torch.Generator) -> Tensor:
    if not values.numel():
        return values
    usual = (len(values) / values.numel()) ** 0.5 if values.dim() > 1 else 1.0
    if (values == values.flatten()[0]).all():
        sizes = usual * (_SHARE + (1 - _SHARE) * torch.rand(values.shape, generator=generator))
        drawn = torch.randint(2, values.shape, generator=generator).to(values) * 2 - 1
        return torch.where(values == 0, drawn, values.sign()) * sizes.to(values)
    size = max(float(values.square().mean().sqrt()), usual)
    return values + _SHARE * size * torch.randn(values.shape, generator=generator).to(values)
