"""PrivateClassifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equidp._extras import require_extra
from equidp._validate import check_number, unknown_name
from equidp.accounting.planned import release_event
from equidp.data.dataset import GroupedDataset
from equidp.data.table import COUNTS_SHARE
from equidp.data.targets import weights_of_classes
from equidp.errors import DataError, SettingError
from equidp.estimator.base import PrivateEstimator
from equidp.kernel.engine import LossFunction
from equidp.kernel.ledger import Payment, StepEvent
from equidp.losses import Loss
from equidp.tables.release import balanced_weights, private_counts
from equidp.training.trainer import Trainer

with require_extra("tables"):
    from sklearn.base import ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets

if TYPE_CHECKING:
    pass


@dataclass(eq=False, repr=False)
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
        learning_rate: of the optimizer; None: 0.5, or 0.01 of adam.
        momentum, weight_decay: of the optimizer.
        optimizer: "sgd", or "adam", which is `equidp.PrivateAdam`.
        schedule, average, average_share: of `equidp.Plan`: they cost no privacy.
        clipping_bound: C, or C_0 of the methods with several bounds.
        method_settings: of `equidp.Plan`: statistics_ratio, smoothing, strict_bound, initial_bound,
            bound_learning_rate, tolerance.
        rows_per_person: the most rows of a person that are trained on, public; for fit's `people`.
        accountant: a name from `equidp.accounting.ACCOUNTANTS`.
        class_weight: class -> number that multiplies the losses of its examples before their gradients are
            clipped, such as {"no": 1, "yes": 8} for a rare "yes"; classes that are left out have 1. Only
            ratios count: all are divided by the largest. The numbers must be public. They shift predicted
            probabilities towards heavy classes. "balanced": one over the size of the class, counted with
            noise for a share of epsilon. None: all are 1.
        counts_share: of epsilon, in (0, 1), that "balanced" counts classes with.
        rates, bound_shares: group -> public multiple of the sample rate, and share of the clipping bound, for
            fit's `sensitive_features`; "*": all other groups. Each group then has an epsilon of
            its own (`run_.epsilon_by_group()`), and `epsilon` is the largest.
        epsilon_by_group: group -> budget, such as {"rare": 1.0, "*": 3.0}, the largest of which is `epsilon`.
        protect_by: "sampling" or "scaling": rates, or shares of the bound, follow; see `equidp.Trainer`.
        loss: what is trained on: a function of (outputs
            [batch, classes], codes of classes [batch]) that gives one loss for each; None: cross-entropy.
        budget: what all fits together may spend, also those of clones; one beyond it raises a BudgetError.
        device: where to train and predict: "cpu", "cuda", "cuda:1", "mps"; or "auto", the first of cuda, mps
            and cpu that is there.
        random_state: None: samples and noise from the operating system. A seed, for research alone, warns.

    Attributes:
        classes_: class labels, [classes]; which there are is public.
        n_features_in_, feature_names_in_: columns seen in fit.
        group_names_: one per group; which there are is public.
        run_: the `equidp.Run`: model and what it spent.
        epsilon_spent_, delta_, noise_multiplier_: of this fit; epsilon with what "balanced" counted.
        class_weight_: weights in use, [classes]; what "balanced" gives is released, and may be shown.
        coef_, intercept_: of a linear model; other models have none.
        epsilon_total_: of this fit and the earlier ones of this estimator, for someone who is in the data of
            each; with a budget, of all that was charged to it, clones and other estimators included, and of
            this estimator's fits that were not.

    Example:
        >>> import numpy as np, equidp
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> classifier = equidp.PrivateClassifier(epsilon=3.0, epochs=2).fit(X, X[:, 0] > 0)
        >>> classifier.predict(X[:2]).shape, classifier.epsilon_spent_ <= 3.0
        ((2,), True)
    """

    class_weight: Mapping[Any, float] | str | None = field(default=None, kw_only=True)
    counts_share: float = field(default=COUNTS_SHARE, kw_only=True)
    rates: Mapping[str, float] | str | None = field(default=None, kw_only=True)
    bound_shares: Mapping[str, float] | str | None = field(default=None, kw_only=True)
    epsilon_by_group: Mapping[str, float] | str | None = field(default=None, kw_only=True)
    protect_by: str = field(default="sampling", kw_only=True)

    _loss = nn.CrossEntropyLoss(reduction="none")

    def _learn(self, y: Any) -> None:
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise DataError(f"y has one class only, {only!r}; a classifier needs at least two.", field="y")

    def _targets(self, y: npt.NDArray[Any]) -> Tensor:
        codes = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if (new := self.classes_[codes] != y).any():
            raise DataError(
                f"y holds {y[new].tolist()[0]!r}, which is not among the classes {self.classes_.tolist()}.",
                field="y",
            )
        return torch.from_numpy(codes.astype(np.int64))

    def _training_loss(self, loss: LossFunction) -> LossFunction:
        if self.class_weight is None:
            return loss
        if self._balanced:
            return Loss.of(loss).with_class_weights(torch.ones(self._num_outputs))
        if not isinstance(self.class_weight, Mapping):
            raise SettingError(
                f"class_weight={self.class_weight!r}; expected a dictionary from class to number, such as "
                "{'no': 1, 'yes': 8}, by public knowledge of how rare classes are, or 'balanced', which "
                "counts them with noise."
            )
        names = {label: str(label) for label in self.classes_.tolist()}
        for label in self.class_weight:
            if label not in names:
                raise unknown_name("class in class_weight", label, names.values())
        given = {names[label]: weight for label, weight in self.class_weight.items()}
        return Loss.of(loss).with_class_weights(weights_of_classes(given, tuple(names.values())))

    @property
    def _balanced(self) -> bool:
        return isinstance(self.class_weight, str) and self.class_weight == "balanced"

    def _releases(self, delta: float) -> tuple[StepEvent, ...]:
        if not self._balanced or self.epsilon is None:
            return ()
        check_number("(0, inf)", epsilon=self.epsilon)
        check_number("(0, 1)", counts_share=self.counts_share)
        return (release_event(self.counts_share * self.epsilon, delta),)

    def _release(self, payment: Payment | None, trainer: Trainer, targets: Tensor) -> None:
        found = Loss.of(trainer.loss).class_weights
        weights = torch.ones(self._num_outputs) if found is None else found
        if self._balanced:
            weights.copy_(self._weigh_classes(payment, trainer, targets))
        self.class_weight_ = weights.double().numpy()

    def _weigh_classes(self, payment: Payment | None, trainer: Trainer, targets: Tensor) -> Tensor:
        """Weights by the counts of classes, [classes]: noisy ones where training is private."""
        codes, deviation = targets.numpy(), 1.0
        if payment is not None:
            deviation = payment.draw()
            counts = private_counts(
                codes, self._num_outputs, noise_multiplier=deviation, randomness=trainer.randomness
            )
        else:
            counts = np.bincount(codes, minlength=self._num_outputs).astype(np.float64)
        weights = torch.from_numpy(balanced_weights(counts, deviation))
        return weights / weights.max()

    def _dataset(
        self, inputs: Tensor, targets: Tensor, groups: Tensor, weights: Tensor | None
    ) -> GroupedDataset:
        names = tuple(str(name) for name in self.classes_)
        return GroupedDataset(inputs, targets, groups, self.group_names_, names, weights=weights)

    def _check_weighted(self, targets: Tensor, weights: Tensor) -> None:
        if len(targets[weights > 0].unique()) < 2:
            raise DataError(
                "sample_weight leaves one class with weights above zero; a classifier needs at least two.",
                field="sample_weight",
            )

    @property
    def _num_outputs(self) -> int:
        return len(self.classes_)

    @property
    def coef_(self) -> npt.NDArray[np.float64]:
        """Coefficients of a linear model, [1, columns] for two classes, [classes, columns] for more."""
        weights, _ = self._coefficients("coef_")
        return weights[1:] - weights[:1] if len(weights) == 2 else weights

    @property
    def intercept_(self) -> npt.NDArray[np.float64]:
        """Intercepts of a linear model, [1] for two classes, [classes] for more."""
        _, intercepts = self._coefficients("intercept_")
        return intercepts[1:] - intercepts[:1] if len(intercepts) == 2 else intercepts

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Log odds of the second of two classes, [n]; of more classes, the logit of each, [n, classes]."""
        logits: npt.NDArray[np.float32] = self._outputs(X).numpy()
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probability of each class, [n, classes], in the order of `classes_`."""
        probabilities: npt.NDArray[np.float64] = torch.softmax(self._outputs(X).double(), dim=1).numpy()
        return probabilities

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable class of each example, [n]."""
        codes = self.predict_proba(X).argmax(axis=1)
        labels: npt.NDArray[Any] = self.classes_[codes]
        return labels
