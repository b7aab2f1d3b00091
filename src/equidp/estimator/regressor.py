"""PrivateRegressor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from equidp._extras import require_extra
from equidp.data.targets import with_weights
from equidp.errors import SettingError
from equidp.estimator.base import PrivateEstimator, Progress, check_open_ended
from equidp.training.plan import ModelFactory

with require_extra("tables"):
    from sklearn.base import RegressorMixin

if TYPE_CHECKING:
    from typing import Self


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
        loss: as there, of outputs [batch, 1] and targets [batch], scaled where there are bounds; None: half
            the squared error.

    Other arguments and attributes are those of `PrivateClassifier`.

    Example:
        >>> import numpy as np, equidp
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> regressor = equidp.PrivateRegressor(epsilon=3.0, epochs=2, target_bounds=(-3, 3)).fit(X, X[:, 0])
        >>> bool(abs(regressor.predict(X)).max() <= 3)
        True
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
        bounds = self.target_bounds
        given = tuple(bounds) if isinstance(bounds, Iterable) else ()
        if not (
            len(given) == 2
            and all(isinstance(each, Real) for each in given)
            and -math.inf < given[0] < given[1] < math.inf
        ):
            raise SettingError(f"target_bounds={bounds!r}; expected (low, high), finite, with low < high.")
        low, high = map(float, given)
        return (low + high) / 2, (high - low) / 2

    def partial_fit(self, X: Any, y: Any, sensitive_features: Any = None, sample_weight: Any = None) -> Self:
        """Train the model further on more rows, by `epochs` passes over them; spend `epsilon` each time.

        Arguments are those of `fit`; see `PrivateClassifier.partial_fit`.
        """
        check_open_ended(self)
        progress = getattr(self, "_progress", None)
        if progress is None:
            progress = Progress(spent=self._list_spent())
        elif (now := self._scale()) != self._fitted_scale:
            middle, width = self._fitted_scale
            raise SettingError(
                f"target_bounds={self.target_bounds} scale y by {now[1]:g} around {now[0]:g}, and earlier "
                f"calls by {width:g} around {middle:g}, which the model learnt; give the same, or use fit."
            )
        with self._unchanged_unless_spent(progress):
            return self._train(X, y, sensitive_features, sample_weight, progress)

    def _learn(self, y: Any) -> None:
        """There is nothing to learn: bounds are public."""

    def _targets(self, y: npt.NDArray[Any]) -> Tensor:
        self._fitted_scale = middle, width = self._scale()
        values = (y.astype(np.float64) - middle) / width
        if self.target_bounds is not None:
            values = values.clip(-1.0, 1.0)
        return torch.from_numpy(values.astype(np.float32))

    def _dataset(
        self, inputs: Tensor, targets: Tensor, groups: Tensor, weights: Tensor | None
    ) -> Dataset[Any]:
        return TensorDataset(inputs, targets if weights is None else with_weights(targets, weights), groups)

    @property
    def coef_(self) -> npt.NDArray[np.float64]:
        """Coefficients of a linear model in the units of y, [columns]."""
        weights, _ = self._coefficients("coef_")
        values: npt.NDArray[np.float64] = weights[0] * self._fitted_scale[1]
        return values

    @property
    def intercept_(self) -> float:
        """Intercept of a linear model in the units of y."""
        _, intercepts = self._coefficients("intercept_")
        middle, width = self._fitted_scale
        return float(intercepts[0]) * width + middle

    @property
    def _num_outputs(self) -> int:
        return 1

    def predict(self, X: Any) -> npt.NDArray[np.float32]:
        """In the units of y, [n], as precise as the model computes."""
        outputs = self._outputs(X)
        middle, width = self._fitted_scale
        values: npt.NDArray[np.float64] = outputs.squeeze(1).double().numpy() * width + middle
        return values.astype(np.float32)
