"""PrivateClassifier: settings, one private training for each fit, and the total of its fits."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equidp._extras import require_extra
from equidp._validate import unknown_name
from equidp.accounting.planned import COUNTS, check_share
from equidp.data.class_counts import balanced_class_weights, count_classes
from equidp.data.dataset import GroupedDataset
from equidp.data.table import COUNTS_SHARE
from equidp.errors import DataError, PrivacyWarning, SettingError
from equidp.estimator.inputs import (
    check_groups,
    check_known,
    check_numbers,
    check_order,
    float_rows,
    groups_of,
    people_of,
    weights_of_rows,
)
from equidp.evaluation.predictions import predict
from equidp.kernel.engine import LossFunction
from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.kernel.event import EventCounts
from equidp.ledger.ledger import Ledger
from equidp.ledger.renyi import renyi_epsilon
from equidp.losses import Loss
from equidp.training.build import build, build_model
from equidp.training.device import chosen_device
from equidp.training.optimizers import ADAM_RATE
from equidp.training.plan import ModelFactory, Plan
from equidp.training.release import Release
from equidp.training.resolved import ResolvedPlan
from equidp.training.trainer import Trainer

with require_extra("tables"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data

if TYPE_CHECKING:
    from typing import Self

Floats = npt.NDArray[np.float64]

_LARGEST_BATCH = 256
_SGD_RATE = 0.5
_BALANCED = "balanced"


@dataclass(eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier trained with differential privacy.

    Scale the columns of X similarly, by public numbers. Epsilon does not cover what preprocessing learns from
    the data.

    Args:
        method: name from `equidp.METHODS`. Methods that treat groups differently need fit's
            `sensitive_features`.
        epsilon: epsilon of one fit; None only for method "sgd", which is not private.
        delta: delta of one fit. None: a tenth of 1 / n, rounded down to a power of ten.
        model: "logistic", "mlp", or a factory: ((number of columns,), number of classes) -> module.
        epochs: number of passes over the data.
        batch_size: expected batch size b. None: 256, or n if that is less.
        learning_rate: learning rate. None: 0.5, or 0.01 with adam.
        momentum, weight_decay: settings of the optimizer.
        optimizer: "sgd", or "adam", which is `equidp.PrivateAdam`.
        schedule, average, average_share: as in `equidp.Plan`. They cost no privacy.
        clipping_bound: clipping bound C, or C_0 of the methods with several bounds.
        method_settings: as in `equidp.Plan`: statistics_ratio, smoothing, strict_bound, initial_bound,
            bound_learning_rate, tolerance.
        rows_per_person: public maximum of training rows per person, for fit's `people`.
        accountant: name from `equidp.accounting.ACCOUNTANTS`.
        class_weight: class -> public number that multiplies the losses of its examples before clipping, such
            as {"no": 1, "yes": 8} for a rare "yes". Other classes have 1. Only ratios matter, because all
            weights are divided by the largest. Weights shift predicted probabilities towards heavy classes.
            "balanced": one over the class size, counted with noise for a share of epsilon. None: all are 1.
        counts_share: share of epsilon, in (0, 1), for the class counts of "balanced".
        rates, bound_shares: group -> public multiple of the sampling rate, and group -> share of the clipping
            bound, for fit's `sensitive_features`. "*" means all other groups. Each group then has its own
            epsilon (`run_.epsilon_by_group()`), and `epsilon` is the largest.
        epsilon_by_group: group -> budget, such as {"rare": 1.0, "*": 3.0}. `epsilon` is the largest budget.
        protect_by: "sampling" or "scaling": whether rates or bound shares follow from budgets, as in
            `equidp.Plan`.
        loss: function of (outputs [batch, classes], class codes [batch]) that returns one loss per example.
            None: cross-entropy.
        ledger: `equidp.Ledger` of all fits on this data, including fits of clones. A fit that exceeds its
            limit raises a BudgetError.
        device: device for training and prediction: "cpu", "cuda", "cuda:1", "mps", or "auto", the first of
            cuda, mps and cpu that is available.
        random_state: None: samples and noise from the operating system. A seed is only for research, and
            gives a warning.

    Attributes:
        classes_: class labels, [classes]. The list of classes is public.
        n_features_in_, feature_names_in_: columns seen in fit.
        group_names_: one name per group. The list of groups is public.
        run_: `equidp.Run` with the model and what it spent.
        epsilon_spent_, delta_, noise_multiplier_: values of this fit. epsilon includes the class counts of
            "balanced".
        class_weight_: weights in use, [classes]. The weights of "balanced" are released, and may be shown.
        coef_, intercept_: coefficients and intercepts of a linear model. Other models have none.
        epsilon_total_: epsilon of this fit and this estimator's earlier fits together, for someone who is in
            the data of each, by Renyi divergences at one order. With a ledger, it covers all entries of the
            ledger, also from clones and other estimators, and this estimator's fits that the ledger does not
            have.

    Example:
        >>> import numpy as np, equidp
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> classifier = equidp.PrivateClassifier(epsilon=3.0, epochs=2).fit(X, X[:, 0] > 0)
        >>> classifier.predict(X[:2]).shape, classifier.epsilon_spent_ <= 3.0
        ((2,), True)
    """

    method: str = "dpsgd"
    epsilon: float | None = 3.0
    delta: float | None = None
    model: str | ModelFactory = "logistic"
    _: KW_ONLY
    epochs: float = 20
    batch_size: int | None = None
    learning_rate: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    schedule: str = "constant"
    average: str = "none"
    average_share: float = Plan.average_share
    clipping_bound: float = 1.0
    method_settings: Mapping[str, Any] | None = None
    rows_per_person: int | None = None
    class_weight: Mapping[Any, float] | str | None = None
    counts_share: float = COUNTS_SHARE
    rates: Mapping[str, float] | str | None = None
    bound_shares: Mapping[str, float] | str | None = None
    epsilon_by_group: Mapping[str, float] | str | None = None
    protect_by: str = "sampling"
    loss: str | LossFunction | None = None
    accountant: str = "pld"
    ledger: Ledger | None = None
    device: str = "cpu"
    random_state: int | np.random.RandomState | None = None

    def fit(
        self,
        X: Any,
        y: Any,
        sensitive_features: Any = None,
        sample_weight: Any = None,
        people: Any = None,
    ) -> Self:
        """Train a new model. Each fit spends `epsilon`.

        Args:
            X: [n, d], numbers without NaN: an array or a pandas table.
            y: class labels, [n].
            sensitive_features: each example's group, [n], or [n, columns], which are crossed. For methods
                that treat groups differently. Rows are matched by position, as in all of scikit-learn.
            sample_weight: [n], numbers >= 0 that multiply each row's loss before its gradient is clipped.
                They must be public, or computed from only that row. Then they cost no privacy, because every
                gradient is bounded as without them. Scale them to at most about 1: above clipping bound /
                norm, a weight has no further effect.
            people: person of each row, [n]. It requires `rows_per_person`. An example is then a person with
                all rows, and n, the batch size and epsilon count people (`equidp.by_person`). None: an
                example is a row.

        Raises:
            SettingError, DataError, ModelError, BudgetError, ValueError: raised before anything is spent.
        """
        fits: list[_Fit] = self.__dict__.setdefault("_fits_spent", [])
        kept, before = dict(vars(self)), len(fits)
        try:
            trainer = self._trainer(X, y, sensitive_features, sample_weight, people)
            self.__dict__.pop("run_", None)  # of other classes, should this training be stopped
            try:
                self.run_ = trainer.fit()
            finally:  # whatever stops a fit, what it spent counts
                if trainer.entries:
                    self._count(trainer, fits)
        except BaseException:
            if len(fits) == before:  # a fit that spends nothing leaves the estimator as it was
                self.__dict__.clear()
                self.__dict__.update(kept)
            raise
        weights = Loss.of(trainer.loss).class_weights
        self.class_weight_ = np.ones(len(self.classes_)) if weights is None else weights.double().numpy()
        return self

    def _trainer(self, X: Any, y: Any, features: Any, sample_weight: Any, people: Any) -> Trainer:
        """Return the Trainer of a fit, checked and ready. Nothing is spent yet. `features` are the groups."""
        check_order(X=X, y=y, sensitive_features=features, sample_weight=sample_weight, people=people)
        check_numbers(X)
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        inputs = float_rows(X)
        y = column_or_1d(y, warn=True)
        check_known(y)
        targets = self._learn_classes(y)
        weights = weights_of_rows(sample_weight, targets)
        check_groups(self.method, features)
        groups, self.group_names_ = groups_of(features, len(targets))
        owners = people_of(people, self.rows_per_person, len(targets))
        resolved = self._resolve(len(targets) if owners is None else len(owners))
        self.delta_, self.noise_multiplier_ = resolved.delta, resolved.noise_multiplier
        seed = None
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        names = self.group_names_, self._class_names
        train = GroupedDataset(inputs, targets, groups, *names, weights=weights)
        return build(
            resolved,
            train if owners is None else owners.gather_examples(train),
            weights_seed=seed,
            seed=seed,
            model=build_model(resolved.plan.factory, X.shape[1:], len(self.classes_), seed),
            device=chosen_device(self.device),
            ledger=self.ledger,
        )

    def _learn_classes(self, y: npt.NDArray[Any]) -> Tensor:
        """Learn the classes, and return the code of each row's, [n]."""
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise DataError(f"y has one class only, {only!r}; a classifier needs at least two.", field="y")
        return torch.from_numpy(codes.astype(np.int64))

    @property
    def _class_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes_))

    def _resolve(self, num_examples: int) -> ResolvedPlan:
        """Return the plan of a fit on n examples. Its noise leaves room for counts of classes."""
        plan = plan_of(self, num_examples)
        if plan.private == (self.epsilon is None):
            wanted = "a number > 0" if plan.private else "None, for it gives no privacy"
            raise SettingError(f"epsilon={self.epsilon} with method={self.method!r}; expected {wanted}.")
        message = ""
        if not plan.private:
            message = (
                "method='sgd' trains without privacy: the model is not private, despite the class's name."
            )
        elif self.random_state is not None:
            message = (
                f"random_state={self.random_state}: samples and noise follow from a seed. Anyone who knows "
                "or guesses it can undo the noise. That is for research; leave random_state out for a model "
                "that is released."
            )
        if message:
            warnings.warn(message, PrivacyWarning, stacklevel=4)
        releases = (_BalancedWeights(self.counts_share),) if self.class_weight == _BALANCED else ()
        plan = replace(plan, class_weight=self._class_weights(), releases=releases)
        return plan.resolve(num_examples, self.group_names_)

    def _class_weights(self) -> dict[str, float] | None:
        """Return the public weight of each class by name, or 1 if it will follow from counts."""
        names = dict(zip(self.classes_.tolist(), self._class_names, strict=True))
        if self.class_weight is None:
            return None
        if self.class_weight == _BALANCED:
            return dict.fromkeys(names.values(), 1.0)
        if not isinstance(self.class_weight, Mapping):
            raise SettingError(
                f"class_weight={self.class_weight!r}; expected a dictionary from class to number, such as "
                "{'no': 1, 'yes': 8}, by public knowledge of how rare classes are, or 'balanced', which "
                "counts them with noise."
            )
        for label in self.class_weight:
            if label not in names:
                raise unknown_name("class in class_weight", label, names.values())
        return {names[label]: weight for label, weight in self.class_weight.items()}

    def _count(self, trainer: Trainer, fits: list[_Fit]) -> None:
        """Add what a fit spent to the object's fits, and warn of their total.

        Settings of a fit may follow from results of earlier ones, so fits add up by Renyi divergences.
        """
        ledger, delta = trainer.ledger, trainer.delta
        self.epsilon_spent_ = epsilon_of(trainer.entries, delta, trainer.accountant)
        fits.append(_Fit(ledger.unit, trainer.run_id, trainer.entries, ledger.order))
        others = [each for each in fits if each.run not in ledger.runs]
        if self.ledger is not None and ledger.limit is not None:
            delta = ledger.limit[1]
        if any(each.unit != ledger.unit for each in others):
            self.epsilon_total_ = math.inf
            message = "fits on rows and fits on people cannot be added: no epsilon holds for all of them."
            warnings.warn(message, PrivacyWarning, stacklevel=3)
            return
        if self.ledger is None and not others:
            self.epsilon_total_ = self.epsilon_spent_
            return
        entries = (*ledger.entries(), *(entry for each in others for entry in each.entries))
        self.epsilon_total_ = renyi_epsilon(entries, fits[0].order if others else ledger.order, delta)
        if others:
            total = f"epsilon {self.epsilon_total_:.4g} at delta {delta:g}, for anyone in the data of each"
            message = f"{len(others) + 1} fits of this estimator together spent {total}. Those of clones and "
            message += "other estimators come on top. One equidp.Ledger (ledger=...) counts and limits all."
            if self.ledger is not None:
                message = f"{len(others)} fits of this estimator are not in its ledger: with them, {total}."
            warnings.warn(message, PrivacyWarning, stacklevel=3)

    @property
    def coef_(self) -> Floats:
        """Coefficients of a linear model, [1, columns] for two classes, [classes, columns] for more."""
        weights, _ = self._coefficients("coef_")
        return weights[1:] - weights[:1] if len(weights) == 2 else weights

    @property
    def intercept_(self) -> Floats:
        """Intercepts of a linear model, [1] for two classes, [classes] for more."""
        _, intercepts = self._coefficients("intercept_")
        return intercepts[1:] - intercepts[:1] if len(intercepts) == 2 else intercepts

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Log odds of the second of two classes, [n]; for more classes, the logit of each, [n, classes]."""
        logits: npt.NDArray[np.float32] = self._outputs(X).numpy()
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> Floats:
        """Probability of each class, [n, classes], in the order of `classes_`."""
        probabilities: Floats = torch.softmax(self._outputs(X).double(), dim=1).numpy()
        return probabilities

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable class of each example, [n]."""
        codes = self.predict_proba(X).argmax(axis=1)
        labels: npt.NDArray[Any] = self.classes_[codes]
        return labels

    def _outputs(self, X: Any) -> Tensor:
        """The model's outputs, [n, classes], in its own precision."""
        check_is_fitted(self, "run_")
        check_numbers(X)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return predict(self.run_.model, float_rows(X))

    def _coefficients(self, name: str) -> tuple[Floats, Floats]:
        """Weights, [classes, columns], and intercepts, [classes], of a model of one linear layer.

        Raises:
            AttributeError: the model has other parts, so that it has no attribute `name`.
        """
        check_is_fitted(self, "run_")
        containers = (nn.Sequential, nn.Flatten, nn.Identity)
        parts = [part for part in self.run_.model.modules() if type(part) not in containers]
        if len(parts) != 1 or type(parts[0]) is not nn.Linear:
            message = f"{name} is of linear models, and this one has other layers: {self.run_.model}"
            raise AttributeError(message)
        weight = parts[0].weight.detach().cpu().double().numpy()
        bias = parts[0].bias
        return weight, np.zeros(len(weight)) if bias is None else bias.detach().cpu().double().numpy()


def plan_of(estimator: PrivateClassifier, num_examples: int) -> Plan:
    """Return the plan of an estimator's arguments for n examples, except class weights."""
    settings = estimator.method_settings or {}
    if not isinstance(settings, Mapping):
        raise SettingError(
            f"method_settings={settings!r}; expected a dictionary from setting to number, such as "
            "{'smoothing': 0.9}."
        )
    of_plan = {each.name for each in Plan.options()} - {"batch_size", "learning_rate", "class_weight"}
    size, rate = estimator.batch_size, estimator.learning_rate
    usual = ADAM_RATE if estimator.optimizer == "adam" else _SGD_RATE
    return Plan(
        batch_size=min(_LARGEST_BATCH, num_examples) if size is None else size,
        learning_rate=usual if rate is None else rate,
        method_settings={"clipping_bound": estimator.clipping_bound, **settings},
        **{each.name: getattr(estimator, each.name) for each in fields(estimator) if each.name in of_plan},
    )


class _Fit(NamedTuple):
    """Privacy spent by a fit.

    Attributes:
        unit: "rows" or "people".
        run: name of the run in its ledger.
        entries: (event, count) pairs.
        order: order of the ledger's Renyi divergence.
    """

    unit: str
    run: str
    entries: EventCounts
    order: float


@final
@dataclass(frozen=True)
class _BalancedWeights(Release):
    """Weights of classes by their counts, set before the first step: noisy counts, or exact without privacy.

    Attributes:
        counts_share: share of epsilon for class counts, in (0, 1).
    """

    name = COUNTS

    counts_share: float

    def epsilon(self, target: float | None) -> float:
        assert target is not None
        return self.counts_share * target

    def check(self, plan: Plan) -> None:
        if plan.private:
            check_share("counts_share", self.counts_share, plan.run_epsilon)

    def charges(self, resolved: ResolvedPlan) -> EventCounts:
        return super().charges(resolved) if resolved.plan.private else ()

    def before(self, trainer: Trainer) -> None:
        weights, noise = Loss.of(trainer.loss).class_weights, 0.0
        assert weights is not None
        if trainer.resolved.plan.private:
            noise = trainer.resolved.noise_of(self)
            counts = trainer.release(
                self, lambda noise: count_classes(trainer.train, noise, trainer.randomness)
            )
        else:
            counts = count_classes(trainer.train)
        balanced = torch.tensor(list(balanced_class_weights(counts, noise).values()), dtype=torch.float64)
        weights.copy_(balanced / balanced.max())
