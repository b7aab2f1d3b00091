"""Metric: a figure of predictions with its range and direction, its value and its interval.

A metric that is not defined, such as the AUC of examples of one class, is NaN with a reason. Intervals, at a
level, speak of the test examples as a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from equidp.errors import SettingError
from equidp.evaluation.intervals import Floats, check_level
from equidp.evaluation.predictions import Predictions

_RESAMPLES = 200


@final
@dataclass(frozen=True)
class Metric:
    """A figure of a model's predictions on examples.

    Attributes:
        name: of its column; letters, digits and underscores.
        function: `Predictions` -> the value. A ValueError says why it is not defined there.
        higher_is_better: whether a larger value is a better model.
        range: the smallest and the largest value that it can have.
        tasks: what it is for: "binary" and "multiclass".
        interval: (predictions, level) -> (low, high); None: percentiles of 200 resamples of the examples,
            drawn from a fixed seed.
        per_example: predictions -> its part of each example, [n], whose mean is the value; None: no such.

    Raises:
        SettingError: a name with other signs, or a range that is none.

    >>> from sklearn.metrics import f1_score
    >>> f1 = Metric("f1", lambda found: f1_score(found.hits, found.answers), True, range=(0, 1))
    >>> shares = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]])
    >>> measure_metric(f1, Predictions(np.array([0, 1, 1]), shares, ("no", "yes"), positive=1))
    (0.666..., '')
    """

    name: str
    function: Callable[[Predictions], float] = field(repr=False)
    higher_is_better: bool
    range: tuple[float, float]
    tasks: tuple[str, ...] = ("binary", "multiclass")
    interval: Callable[[Predictions, float], tuple[float, float]] | None = field(default=None, repr=False)
    per_example: Callable[[Predictions], Floats] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise SettingError(f"metric name {self.name!r}; expected letters, digits and underscores.")
        if not self.range[0] < self.range[1]:
            raise SettingError(
                f"range={self.range} of metric {self.name!r}; expected (low, high), low < high."
            )

    @property
    def sign(self) -> int:
        """Returns 1 where a loss of the metric is a cost, and -1 where a gain is."""
        return 1 if self.higher_is_better else -1

    @property
    def width(self) -> float:
        """Returns how far apart two values can be."""
        return self.range[1] - self.range[0]

    @property
    def percent(self) -> bool:
        """Returns whether it is shown in percentage points."""
        return self.name in _PERCENT

    @property
    def label(self) -> str:
        """Returns its name for readers."""
        return _LABELS.get(self.name, self.name.replace("_", " "))


_PERCENT = ("accuracy", "balanced_accuracy", "recall", "precision", "calibration")
_LABELS = {
    "auc": "AUC",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
    "brier": "Brier score",
    "calibration": "calibration error",
}


class Figure(NamedTuple):
    """A metric's value with its interval; NaN where it is not defined, and then why."""

    value: float
    low: float
    high: float
    reason: str


def measure_metric(metric: Metric, found: Predictions) -> tuple[float, str]:
    """Return a metric's value and "", or NaN and the reason why it is not defined.

    Raises:
        SettingError: the metric's own function fails, or gives no number.
    """
    if not len(found):
        return np.nan, "no test example"
    if not np.isfinite(found.probabilities).all():
        return np.nan, "the model gives no finite numbers: its training diverged"
    try:
        return float(metric.function(found)), ""
    except ValueError as error:
        return np.nan, str(error)
    except Exception as error:
        raise SettingError(
            f"metric {metric.name!r} fails on {len(found):,} predictions ({type(error).__name__}: {error}); "
            "expected a function of equidp.Predictions that returns a number."
        ) from error


def figure(metric: Metric, found: Predictions, level: float) -> Figure:
    """Returns a metric's value with its interval over the examples.

    Raises:
        SettingError: as `measure_metric`, or a level outside (0, 1).
    """
    check_level(level)
    value, reason = measure_metric(metric, found)
    if reason:
        return Figure(value, np.nan, np.nan, reason)
    try:
        low, high = (metric.interval or (lambda *given: _resample_interval(metric, *given)))(found, level)
    except ValueError as error:
        return Figure(value, np.nan, np.nan, f"no interval: {error}")
    return Figure(value, max(low, metric.range[0]), min(high, metric.range[1]), "")


def _resample_interval(metric: Metric, found: Predictions, level: float) -> tuple[float, float]:
    return percentiles(lambda rows: measure_metric(metric, found.take(rows))[0], len(found), level)


def percentiles(
    statistic: Callable[[npt.NDArray[np.int64]], float], count: int, level: float
) -> tuple[float, float]:
    """Returns the ends of the middle `level` of a statistic of resampled rows; always the same draws."""
    generator = np.random.default_rng(0)
    values = [statistic(generator.integers(count, size=count)) for _ in range(_RESAMPLES)]
    if np.isnan(values).all():
        return np.nan, np.nan
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
