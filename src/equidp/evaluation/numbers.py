"""Metrics of predicted numbers, by scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from equidp.evaluation import intervals
from equidp.evaluation.intervals import Floats
from equidp.evaluation.metric import Metric
from equidp.evaluation.predictions import Predictions

REGRESSION = "regression"


def _rmse(found: Predictions) -> float:
    return float(root_mean_squared_error(found.targets, found.values))


def _rmse_interval(found: Predictions, level: float) -> tuple[float, float]:
    squares = (found.values - found.targets) ** 2
    _, low, high = intervals.mean_interval(squares, level, (0.0, np.inf))
    return float(np.sqrt(low)), float(np.sqrt(high))


def _mae(found: Predictions) -> float:
    return float(mean_absolute_error(found.targets, found.values))


def _errors(found: Predictions) -> Floats:
    errors: Floats = np.abs(found.values - found.targets)
    return errors


def _mae_interval(found: Predictions, level: float) -> tuple[float, float]:
    _, low, high = intervals.mean_interval(_errors(found), level, (0.0, np.inf))
    return low, high


def _r2(found: Predictions) -> float:
    if len(found) < 2 or np.ptp(found.targets) == 0:
        raise ValueError("fewer than two different targets")
    return float(r2_score(found.targets, found.values))


NUMBERS = (
    Metric("rmse", _rmse, False, (0.0, np.inf), (REGRESSION,), interval=_rmse_interval),
    Metric("mae", _mae, False, (0.0, np.inf), (REGRESSION,), interval=_mae_interval, per_example=_errors),
    Metric("r2", _r2, True, (-np.inf, 1.0), (REGRESSION,)),
)
"""Root mean squared error and mean absolute error in the units of the target, and the share of its variance
that predictions explain."""
