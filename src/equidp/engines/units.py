"""Several rows per unit of privacy: the records of a person, or augmented views of an example.

A unit's loss is a weighted sum of its rows' losses, so it has one gradient, one norm and one clipped
contribution. The model reads rows as it always does: they are the first dimension of what it gets.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from equidp.engines.layers.sums import by_example
from equidp.engines.model import call_model
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, map_tensors, tensors
from equidp.losses import Loss, map_outputs


def by_row(units: Any) -> Any:
    """Return tensors [units, rows, ...] as [units * rows, ...], the rows of a unit one after the other.

    >>> by_row(torch.zeros(2, 3, 5)).shape
    torch.Size([6, 5])
    """
    return map_tensors(lambda each: each.flatten(0, 1), units)


@final
class UnitModel(nn.Module):
    """A model that reads units of several rows: inputs [units, rows, ...], outputs [units, rows, ...].

    Engines recognise it, and measure one gradient per unit. Its parameters are the parameters of the model
    inside.

    Args:
        model: reads rows, [batch, ...].

    >>> UnitModel(nn.Linear(5, 2))(torch.zeros(4, 3, 5)).shape
    torch.Size([4, 3, 2])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        units: Inputs = keywords or (arguments if len(arguments) > 1 else arguments[0])
        outputs = call_model(self.model, by_row(units))
        return map_outputs(lambda each: by_example(each, rows_in(units)), outputs)


def as_units(inputs: Inputs, targets: Tensor, rows: int = 1) -> tuple[Any, Tensor]:
    """Return single rows as units of `rows` rows, each of weight 1.

    Args:
        inputs: [batch, ...]; rows at the end that do not fill a unit are left out.
        targets: [batch], or with weights [batch, 2].

    >>> inputs, targets = as_units(torch.zeros(4, 5), torch.tensor([0, 1, 1, 0]), rows=2)
    >>> inputs.shape, targets[0]
    (torch.Size([2, 2, 5]), tensor([[0., 1.],
            [1., 1.]]))
    """
    count = len(targets) // rows * rows
    whole = targets if targets.dim() > 1 else torch.stack([targets.float(), torch.ones_like(targets)], dim=1)
    return map_tensors(lambda each: by_example(each[:count], rows), inputs), by_example(whole[:count], rows)


def reader_of(model: nn.Module, loss: LossFunction) -> nn.Module:
    """Return the model that reads a loss's examples: the model itself, or a `UnitModel` of it for units."""
    return UnitModel(model) if Loss.of(loss).several_rows else model


def rows_in(units: Inputs) -> int:
    """Return the number of rows of each unit.

    >>> rows_in((torch.zeros(4, 3, 5), torch.zeros(4, 3)))
    3
    """
    return int(tensors(units)[0].shape[1])
