"""Targets that are numbers in a public range: their loss, and models that answer in their units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from equidp.errors import DataError

Bounds = tuple[float, float]


@final
@dataclass(frozen=True)
class SquaredError:
    """Half the squared error of predictions, in half widths of a public range that targets are clipped to.

    Attributes:
        bounds: (low, high) of the targets.

    >>> SquaredError((0.0, 100.0))(torch.tensor([[50.0], [100.0]]), torch.tensor([0.0, 700.0]))
    tensor([0.5000, 0.0000])
    """

    bounds: Bounds

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses, [batch], of outputs [batch, 1]."""
        low, high = self.bounds
        return 0.5 * ((outputs.squeeze(1) - targets.clamp(low, high)) / ((high - low) / 2)) ** 2


@final
class InUnits(nn.Module):
    """Turns outputs of order one into the units of a public range: -1 is its low end, and 1 its high end."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        low, high = bounds
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs * self._half + self._middle


def in_units(
    factory: Callable[[tuple[int, ...], int], nn.Module], bounds: Bounds | None
) -> Callable[[tuple[int, ...], int], nn.Module]:
    """Returns a factory of models that answer in the units of a range; the same factory for classes.

    >>> from equidp.models import logistic
    >>> in_units(logistic, (0.0, 100.0))((3,), 1)(torch.zeros(2, 3)).shape
    torch.Size([2, 1])
    """
    if bounds is None:
        return factory
    return lambda shape, outputs: nn.Sequential(factory(shape, outputs), InUnits(bounds))


def check_numbers(targets: Tensor) -> None:
    """Raises a DataError unless targets are finite numbers, [n]."""
    if not targets.is_floating_point() or not torch.isfinite(targets).all():
        raise DataError(f"targets have dtype {targets.dtype}; expected finite floating-point numbers.")
