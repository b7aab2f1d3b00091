"""References without privacy of a comparison: boosted trees on a table."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from equidp._provenance import versions
from equidp.comparison.cells import CellResult, split_facts
from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
from equidp.engines.units import by_row
from equidp.evaluation.groups import metrics_of
from equidp.evaluation.intervals import Floats
from equidp.store import FIGURES, key_of

BOOSTING = "boosted trees"
"""Name of boosted trees among the methods of a comparison."""
_MOST_TREES = 1000
_TREES_WITHOUT_STOPPING = 100
_FEWEST_TO_STOP_BY = 20
"""Examples of the rarest class from which on a tenth of all is held out to stop by."""


@final
@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """One training of gradient-boosted trees, without privacy, on the training rows of a split.

    They are scikit-learn's `HistGradientBoostingClassifier` on the columns that networks read. A tenth of the
    rows is held out, and trees are added until its loss no longer falls; with fewer than 20 rows of a class
    there are 100 trees.

    Attributes:
        source: where the split of `seed` comes from.
        seed: of the split and of the trees.
        class_weight: class name -> weight of its rows; None: 1 each.
    """

    source: DataSource
    seed: int
    class_weight: Mapping[str, float] | None = None

    method: ClassVar[str] = BOOSTING
    steps: ClassVar[int] = 0
    parts: ClassVar[Mapping[str, Any]] = {}

    @property
    def names(self) -> dict[str, Any]:
        """Names of the training in tables of a comparison."""
        return {"method": self.method, "setting": "", "target_epsilon": math.nan, "seed": self.seed}

    @property
    def label(self) -> str:
        """Name of the training in messages."""
        return f"{self.method} seed={self.seed}"

    @property
    def key(self) -> str:
        """Key of the results: equal for equal data, settings and code."""
        weights = None if self.class_weight is None else dict(self.class_weight)
        settings = [_MOST_TREES, _TREES_WITHOUT_STOPPING, _FEWEST_TO_STOP_BY, weights, self.seed]
        return key_of(self.method, *settings, split_facts(self.source, self.seed), FIGURES, versions())

    def train(self, data: DataSplit) -> CellResult:
        """Train on the split, and return figures of its test set."""
        began = time.perf_counter()
        outputs = torch.from_numpy(np.log(self._shares(data))).float()
        return CellResult(
            results=metrics_of(outputs, data.test).assign(epsilon=math.inf, epsilon_rdp=math.inf),
            epochs=pd.DataFrame(),
            individual=pd.DataFrame(),
            diagnosis={},
            outputs=outputs.numpy(),
            seconds=time.perf_counter() - began,
        )

    def _shares(self, data: DataSplit) -> Floats:
        """Predicted probability of each class for the test rows, [n, classes], and at least 1e-12."""
        rows, targets, weights = _single_rows(data.train)
        stops = int(np.bincount(targets)[np.unique(targets)].min()) >= _FEWEST_TO_STOP_BY
        trees = HistGradientBoostingClassifier(
            max_iter=_MOST_TREES if stops else _TREES_WITHOUT_STOPPING,
            early_stopping=stops,
            random_state=self.seed,
        )
        if self.class_weight is not None:
            by_class = np.array([self.class_weight.get(name, 1.0) for name in data.train.class_names])
            weights = by_class[targets] * (1.0 if weights is None else weights)
        trees.fit(rows, targets, sample_weight=weights)
        shares = np.full((len(data.test), data.test.num_classes), 0.0)
        shares[:, trees.classes_] = trees.predict_proba(data.test.one_tensor.cpu().numpy())
        floored: Floats = np.maximum(shares, 1e-12)
        return floored


def takes_boosted_trees(data: GroupedDataset) -> bool:
    """Return True for classes to predict from rows of a table: one vector of numbers each."""
    one = isinstance(data.inputs, Tensor) and data.inputs.is_floating_point()
    return one and data.target_bounds is None and len(data.input_shape) == 1


def _single_rows(train: GroupedDataset) -> tuple[Floats, np.ndarray, Floats | None]:
    """Inputs [n, d], targets [n] and weights [n] of the rows, also of people with several rows each."""
    inputs, targets, weights = train.one_tensor, train.targets, train.weights
    if train.rows is not None:
        inputs, targets, weights = by_row((inputs, targets, weights))
        present = weights > 0
        inputs, targets, weights = inputs[present], targets[present], weights[present]
    own = None if weights is None else weights.double().cpu().numpy()
    return inputs.cpu().numpy(), targets.cpu().numpy(), own
