"""PrivateRegressor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import RegressorMixin
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from equidp.errors import SettingError
from equidp.estimator.base import PrivateEstimator
from equidp.training.plan import ModelFactory


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs.squeeze(1) - targets) ** 2


@dataclass(eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A regressor trained with differential privacy, by squared error.

    Args:
        model: "linear", "mlp", or a factory: ((number of columns,), 1) -> module.
        target_bounds: (low, high): a public range that y is clipped to and scaled by, to [-1, 1]; predictions
            are in the units of y again. None: y as it is, which should be of order one, since a clipped
            gradient takes large values step by step.

    Other arguments and attributes are those of `PrivateClassifier`.
    """

    model: str | ModelFactory = "linear"
    target_bounds: tuple[float, float] | None = field(default=None, kw_only=True)

    _y_numeric = True
    _loss = staticmethod(_squared_error)

    def _model(self) -> str | ModelFactory:
        # Without a softmax behind it, logistic regression is a linear model.
        return "logistic" if self.model == "linear" else self.model

    def _scale(self) -> tuple[float, float]:
        """Middle and half width of the public range of y."""
        if self.target_bounds is None:
            return 0.0, 1.0
        low, high = self.target_bounds
        if not -math.inf < low < high < math.inf:
            raise SettingError(
                f"target_bounds={self.target_bounds}; expected (low, high), finite, with low < high."
            )
        return (low + high) / 2, (high - low) / 2

    def _targets(self, y: npt.NDArray[Any]) -> Tensor:
        middle, width = self._scale()
        values = (y.astype(np.float64) - middle) / width
        if self.target_bounds is not None:
            values = values.clip(-1.0, 1.0)
        return torch.from_numpy(values.astype(np.float32))

    def _dataset(self, inputs: Tensor, targets: Tensor, groups: Tensor) -> Dataset[Any]:
        return TensorDataset(inputs, targets, groups)

    @property
    def _num_outputs(self) -> int:
        return 1

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """In the units of y, [n]."""
        middle, width = self._scale()
        values: npt.NDArray[np.float64] = self._outputs(X).squeeze(1).numpy() * width + middle
        return values
