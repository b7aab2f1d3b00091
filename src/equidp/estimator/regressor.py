"""PrivateRegressor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import RegressorMixin
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from equidp.accounting.budget import PrivacyBudget
from equidp.errors import SettingError
from equidp.estimator.base import PrivateEstimator
from equidp.kernel.engine import LossFunction
from equidp.training.plan import ModelFactory


class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A regressor trained with differential privacy, by squared error.

    Args:
        model: "linear", "mlp", or a factory: ((number of columns,), 1) -> module.
        target_bounds: (low, high): a public range that y is clipped to and scaled by, to [-1, 1]; predictions
            are in the units of y again. None: y as it is, which should be of order one, since a clipped
            gradient takes large values step by step.

    Other arguments and attributes are those of `PrivateClassifier`.
    """

    _y_numeric = True

    def __init__(
        self,
        method: str = "dpsgd",
        epsilon: float | None = 3.0,
        delta: float | None = None,
        model: str | ModelFactory = "linear",
        *,
        target_bounds: tuple[float, float] | None = None,
        epochs: float = 20,
        batch_size: int | None = None,
        learning_rate: float = 0.5,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        clipping_bound: float = 1.0,
        method_settings: Mapping[str, Any] | None = None,
        accountant: str = "pld",
        budget: PrivacyBudget | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            method,
            epsilon,
            delta,
            model,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            clipping_bound=clipping_bound,
            method_settings=method_settings,
            accountant=accountant,
            budget=budget,
            random_state=random_state,
        )
        self.target_bounds = target_bounds

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

    @property
    def _loss(self) -> LossFunction:
        return _squared_error

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """In the units of y, [n]."""
        middle, width = self._scale()
        values: npt.NDArray[np.float64] = self._outputs(X).squeeze(1).numpy() * width + middle
        return values


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs.squeeze(1) - targets) ** 2
