"""Non-private models on the rows of a split, to compare a private model with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from equidp._extras import require_extra
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.engines.units import by_row
from equidp.errors import SettingError
from equidp.evaluation.intervals import LEVEL, Floats
from equidp.evaluation.metrics import METRICS, Metric, MetricValue, measure_with_interval
from equidp.evaluation.predictions import Codes, Decision, Predictions
from equidp.evaluation.small_cells import SmallCells

with require_extra("tables"):
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

MOST_TREES = 1000
TREES_WITHOUT_STOPPING = 100
FEWEST_TO_STOP_BY = 20
"""Number of examples of the rarest class from which a tenth of all is held out for stopping."""


def reference(
    split: DataSplit, metric: Metric | None = None, decision: Decision = Decision()
) -> dict[str, MetricValue]:
    """Return a metric of logistic regression and of boosted trees without privacy, by name.

    Both come from scikit-learn. They are trained on the rows and inputs of the split, with the training
    weights, and tested like a private model, without examples of few people. Epsilon does not cover their
    results.

    Args:
        split: split of a table.
        metric: None: AUC of two classes, else accuracy.
        decision: decision for two classes.

    Raises:
        SettingError: the inputs do not come from a table.

    >>> from equidp.data import open_source
    >>> values = reference(open_source("adult").split(0))  # doctest: +SKIP
    >>> {name: round(each.value, 2) for name, each in values.items()}  # doctest: +SKIP
    {'logistic regression': 0.9, 'boosted trees': 0.92}
    """
    if len(split.train.input_shape) != 1 or not split.train.one_tensor.is_floating_point():
        raise SettingError(
            f"a reference is for tables, of one vector of numbers a row; these inputs are "
            f"{tuple(split.train.input_shape)}. Leave it out.",
            field="reference",
        )
    metric = metric or METRICS["auc" if split.test.num_classes == 2 else "accuracy"]
    rows, targets, weights = single_rows(split.train)
    test, left = split.test, SmallCells.of(split.test).shown_in(split.test)
    shown = test.one_tensor.cpu().numpy()[left]
    size = float(np.sqrt(np.square(rows[rows != 0], dtype=np.float64).mean())) if rows.any() else 1.0
    logistic = LogisticRegression(max_iter=1000).fit(rows / size, targets, sample_weight=weights)
    trees = fit_trees(rows, targets, weights, seed=0)
    shares = {
        "logistic regression": (logistic.classes_, logistic.predict_proba(shown / size)),
        "boosted trees": (trees.classes_, trees.predict_proba(shown)),
    }
    values = {}
    for name, (classes, probabilities) in shares.items():
        every = np.zeros((len(shown), test.num_classes))
        every[:, classes] = probabilities
        predicted = Predictions(
            test.targets.cpu().numpy()[left],
            every,
            tuple(test.class_names),
            decision.index(test.class_names),
            decision.threshold,
        )
        values[name] = measure_with_interval(metric, predicted, LEVEL)
    return values


def single_rows(train: GroupedDataset) -> tuple[Floats, Codes, Floats | None]:
    """Return inputs [n, d], targets [n] and weights [n] of rows, also of people with several rows each."""
    inputs, targets, weights = train.one_tensor, train.targets, train.weights
    if train.rows is not None:
        inputs, targets, weights = by_row((inputs, targets, weights))
        present = weights > 0
        inputs, targets, weights = inputs[present], targets[present], weights[present]
    shares = None if weights is None else weights.to(torch.float64).cpu().numpy()
    return inputs.cpu().numpy(), targets.cpu().numpy(), shares


def fit_trees(rows: Floats, targets: Codes, weights: Any, *, seed: int) -> HistGradientBoostingClassifier:
    """Return gradient-boosted trees, scikit-learn's `HistGradientBoostingClassifier`.

    A tenth of the rows is held out, and trees are added until its loss no longer falls. With fewer than 20
    rows of a class there are 100 trees. Arguments are as in `single_rows`; `seed` draws the rows held out.
    """
    stops = int(np.bincount(targets)[np.unique(targets)].min()) >= FEWEST_TO_STOP_BY
    trees = HistGradientBoostingClassifier(
        max_iter=MOST_TREES if stops else TREES_WITHOUT_STOPPING,
        early_stopping=stops,
        random_state=seed,
    )
    return trees.fit(rows, targets, sample_weight=weights)
