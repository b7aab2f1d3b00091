"""Several rows per unit of privacy: the records of a person, or augmented views of an example.

A unit's loss is a weighted sum of its rows' losses, so it has one gradient, one norm and one clipped
contribution. The model reads rows as it always does: they are the first dimension of what it gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from equidp.engines.called import called
from equidp.engines.layers.sums import by_example
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, mapped, tensors


def by_row(units: Any) -> Any:
    """Returns tensors [units, rows, ...] as [units * rows, ...], the rows of a unit one after the other.

    >>> import torch
    >>> by_row(torch.zeros(2, 3, 5)).shape
    torch.Size([6, 5])
    """
    return mapped(lambda each: each.flatten(0, 1), units)


@final
class UnitModel(nn.Module):
    """A model that reads units of several rows: inputs [units, rows, ...], outputs [units, rows, ...].

    Engines know it, and measure one gradient per unit. Its parameters are those of the model inside.

    Args:
        model: reads rows, [batch, ...].

    >>> import torch
    >>> UnitModel(nn.Linear(5, 2))(torch.zeros(4, 3, 5)).shape
    torch.Size([4, 3, 2])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: Any, **keywords: Any) -> Tensor:
        units: Inputs = keywords or (arguments if len(arguments) > 1 else arguments[0])
        return by_example(called(self.model, by_row(units)), rows_in(units))


@final
@dataclass(frozen=True, eq=False)
class UnitLoss:
    """The loss of units: the sum of their rows' losses.

    Single rows, such as those of a test set, have the loss inside.

    Attributes:
        loss: (outputs, targets [batch, 2]) -> losses [batch], each times the weight in the target: see
            `equidp.data.weights.RowWeighted`.

    >>> import torch
    >>> from equidp.data.weights import RowWeighted
    >>> loss = UnitLoss(RowWeighted(nn.CrossEntropyLoss(reduction="none")))
    >>> loss(torch.zeros(1, 3, 2), torch.tensor([[[0, 1.0], [1, 1.0], [1, 0.0]]]))
    tensor([1.3863])
    """

    loss: LossFunction

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses, [units]; targets [units, rows, 2], classes or numbers and the rows' weights."""
        if targets.dim() < 3:
            return self.loss(outputs, targets)
        return by_example(self.loss(by_row(outputs), by_row(targets)), targets.shape[1]).sum(dim=1)


def rows_in(units: Inputs) -> int:
    """Returns how many rows each unit has.

    >>> import torch
    >>> rows_in((torch.zeros(4, 3, 5), torch.zeros(4, 3)))
    3
    """
    return int(tensors(units)[0].shape[1])
