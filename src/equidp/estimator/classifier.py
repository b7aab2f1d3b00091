"""PrivateClassifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn

from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError
from equidp.estimator.base import PrivateEstimator


class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A classifier trained with differential privacy.

    Columns of X should be of similar scale, by public numbers: what preprocessing learns from the data is not
    covered by epsilon.

    Args:
        method: a name from `equidp.METHODS`. Methods that tell groups apart need fit's `sensitive_features`.
        epsilon: what one fit spends; None for method "sgd" alone, which is not private.
        delta: None: a tenth of 1 / n, rounded down to a power of ten.
        model: "logistic", "mlp", or a factory: ((number of columns,), number of classes) -> module.
        epochs: passes over the data.
        batch_size: b, expected; None: 256, or n where that is less.
        learning_rate, momentum, weight_decay: of SGD.
        clipping_bound: C, or C_0 of the methods with several bounds.
        method_settings: of `equidp.Plan`: statistics_ratio, smoothing, strict_bound, initial_bound,
            bound_learning_rate, tolerance.
        accountant: a name from `equidp.accounting.ACCOUNTANTS`.
        budget: what all fits together may spend, also those of clones; one beyond it raises a BudgetError.
        random_state: None: samples and noise from the operating system. A seed, for research alone, warns.

    Attributes:
        classes_: class labels, [classes]; which there are is public.
        n_features_in_, feature_names_in_: columns seen in fit.
        group_names_: one per group; which there are is public.
        run_: the `equidp.Run`: model and what it spent.
        epsilon_spent_, delta_, noise_multiplier_: of this fit.
        epsilon_total_: of this fit and the earlier ones on the same people, as far as this process knows
            (`equidp.estimator.fits`); or all that was spent of the budget.
    """

    _loss = nn.CrossEntropyLoss(reduction="none")

    def _targets(self, y: npt.NDArray[Any]) -> Tensor:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise DataError(f"y has one class only, {only!r}; a classifier needs at least two.")
        return torch.from_numpy(codes.astype(np.int64))

    def _dataset(self, inputs: Tensor, targets: Tensor, groups: Tensor) -> GroupedDataset:
        names = tuple(str(name) for name in self.classes_)
        return GroupedDataset(inputs, targets, groups, self.group_names_, names)

    @property
    def _num_outputs(self) -> int:
        return len(self.classes_)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probability of each class, [n, classes], in the order of `classes_`."""
        probabilities: npt.NDArray[np.float64] = torch.softmax(self._outputs(X), dim=1).numpy()
        return probabilities

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable class of each example, [n]."""
        codes = self.predict_proba(X).argmax(axis=1)
        labels: npt.NDArray[Any] = self.classes_[codes]
        return labels
