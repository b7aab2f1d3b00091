"""Base of the scikit-learn estimators: settings, one private training per fit, and their total."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equidp._extras import require_extra
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.planned import COUNTS, default_delta
from equidp.accounting.target import Target
from equidp.data.dataset import GroupedDataset
from equidp.errors import PrivacyWarning, SettingError
from equidp.estimator.inputs import (
    check_finite,
    check_groups,
    check_known,
    check_numbers,
    check_order,
    groups_of,
    people_of,
    weights_of_rows,
)
from equidp.evaluation.predictions import predict
from equidp.kernel.engine import LossFunction
from equidp.kernel.epsilon import Entries, epsilon as epsilon_of
from equidp.kernel.ledger import Event, MemoryLedger, Payment, ReleaseEvent, StepEvent
from equidp.kernel.policy import Policy
from equidp.training.averages import WeightAverage
from equidp.training.build import build, build_model
from equidp.training.device import chosen_device
from equidp.training.optimizers import ADAM_RATE
from equidp.training.plan import ModelFactory, Plan, ResolvedPlan
from equidp.training.trainer import Trainer

with require_extra("tables"):
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.validation import check_is_fitted, validate_data

if TYPE_CHECKING:
    from typing import Self


@dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """A private model behind scikit-learn's interface; `PrivateClassifier` says what its arguments are."""

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
    average_share: float = WeightAverage.share
    clipping_bound: float = 1.0
    method_settings: Mapping[str, Any] | None = None
    rows_per_person: int | None = None
    loss: str | LossFunction | None = None
    accountant: str = "pld"
    budget: PrivacyBudget | None = None
    device: str = "cpu"
    random_state: int | np.random.RandomState | None = None

    _loss: ClassVar[Any]
    """A `LossFunction`, where none is given."""

    def fit(
        self,
        X: Any,
        y: Any,
        sensitive_features: Any = None,
        sample_weight: Any = None,
        people: Any = None,
    ) -> Self:
        """Train a fresh model, which spends `epsilon`: each fit does.

        Args:
            X: [n, d], numbers without NaN: an array or a pandas table.
            y: [n].
            sensitive_features: each example's group: [n], or [n, columns], which are crossed. For methods
                that tell groups apart. Rows are matched by position, as in all of scikit-learn.
            sample_weight: [n], numbers >= 0 that multiply each row's loss before its gradient is clipped.
                They must be public: known for each row, or following from nothing but that row. Then they
                cost no privacy, since every gradient is bounded as without them. Scale them to at most 1 or
                so: above clipping bound / norm a weight has no further effect.
            people: [n], whose row each is. A person with all rows is then one example, of which n, the batch
                size and epsilon are, as `equidp.by_person` says; needs `rows_per_person`. None: rows are.

        Raises:
            SettingError, DataError, ModelError, BudgetError, ValueError: before any budget is spent.
        """
        spent: list[Fit] = self.__dict__.setdefault("_fits_spent", [])
        kept, ledger = dict(vars(self)), MemoryLedger()
        try:
            return self._train(X, y, sensitive_features, sample_weight, ledger, people, spent)
        except BaseException:
            if not ledger.entries:  # a fit that spends nothing leaves the estimator as it was
                self.__dict__.clear()
                self.__dict__.update(kept)
            raise

    def _train(
        self,
        X: Any,
        y: Any,
        features: Any,
        sample_weight: Any,
        ledger: MemoryLedger,
        people: Any,
        spent: list[Fit],
    ) -> Self:
        """Train a fresh model on these rows; features: of groups."""
        of_rows = {"sample_weight": sample_weight, "people": people}
        check_order(X=X, y=y, sensitive_features=features, **of_rows)
        check_numbers(X)
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_finite(X)
        y = column_or_1d(y, warn=True)
        check_known(y)
        self._learn(y)
        targets = self._targets(y)
        weights = weights_of_rows(sample_weight, len(targets))
        if weights is not None:
            self._check_weighted(targets, weights)
        check_groups(self.method, features)
        groups, self.group_names_ = groups_of(features, len(targets))
        owners = people_of(people, self.rows_per_person, X)
        plan = self._plan(len(targets) if owners is None else len(owners))
        trainer = self._trainer(plan, X, targets, groups, weights, ledger, owners)
        self.delta_, self.noise_multiplier_ = trainer.delta, trainer.noise_multiplier
        releases = self._releases(trainer.delta)
        beside = [(ReleaseEvent(1.0, each.noise_multiplier, name=COUNTS), 1) for each in releases]
        if beside:
            trainer.ledger.promise([(trainer.event, trainer.steps - trainer.steps_done), *beside])
        try:
            counted = targets if owners is None else targets[owners.first]
            payment = trainer.ledger.pay(COUNTS, releases[0].noise_multiplier) if releases else None
            self.__dict__.pop("run_", None)  # of other classes, should this training be stopped
            self._release(payment, trainer, counted)
            self.run_ = trainer.fit()
        finally:  # Whatever stops a fit, its steps are spent.
            if ledger.entries:
                self._account(trainer, ledger.entries, spent)
        return self

    def _plan(self, n: int) -> ResolvedPlan:
        """The settings, checked, for n examples; noise leaves room for what is released beside steps."""
        delta = default_delta(n) if self.delta is None else self.delta
        plan = plan_of(self, self.model, n, delta)
        check_private(self, plan.policy(self.method))
        releases = tuple((event, 1) for event in self._releases(delta))
        target = Target(self.epsilon, accountant=self.accountant)
        return plan.resolve(self.method, n, target, also_spent=releases, group_names=self.group_names_)

    def _trainer(
        self,
        plan: ResolvedPlan,
        X: Any,
        y: Tensor,
        groups: Tensor,
        weights: Any,
        ledger: MemoryLedger,
        owners: Any,
    ) -> Trainer:
        """Make the Trainer of a fit, checked and ready; nothing is spent yet."""
        seed = None
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        loss = self._training_loss(plan.plan.loss_function or self._loss)
        train = self._dataset(torch.from_numpy(X.astype(np.float32)), y, groups, weights)
        return build(
            plan,
            train if owners is None else owners.gather_examples(train),
            seed=seed,
            secure=seed is None,
            model=build_model(plan.plan.factory, X.shape[1:], self._num_outputs, seed),
            device=chosen_device(self.device),
            loss=loss,
            accountant=self.accountant,
            ledger=ledger,
            budget=self.budget,
            num_groups=len(self.group_names_),
        )

    def _account(self, trainer: Trainer, of_fit: Entries, spent: list[Fit]) -> None:
        """Add what a fit spent to the object's fits, and warn of their total."""
        counts: Counter[Event] = Counter()
        for event, count in of_fit:
            counts[event] += count
        entries = tuple(counts.items())
        delta, accountant, budget = trainer.delta, trainer.accountant, self.budget
        self.epsilon_spent_ = epsilon_of(entries, delta, accountant)
        unit = "rows" if getattr(trainer.train, "rows", None) is None else "people"
        spent.append(Fit(unit, entries, "" if budget is None else budget.id))
        fits, least = spent, 0.0
        charged: tuple[tuple[Event, int], ...] = ()
        if budget is not None:
            fits = [each for each in spent if each.budget != budget.id]
            charged, least = budget.entries, budget.spent()
            delta, accountant = budget.delta, budget.accountant
        mixed = any(each.unit != unit for each in fits)
        if mixed:
            self.epsilon_total_ = math.inf
        elif fits:
            every = (*charged, *(entry for each in fits for entry in each.entries))
            self.epsilon_total_ = max(least, epsilon_of(every, delta, accountant))
        else:
            self.epsilon_total_ = least
        total = f"epsilon {self.epsilon_total_:.4g} at delta {delta:g}, for anyone who is in the data of each"
        if mixed:
            message = "fits on rows and fits on people cannot be added: no epsilon holds for all of them."
        elif budget is not None and fits:
            message = (
                f"{len(fits)} fits of this estimator were not charged to its budget: with them, {total}."
            )
        elif len(fits) > 1:
            message = (
                f"{len(fits)} fits of this estimator together spent {total}. Those of clones and other "
                "estimators come on top. One PrivacyBudget (budget=...) limits all."
            )
        else:
            return
        warnings.warn(message, PrivacyWarning, stacklevel=4)

    def _outputs(self, X: Any) -> Tensor:
        """The model's outputs, [n, outputs], in its own precision."""
        check_is_fitted(self, "run_")
        check_numbers(X)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        check_finite(X)
        return predict(self.run_.model, torch.from_numpy(X.astype(np.float32)))

    def _coefficients(self, name: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Weights, [outputs, columns], and intercepts, [outputs]; AttributeError for other models."""
        check_is_fitted(self, "run_")
        return coefficients(self.run_.model, name)

    def _training_loss(self, loss: LossFunction) -> LossFunction:
        """Loss that is trained on, given the loss of one example: (outputs, targets) -> losses [batch]."""
        return loss

    def _releases(self, delta: float) -> tuple[StepEvent, ...]:
        """Releases beside the steps, each for a share of epsilon."""
        return ()

    def _release(self, payment: Payment | None, trainer: Trainer, targets: Tensor) -> None:
        """Draw what was paid for, before the first step."""

    def _check_weighted(self, targets: Tensor, weights: Tensor) -> None:
        """Refuse weights that leave nothing to learn."""

    @property
    @abstractmethod
    def _num_outputs(self) -> int:
        """Number of the model's outputs."""

    @abstractmethod
    def _learn(self, y: Any) -> None:
        """Learn from all targets, [n], what is needed to turn outputs into predictions."""

    @abstractmethod
    def _targets(self, y: npt.NDArray[Any]) -> Tensor:
        """Targets [n] as the loss reads them."""

    @abstractmethod
    def _dataset(
        self, inputs: Tensor, targets: Tensor, groups: Tensor, weights: Tensor | None
    ) -> GroupedDataset:
        """Rows in memory."""


_LARGEST_BATCH = 256
_SGD_RATE = 0.5
_OWN = ("model", "batch_size", "delta", "learning_rate", "class_weight")
"""Options of a plan that an estimator gives a default, or a meaning, of its own."""


def plan_of(estimator: Any, model: str | ModelFactory, num_examples: int, delta: float) -> Plan:
    """Return the plan of a `PrivateEstimator`'s arguments for n examples."""
    size, settings = estimator.batch_size, estimator.method_settings or {}
    if not isinstance(settings, Mapping):
        raise SettingError(
            f"method_settings={settings!r}; expected a dictionary from setting to number, such as "
            "{'smoothing': 0.9}."
        )
    usual = ADAM_RATE if estimator.optimizer == "adam" else _SGD_RATE
    names = {each.name for each in fields(estimator)}.intersection(each.name for each in Plan.options())
    return Plan(
        model,
        batch_size=min(_LARGEST_BATCH, num_examples) if size is None else size,
        delta=delta,
        learning_rate=usual if estimator.learning_rate is None else estimator.learning_rate,
        method_settings={"clipping_bound": estimator.clipping_bound, **settings},
        **{name: getattr(estimator, name) for name in names.difference(_OWN)},
    )


def check_private(estimator: Any, policy: Policy) -> None:
    """Refuse an epsilon that the method cannot have, and warn where nobody is protected."""
    private = policy.private
    if private == (estimator.epsilon is None):
        wanted = "a number > 0" if private else "None, for it gives no privacy"
        raise SettingError(
            f"epsilon={estimator.epsilon} with method={estimator.method!r}; expected {wanted}."
        )
    if not private:
        message = (
            "method='sgd' trains without privacy: the model is not private, whatever the class is called."
        )
        warnings.warn(message, PrivacyWarning, stacklevel=5)
    elif estimator.random_state is not None:
        warnings.warn(
            f"random_state={estimator.random_state}: samples and noise follow from a seed. Anyone who knows "
            "or guesses it can undo the noise. That is for research; leave random_state out for a model "
            "that is released.",
            PrivacyWarning,
            stacklevel=5,
        )


class Fit(NamedTuple):
    """Privacy spent by a fit.

    Attributes:
        unit: "rows" or "people".
        entries: (event, count) pairs.
        budget: name of the budget that was charged; "": none.
    """

    unit: str
    entries: Entries
    budget: str


Floats = npt.NDArray[np.float64]


def coefficients(model: nn.Module, name: str) -> tuple[Floats, Floats]:
    """Return weights, [outputs, columns], and intercepts, [outputs], of a model of one linear layer.

    Raises:
        AttributeError: the model has other parts, so that it has no attribute `name`.

    >>> weights, intercepts = coefficients(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), "coef_")
    >>> weights.shape, intercepts.shape
    ((2, 3), (2,))
    """
    containers = (nn.Sequential, nn.Flatten, nn.Identity)
    parts = [part for part in model.modules() if type(part) not in containers]
    if len(parts) != 1 or type(parts[0]) is not nn.Linear:
        raise AttributeError(f"{name} is of linear models, and this one has other layers: {model}")
    weight = parts[0].weight.detach().cpu().double().numpy()
    bias = np.zeros(len(weight)) if parts[0].bias is None else parts[0].bias.detach().cpu().double().numpy()
    return weight, bias
