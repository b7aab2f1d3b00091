"""Examples of several rows, held to the oracle of single backward passes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from equidp.engines import ENGINES
from equidp.engines.units import UnitModel
from equidp.kernel.inputs import Inputs
from equidp.losses import Loss
from support.oracle import assert_exact, loss

LOSS = Loss(loss).by_example()


def ragged(units: int, rows: int, precision: torch.dtype = torch.float64) -> Tensor:
    """Targets [units, rows, 2] of units that have from one row to all of them; one counts for a half."""
    classes = torch.arange(units * rows).reshape(units, rows) % 2
    present = torch.arange(rows) <= torch.arange(units).unsqueeze(1) % rows
    weights = present.to(precision)
    weights[-1, 0] = 0.5
    return torch.stack([classes.to(precision), weights], dim=2)


def assert_units(
    model: nn.Module,
    inputs: Inputs,
    units: int,
    rows: int,
    *,
    engines: Iterable[str] = ENGINES,
    tolerance: float = 1e-10,
) -> None:
    """Norms and sums of units with all of these rows, and of ragged ones, by these engines."""
    precision = next(model.parameters()).dtype
    whole = ragged(units, rows, precision)
    whole[..., 1] = 1.0
    for engine in engines:
        for targets in (whole, ragged(units, rows, precision)):
            assert_exact(UnitModel(model), inputs, targets, loss=LOSS, engine=engine, tolerance=tolerance)
