"""Base of the scikit-learn estimators: settings, one private training per fit, and their total."""

from __future__ import annotations

import math
import threading
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.utils.data import Dataset

from equidp._extras import require_extra
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.planned import COUNTS, RECALIBRATION, default_delta
from equidp.accounting.target import Target
from equidp.data.dataset import GroupedDataset
from equidp.data.targets import with_weights
from equidp.errors import PrivacyWarning, SettingError
from equidp.estimator.inputs import (
    SparseRows,
    check_finite,
    check_groups,
    check_known,
    check_numbers,
    check_order,
    dense,
    dense_parts,
    groups_of,
    people_of,
    weights_of_rows,
)
from equidp.evaluation.predictions import predict
from equidp.kernel.engine import LossFunction
from equidp.kernel.epsilon import Entries, epsilon as epsilon_of
from equidp.kernel.ledger import Event, MemoryLedger, Payment, ReleaseEvent, StepEvent
from equidp.kernel.policy import Policy
from equidp.losses import Loss
from equidp.training.averages import WeightAverage
from equidp.training.build import build, build_model
from equidp.training.device import chosen_device
from equidp.training.initial_weights import copy_model
from equidp.training.optimizers import ADAM_RATE
from equidp.training.plan import ModelFactory, Plan, ResolvedPlan
from equidp.training.recalibration import recalibrate
from equidp.training.trainer import Trainer

with require_extra("tables"):
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.validation import check_is_fitted, validate_data

if TYPE_CHECKING:
    from typing import Self


_counting = threading.Lock()
"""Lock under which fits in several threads add what they spent."""


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
            X: [n, d], numbers without NaN: an array, a pandas table, or a sparse matrix, whose rows are made
                dense when they are sampled.
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
        progress = Progress(spent=self._list_spent())
        with self._unchanged_unless_spent(progress):
            return self._train(X, y, sensitive_features, sample_weight, progress, people)

    def _list_spent(self) -> list[Fit]:
        """Return what all fits of this estimator spent: one list, to which fits in several threads add."""
        spent: list[Fit] = self.__dict__.setdefault("_fits_spent", [])
        return spent

    def _train(
        self,
        X: Any,
        y: Any,
        features: Any,
        sample_weight: Any,
        progress: Progress,
        people: Any = None,
    ) -> Self:
        """Train a fresh model on these rows, or the one of earlier calls further; features: of groups."""
        of_rows = {"sample_weight": sample_weight, "people": people}
        check_order(X=X, y=y, sensitive_features=features, **of_rows)
        check_numbers(X)
        further = progress.model is not None
        if further and self.model != progress.made_by:
            raise SettingError(
                f"model={self.model!r}, and earlier calls trained {progress.made_by!r}; partial_fit goes "
                "on with that one. Set it back, or fit a new model.",
                field="model",
            )
        kinds = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
        X, y = validate_data(self, X, y, reset=not further, **kinds)
        check_finite(X)
        y = column_or_1d(y, warn=True)
        check_known(y)
        if not progress.learnt:
            self._learn(y)
        targets = self._targets(y)
        weights = weights_of_rows(sample_weight, len(targets))
        if weights is not None:
            self._check_weighted(targets, weights)
        check_groups(self.method, features)
        groups, names = groups_of(features, len(targets), progress.group_names)
        self.group_names_ = progress.group_names = names
        owners = people_of(people, self.rows_per_person, X)
        plan = self._plan(len(targets) if owners is None else len(owners), progress)
        trainer = self._trainer(plan, X, targets, groups, weights, progress, owners)
        self.delta_, self.noise_multiplier_ = trainer.delta, trainer.noise_multiplier
        before, releases = progress.ledger.entries, self._releases(trainer.delta, progress)
        named = [(COUNTS, each) for each in releases] + [(RECALIBRATION, each) for each in plan.releases]
        beside = [(ReleaseEvent(1.0, each.noise_multiplier, name=name), 1) for name, each in named]
        if beside:
            trainer.ledger.promise([(trainer.event, trainer.steps - trainer.steps_done), *beside])
        try:
            counted = targets if owners is None else targets[owners.first]
            payment = trainer.ledger.pay(COUNTS, releases[0].noise_multiplier) if releases else None
            self.__dict__.pop("run_", None)  # of other classes, should this training be stopped
            self._release(payment, trainer, counted, progress)
            self.run_ = recalibrate(trainer.fit(), trainer, plan.recalibration_noise)
        finally:  # Whatever stops a fit, its steps are spent.
            if spent := progress.spent_since(before):
                progress.model, progress.made_by = trainer.model, self.model
                progress.rows += trainer.num_examples
                progress.of_people = owners is not None
                self._progress = progress
                self._account(trainer, spent, progress)
        return self

    @contextmanager
    def _unchanged_unless_spent(self, progress: Progress) -> Iterator[None]:
        """Leave the estimator as it was where a call fails before it spends."""
        kept, before = dict(vars(self)), progress.ledger.entries
        try:
            yield
        except BaseException:
            if not progress.spent_since(before):
                with _counting:
                    total = {name: each for name, each in vars(self).items() if name == "epsilon_total_"}
                    self.__dict__.clear()
                    self.__dict__.update(kept | total)  # fits in other threads may have spent meanwhile
            raise

    def _plan(self, n: int, progress: Progress) -> ResolvedPlan:
        """The settings, checked, for n more examples; noise leaves room for what is released beside steps."""
        delta = default_delta(n + progress.rows) if self.delta is None else self.delta
        plan = plan_of(self, self.model, n, delta)
        check_private(self, plan.policy(self.method))
        releases = tuple((event, 1) for event in self._releases(delta, progress))
        target = Target(self.epsilon, accountant=self.accountant)
        names = progress.group_names or ()
        return plan.resolve(self.method, n, target, also_spent=releases, group_names=names)

    def _trainer(
        self,
        plan: ResolvedPlan,
        X: Any,
        y: Tensor,
        groups: Tensor,
        weights: Any,
        progress: Progress,
        owners: Any,
    ) -> Trainer:
        """Make the Trainer of a fit, checked and ready; nothing is spent yet."""
        seed = None
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        loss = self._training_loss(plan.plan.loss_function or self._loss, progress)
        train, loss = self._build_dataset(X, y, groups, weights, loss)
        return build(
            replace(plan, steps=plan.steps + progress.steps_like(plan)),
            train if owners is None else owners.gather_examples(train),
            seed=seed,
            secure=seed is None,
            model=build_model(plan.plan.factory, X.shape[1:], self._num_outputs, seed)
            if progress.model is None
            else copy_model(progress.model, "a further fit"),  # the earlier run keeps its own
            device=chosen_device(self.device),
            loss=loss,
            accountant=self.accountant,
            ledger=progress.ledger,
            budget=self.budget,
            num_groups=len(self.group_names_),
        )

    def _build_dataset(
        self, X: Any, targets: Tensor, groups: Tensor, weights: Tensor | None, loss: LossFunction
    ) -> tuple[GroupedDataset | Dataset[Any], LossFunction]:
        """Dataset and loss that the Trainer trains with."""
        if not sparse.issparse(X):
            train = self._dataset(dense(X), targets, groups, weights)
            if isinstance(train, GroupedDataset):  # which brings its weights to the loss by itself
                return train, loss
        else:
            train = SparseRows(X, targets if weights is None else with_weights(targets, weights), groups)
        return train, loss if weights is None else Loss.of(loss).with_row_weights(targets.dtype)

    def _account(self, trainer: Trainer, entries: Entries, progress: Progress) -> None:
        """Add what a fit spent to the object's fits, and warn of their total.

        Args:
            trainer: of the fit.
            entries: what the fit spent.
            progress: of the model; its own calls of `partial_fit` cause no warning.
        """
        delta, accountant, budget = trainer.delta, trainer.accountant, self.budget
        self.epsilon_spent_ = epsilon_of(entries, delta, accountant)
        unit = "rows" if getattr(trainer.train, "rows", None) is None else "people"
        fit = Fit(unit, entries, progress.ledger.run_id, "" if budget is None else budget.id)
        with _counting:
            progress.calls += 1
            progress.spent.append(fit)
            fits, least = progress.spent, 0.0
            charged: tuple[tuple[Event, int], ...] = ()
            if budget is not None:  # a budget holds all calls of the model
                fits = [each for each in fits if fit.budget != each.budget and fit.run != each.run]
                charged, least = budget.entries, budget.spent()
                delta, accountant = budget.delta, budget.accountant
            mixed = any(each.unit != unit for each in fits)
            if mixed:
                self.epsilon_total_ = math.inf
            elif fits:
                spent = (*charged, *(entry for each in fits for entry in each.entries))
                self.epsilon_total_ = max(least, epsilon_of(spent, delta, accountant))
            else:
                self.epsilon_total_ = least
        total = f"epsilon {self.epsilon_total_:.4g} at delta {delta:g}, for anyone who is in the data of each"
        if mixed:
            message = "fits on rows and fits on people cannot be added: no epsilon holds for all of them."
        elif budget is not None and fits:
            message = (
                f"{len(fits)} fits of this estimator were not charged to its budget: with them, {total}."
            )
        elif len(fits) > progress.calls:
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
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        check_finite(X)
        return torch.cat([predict(self.run_.model, part) for part in dense_parts(X)])

    def _coefficients(self, name: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Weights, [outputs, columns], and intercepts, [outputs]; AttributeError for other models."""
        check_is_fitted(self, "run_")
        return coefficients(self.run_.model, name)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _training_loss(self, loss: LossFunction, progress: Progress) -> LossFunction:
        """Loss that is trained on, given the loss of one example: (outputs, targets) -> losses [batch]."""
        return loss

    def _releases(self, delta: float, progress: Progress) -> tuple[StepEvent, ...]:
        """Releases beside the steps, each for a share of epsilon."""
        return ()

    def _release(
        self, payment: Payment | None, trainer: Trainer, targets: Tensor, progress: Progress
    ) -> None:
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
    ) -> GroupedDataset | Dataset[Any]:
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


def check_open_ended(estimator: Any) -> None:
    """Refuses, for `partial_fit`, settings that need to know the last step.

    Raises:
        SettingError: before any budget is spent.
    """
    usual = {"schedule": "constant", "average": "none"}
    for name, value in usual.items():
        if getattr(estimator, name) != value:
            raise SettingError(
                f"{name}={getattr(estimator, name)!r} runs over all steps, and partial_fit cannot know how "
                f"many calls will follow; use fit, or {name}={value!r}.",
                field=name,
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
    """Privacy spent by a fit, or by one call of `partial_fit`.

    Attributes:
        unit: "rows" or "people".
        entries: (event, count) pairs.
        run: name of the ledger that all calls of one model share.
        budget: name of the budget that was charged; "": none.
    """

    unit: str
    entries: Entries
    run: str
    budget: str


@final
@dataclass
class Progress:
    """A model that calls of `partial_fit` train one after the other, and the one ledger of what they spent.

    Attributes:
        ledger: of all calls.
        model: None before the first call.
        made_by: the setting that it was made by.
        rows: of all calls.
        group_names: of the first call.
        calls: how many spent something.
        spent: by all the estimator's fits, also of earlier models.
        learnt: whether the classes are known before the first rows are seen.
        of_people: whether an example was a person with several rows.
        class_weights: that the first call with class_weight="balanced" released, [classes].
    """

    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    model: nn.Module | None = None
    made_by: str | ModelFactory = ""
    rows: int = 0
    group_names: tuple[str, ...] | None = None
    calls: int = 0
    spent: list[Fit] = field(default_factory=list)
    learnt: bool = False
    class_weights: Tensor | None = None
    of_people: bool = False

    def steps_like(self, plan: ResolvedPlan) -> int:
        """Steps of earlier calls that a Trainer of this plan would take for its own."""
        event = plan.step_event(self.group_names or ())
        return sum(count for each, count in self.ledger.entries if each == event)

    def spent_since(self, before: Entries) -> Entries:
        """Entries spent since the ledger held the entries `before`."""
        counts: Counter[Event] = Counter()
        for event, count in self.ledger.entries:
            counts[event] += count
        for event, count in before:
            counts[event] -= count
        return tuple((event, count) for event, count in counts.items() if count)


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
