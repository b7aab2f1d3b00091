"""Contenders of tables.py, a class each: how a model is trained on a table, and what it predicts.

All are told the same public facts: ranges of numbers, levels of categories, which column is the target.
Private ones keep all that they read from the rows within the same epsilon and delta, edges and scales
included, by the defaults of their libraries; a class that does not says so. None reads the column of groups.
A contender is added by its class.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler


@dataclass(frozen=True)
class Task:
    """Rows to train and to predict, and what is public of them.

    Attributes:
        train, test: rows, with target (0 or 1) and group.
        target, group: their columns.
        ranges: of each column of numbers, (lowest, highest).
        levels: of each other input.
        epsilon, delta: of all that is read from the training rows.
        seed: of the contender.
    """

    train: pd.DataFrame
    test: pd.DataFrame
    target: str
    group: str
    ranges: Mapping[str, tuple[float, float]]
    levels: Mapping[str, Sequence[str]]
    epsilon: float
    delta: float
    seed: int

    @property
    def inputs(self) -> list[str]:
        return [*self.ranges, *self.levels]


class Learner(ABC):
    """A contender."""

    name: ClassVar[str]
    package: ClassVar[str]
    private: ClassVar[bool] = True

    @abstractmethod
    def predict(self, task: Task) -> np.ndarray:
        """Return the probability of 1 for each row of `task.test`."""


class Equidp(Learner):
    """`equidp.train` with edges and categories released within epsilon, else by its defaults."""

    name, package = "equidp", "equidp"
    options: ClassVar[dict[str, Any]] = {"preprocessing": "private"}

    def columns(self, task: Task) -> dict[str, dict[str, Any]]:
        texts = {column: {"kind": "text", "known": ["?"]} for column in task.levels}  # "?" is a level
        return {**texts, **{column: {"range": span} for column, span in task.ranges.items()}}

    def predict(self, task: Task) -> np.ndarray:
        import equidp

        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, name) for name in ("train.csv", "test.csv", "run")]
            task.train.to_csv(paths[0], index=False)
            task.test.to_csv(paths[1], index=False)
            run = equidp.train(
                paths[0],
                out=paths[2],
                target=task.target,
                group=task.group,
                columns=self.columns(task),
                epsilon=task.epsilon,
                delta=task.delta,
                test_share=0.01,
                seed=task.seed,
                **self.options,
            )
            return run.predict(paths[1], lacking=list(task.levels))["p(1)"].to_numpy()


class EquidpExact(Equidp):
    """By its defaults: edges and categories are those of the rows, which epsilon does not cover."""

    name, options = "equidp, edges not covered", {}

    def columns(self, task: Task) -> dict[str, dict[str, Any]]:
        return {name: each for name, each in super().columns(task).items() if name in task.levels}


class DPEBM(Learner):
    """Boosted step functions of one column each (Nori and others, 2021); a tenth of epsilon goes to edges."""

    name, package = "DP-EBM", "interpret-core"

    def predict(self, task: Task) -> np.ndarray:
        from interpret.privacy import DPExplainableBoostingClassifier

        model = DPExplainableBoostingClassifier(
            feature_names=task.inputs,
            feature_types=["continuous" if column in task.ranges else "nominal" for column in task.inputs],
            privacy_bounds=dict(task.ranges),
            epsilon=task.epsilon,
            delta=task.delta,
            random_state=task.seed,
            n_jobs=1,
        )
        model.fit(task.train[task.inputs], task.train[task.target])
        return model.predict_proba(task.test[task.inputs])[:, 1]


class Boosting(Learner):
    """scikit-learn's boosted trees, without privacy."""

    name, package, private = "boosting", "scikit-learn", False

    def predict(self, task: Task) -> np.ndarray:
        kinds = {column: pd.CategoricalDtype(list(levels)) for column, levels in task.levels.items()}
        model = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=task.seed)
        model.fit(task.train[task.inputs].astype(kinds), task.train[task.target])
        return model.predict_proba(task.test[task.inputs].astype(kinds))[:, 1]


class Logistic(Learner):
    """scikit-learn's logistic regression, without privacy."""

    name, package, private = "logistic", "scikit-learn", False

    def predict(self, task: Task) -> np.ndarray:
        inputs, targets = task.train[task.inputs], task.train[task.target]
        return self.model(task).fit(inputs, targets).predict_proba(task.test[task.inputs])[:, 1]

    def model(self, task: Task) -> Pipeline:
        return make_pipeline(self.encoder(task, StandardScaler()), LogisticRegression(max_iter=1000))

    def encoder(self, task: Task, scaler: Any) -> Any:
        texts = OneHotEncoder(categories=[list(each) for each in task.levels.values()], sparse_output=False)
        return make_column_transformer((scaler, list(task.ranges)), (texts, list(task.levels)))


class ObjectivePerturbation(Logistic):
    """diffprivlib's logistic regression (Chaudhuri and others, 2011): delta is 0, numbers are in [0, 1]."""

    name, package, private = "diffprivlib, logistic", "diffprivlib", True

    def model(self, task: Task) -> Pipeline:
        from diffprivlib.models import LogisticRegression as PrivateRegression

        low, high = np.array(list(task.ranges.values())).T if task.ranges else (0.0, 1.0)
        scaler = FunctionTransformer(lambda rows: np.clip((rows - low) / (high - low), 0, 1))
        norm = len(task.inputs) ** 0.5
        regression = PrivateRegression(
            epsilon=task.epsilon, data_norm=norm, max_iter=1000, random_state=task.seed
        )
        return make_pipeline(self.encoder(task, scaler), regression)
