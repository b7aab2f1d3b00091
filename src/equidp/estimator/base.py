"""What the scikit-learn estimators share: settings, one private training a fit, and the account of fits."""

from __future__ import annotations

import itertools
import multiprocessing
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch.utils.data import Dataset

from equidp.accounting.budget import PrivacyBudget
from equidp.data.dataset import GroupedDataset
from equidp.data.labels import crossed
from equidp.data.table import MOST_GROUPS
from equidp.errors import DataError, PrivacyWarning, SettingError
from equidp.estimator.fits import FITS, row_hashes
from equidp.evaluation.predict import predict
from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.kernel.policy import Policy
from equidp.policies.methods import method_named
from equidp.training.build import build, build_model
from equidp.training.plan import ModelFactory, Plan, ResolvedPlan
from equidp.training.trainer import Trainer

if TYPE_CHECKING:
    from typing_extensions import Self

_LARGEST_BATCH = 256


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
    learning_rate: float = 0.5
    momentum: float = 0.0
    weight_decay: float = 0.0
    clipping_bound: float = 1.0
    method_settings: Mapping[str, Any] | None = None
    accountant: str = "pld"
    budget: PrivacyBudget | None = None
    random_state: int | np.random.RandomState | None = None

    _y_numeric: ClassVar = False
    _loss: ClassVar[Any]
    """A `LossFunction`."""

    def __sklearn_clone__(self) -> Any:
        clone = super().__sklearn_clone__()
        FITS.adopt(clone, self)
        return clone

    def fit(self, X: Any, y: Any, sensitive_features: Any = None) -> Self:
        """Trains a fresh model, which spends `epsilon`: each fit does.

        Args:
            X: [n, d], numbers without NaN; an array or a pandas table.
            y: [n].
            sensitive_features: each example's group: [n], or [n, columns], which are crossed. For methods
                that tell groups apart. Rows are matched by position, as in all of scikit-learn.

        Raises:
            SettingError, DataError, ModelError, BudgetError, ValueError: before any budget is spent.
        """
        _check_order(X=X, y=y, sensitive_features=sensitive_features)
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], y_numeric=self._y_numeric)
        targets = self._targets(column_or_1d(y, warn=True))
        inputs = torch.from_numpy(X.astype(np.float32))
        if not torch.isfinite(inputs).all():
            raise DataError("X holds numbers that float32 cannot; scale them first.")
        groups, self.group_names_ = self._groups(sensitive_features, len(X))
        trainer = self._trainer(self._dataset(inputs, targets, groups), X.shape[1])
        self.delta_, self.noise_multiplier_ = trainer.delta, trainer.noise_multiplier
        try:
            self.run_ = trainer.fit()
        finally:  # Whatever stops a fit, its steps are spent.
            self._account(inputs, trainer)
        return self

    def _groups(self, sensitive_features: Any, n: int) -> tuple[Tensor, tuple[str, ...]]:
        """Group of each example [n], and the groups' names."""
        policy = method_named(self.method).policy
        if sensitive_features is None:
            if policy.needs_groups:
                raise SettingError(
                    f"method={self.method!r} tells groups apart and there are none: pass each example's "
                    "group, fit(X, y, sensitive_features=...), or choose a method without groups, such as "
                    "'dpsgd' or 'global-adapt'."
                )
            return torch.zeros(n, dtype=torch.int64), ("everyone",)
        table = pd.DataFrame(sensitive_features).reset_index(drop=True)
        if len(table) != n:
            raise DataError(
                f"sensitive_features has {len(table)} rows beside {n} in X; expected one for each."
            )
        table.columns = [str(name) for name in table.columns]
        texts = table.apply(lambda column: column.map(str, na_action="ignore").astype(object))
        groups, names = crossed(texts.where(table.notna(), None), list(table.columns))
        if len(names) > MOST_GROUPS:
            raise DataError(
                f"sensitive_features gives {len(names)} groups; bin or merge values, to at most "
                f"{MOST_GROUPS}."
            )
        return torch.from_numpy(groups), names

    def _model(self) -> str | ModelFactory:
        return self.model

    def _plan(self, n: int) -> ResolvedPlan:
        """The settings, checked, for n examples."""
        plan = Plan(
            self._model(),
            learning_rate=self.learning_rate,
            batch_size=min(_LARGEST_BATCH, n) if self.batch_size is None else self.batch_size,
            epochs=self.epochs,
            delta=self.delta,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            method_settings={"clipping_bound": self.clipping_bound, **(self.method_settings or {})},
        )
        self._check_private(plan.policy(self.method))
        return plan.resolve(self.method, n, epsilon=self.epsilon, accountant=self.accountant)

    def _trainer(self, train: GroupedDataset | Dataset[Any], num_features: int) -> Trainer:
        """Checked and ready; nothing is spent yet."""
        plan, seed = self._plan(len(train)), None  # type: ignore[arg-type]
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        return build(
            plan,
            train,
            seed=seed,
            secure=seed is None,
            model=build_model(plan.factory, (num_features,), self._num_outputs, seed),
            loss=self._loss,
            accountant=self.accountant,
            budget=self.budget,
            num_groups=len(self.group_names_),
        )

    def _check_private(self, policy: Policy) -> None:
        private = policy.private
        if private == (self.epsilon is None):
            wanted = "a number > 0" if private else "None, for it gives no privacy"
            raise SettingError(f"epsilon={self.epsilon} with method={self.method!r}; expected {wanted}.")
        if not private:
            message = (
                "method='sgd' trains without privacy: the model is not private, whatever the class is called."
            )
            _warn(message, 4)
        elif self.random_state is not None:
            _warn(
                f"random_state={self.random_state}: samples and noise follow from a seed. Anyone who knows "
                "or guesses it can undo the noise. That is for research; leave random_state out for a model "
                "that is released.",
                4,
            )

    def _account(self, inputs: Tensor, trainer: Trainer) -> None:
        """Says what this fit spent, and what it comes to with earlier ones on the same people."""
        entries, delta, accountant = trainer.ledger.entries, trainer.delta, trainer.accountant
        self.epsilon_spent_ = epsilon_of(entries, delta, accountant)
        if not entries:
            return
        fits, spent = FITS.add(self, row_hashes(inputs.numpy()), entries)
        if self.budget is not None:
            self.epsilon_total_ = self.budget.spent()
            return
        self.epsilon_total_ = epsilon_of(spent, delta, accountant)
        if fits > 1:
            _warn(
                f"{fits} fits of this process are on the same people, as far as equidp can see, and together "
                f"they spent epsilon {self.epsilon_total_:.4g} at delta {delta:g}. One PrivacyBudget for all "
                "(budget=...) would limit that.",
                2,
            )
        if multiprocessing.parent_process() is not None:
            _warn("this fit ran in a worker process, which counts no others. Use n_jobs=1 for the total.", 2)

    def _outputs(self, X: Any) -> Tensor:
        """The model's outputs, [n, outputs], float64."""
        check_is_fitted(self, "run_")
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return predict(self.run_.model, torch.from_numpy(X.astype(np.float32))).double()

    @property
    @abstractmethod
    def _num_outputs(self) -> int:
        """Of the model."""

    @abstractmethod
    def _targets(self, y: npt.NDArray[Any]) -> Tensor:
        """Targets [n] as the loss reads them; learns what turns outputs back."""

    @abstractmethod
    def _dataset(self, inputs: Tensor, targets: Tensor, groups: Tensor) -> GroupedDataset | Dataset[Any]:
        """What the Trainer trains on."""


def _check_order(**given: Any) -> None:
    """Refuses pandas objects that name the same rows in different orders: rows go together by position."""
    labels = {
        name: values.index for name, values in given.items() if isinstance(values, pd.DataFrame | pd.Series)
    }
    for (first, ours), (name, theirs) in itertools.combinations(labels.items(), 2):
        same = len(ours) == len(theirs) and ours.is_unique and theirs.is_unique and theirs.isin(ours).all()
        if same and not ours.equals(theirs):
            raise DataError(
                f"{name} names the same rows as {first} in another order, and rows belong together by "
                f"position. If the names are right, pass {name}.loc[{first}.index]; if the positions are, "
                f"{name}.to_numpy()."
            )


def _warn(message: str, frames: int) -> None:
    """A warning about the line that called `fit`, so many frames above the caller."""
    warnings.warn(message, PrivacyWarning, stacklevel=frames + 2)
