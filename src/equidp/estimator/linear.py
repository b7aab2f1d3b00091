"""The coefficients of a linear model behind an estimator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import nn

Floats = npt.NDArray[np.float64]


def coefficients(model: nn.Module, asked: str) -> tuple[Floats, Floats]:
    """Returns weights, [outputs, columns], and intercepts, [outputs], of a model of one linear layer.

    Raises:
        AttributeError: the model has other parts, so that it has no attribute `asked`.

    >>> weights, intercepts = coefficients(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), "coef_")
    >>> weights.shape, intercepts.shape
    ((2, 3), (2,))
    """
    containers = (nn.Sequential, nn.Flatten, nn.Identity)
    parts = [part for part in model.modules() if type(part) not in containers]
    if len(parts) != 1 or type(parts[0]) is not nn.Linear:
        raise AttributeError(f"{asked} is of linear models, and this one has other layers: {model}")
    weight = parts[0].weight.detach().cpu().double().numpy()
    bias = np.zeros(len(weight)) if parts[0].bias is None else parts[0].bias.detach().cpu().double().numpy()
    return weight, bias
