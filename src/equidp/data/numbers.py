"""Targets that are numbers in a public range, and models that answer in their units."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from equidp.errors import DataError

Bounds = tuple[float, float]


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
