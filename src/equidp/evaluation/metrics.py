"""Metrics of predictions: their table, values with intervals, and the test against a constant prediction.

A metric that is not defined, such as the AUC of examples of one class, is NaN with a reason. Intervals, at a
level, speak of the test examples as a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp._validate import unknown_name
from equidp.errors import SettingError, error_text
from equidp.evaluation import intervals
from equidp.evaluation.intervals import Floats, Interval, check_level
from equidp.evaluation.predictions import Predictions, task_of

with require_extra("tables"):
    from sklearn.metrics import (
        accuracy_score,
        average_precision_score,
        balanced_accuracy_score,
        brier_score_loss,
        log_loss,
        precision_score,
        recall_score,
        roc_auc_score,
    )

Ends = tuple[float, float]
_RESAMPLES = 200


@final
@dataclass(frozen=True)
class Metric:
    """A number that describes a model's predictions on examples.

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
    >>> f1 = Metric("f1", lambda of: f1_score(of.hits, of.predicted_positive), higher_is_better=True,
    ...             range=(0, 1))
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
            raise SettingError(
                f"metric name {self.name!r}; expected letters, digits and underscores.", field="name"
            )
        if not self.range[0] < self.range[1]:
            raise SettingError(
                f"range={self.range} of metric {self.name!r}; expected (low, high), low < high."
            )

    @property
    def sign(self) -> int:
        """Return 1 where a loss of the metric is a cost, and -1 where a gain is."""
        return 1 if self.higher_is_better else -1

    @property
    def width(self) -> float:
        """Return how far apart two values can be."""
        return self.range[1] - self.range[0]

    @property
    def percent(self) -> bool:
        """Return whether it is shown in percentage points."""
        return self.name in _PERCENT

    @property
    def label(self) -> str:
        """Return its name for readers."""
        return _LABELS.get(self.name, self.name.replace("_", " "))

    @property
    def heading(self) -> str:
        """Return its label with its unit, such as "accuracy, %"."""
        return f"{self.label}, %" if self.percent else self.label


_PERCENT = ("accuracy", "balanced_accuracy", "recall", "precision", "calibration")
_LABELS = {
    "auc": "AUC",
    "brier": "Brier score",
    "calibration": "calibration error",
}


class MetricValue(NamedTuple):
    """A metric's value with its interval; NaN where it is not defined, and then why."""

    value: float
    low: float
    high: float
    reason: str


def measure_metric(metric: Metric, predictions: Predictions) -> tuple[float, str]:
    """Return a metric's value and "", or NaN and the reason why it is not defined.

    Raises:
        SettingError: the metric's own function fails, or gives NaN.
    """
    if not len(predictions):
        return np.nan, "no test example"
    if not np.isfinite(predictions.probabilities).all():
        return np.nan, "the model gives no finite numbers: its training diverged"
    try:
        return float(metric.function(predictions)), ""
    except ValueError as error:
        return np.nan, str(error)
    except Exception as error:
        raise SettingError(
            f"metric {metric.name!r} fails on {len(predictions):,} predictions "
            f"({error_text(error)}); expected a function of equidp.Predictions that returns a "
            "number."
        ) from error


def measure_with_interval(metric: Metric, predictions: Predictions, level: float) -> MetricValue:
    """Return a metric's value with its interval over the examples.

    Raises:
        SettingError: as `measure_metric`, or a level outside (0, 1).
    """
    check_level(level)
    value, reason = measure_metric(metric, predictions)
    if reason:
        return MetricValue(value, np.nan, np.nan, reason)
    try:
        if metric.interval is None:
            low, high = percentiles(
                lambda rows: measure_metric(metric, predictions.take(rows))[0], len(predictions), level
            )
        else:
            low, high = metric.interval(predictions, level)
    except ValueError as error:
        return MetricValue(value, np.nan, np.nan, f"no interval: {error}")
    return MetricValue(value, max(low, metric.range[0]), min(high, metric.range[1]), "")


def percentiles(
    statistic: Callable[[npt.NDArray[np.int64]], float], count: int, level: float
) -> tuple[float, float]:
    """Return the ends of the middle `level` of a statistic of resampled rows; always the same draws."""
    generator = np.random.default_rng(0)
    values = [statistic(generator.integers(count, size=count)) for _ in range(_RESAMPLES)]
    if np.isnan(values).all():
        return np.nan, np.nan
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def tells_something(metric: Metric, predictions: Predictions, level: float) -> bool:
    """Return whether predictions are better than one constant prediction, by more than the examples' chance.

    A metric of single examples is compared example by example, others by their interval. A metric that a
    constant prediction can have at its best, such as recall, is judged by AUC or balanced accuracy.
    """
    if metric not in map(METRICS.get, _BEST_IF_INFORMED):
        metric = METRICS["auc" if predictions.task == "binary" else "balanced_accuracy"]
    constant = predictions.constant()
    if metric.per_example is not None:
        return bool(metric_cost(metric, constant, predictions, level)[1] > 0)
    reached, known = measure_with_interval(metric, predictions, level), measure_metric(metric, constant)[0]
    return bool(min(metric.sign * (end - known) for end in (reached.low, reached.high)) > 0)


def metric_cost(metric: Metric, ours: Predictions, theirs: Predictions, level: float) -> Interval:
    """Return the difference by which `theirs` are better than `ours` on the same examples, with its interval.

    The interval is that of the differences example by example: Agresti and Min's of accuracy, Student's of
    other metrics of single examples, and of all others percentiles over resamples of the examples.
    """
    intervals.check_level(level)

    def cost(rows: Any = slice(None)) -> float:
        return metric.sign * (
            measure_metric(metric, theirs.take(rows))[0] - measure_metric(metric, ours.take(rows))[0]
        )

    if metric.per_example is None or not len(ours):
        value = cost()
        ends = (np.nan, np.nan) if np.isnan(value) else percentiles(cost, len(ours), level)
        return value, *ends
    better = metric.sign * (metric.per_example(theirs) - metric.per_example(ours))
    between = intervals.paired_interval if metric.name == "accuracy" else intervals.mean_interval
    return between(better, level)


def metric_named(metric: str | Metric) -> Metric:
    """Return a metric of the table by its name, or the given one; a SettingError without such a metric."""
    if isinstance(metric, Metric):
        return metric
    if not isinstance(metric, str):
        raise SettingError(f"metric={metric!r}; expected a name, or an equidp.Metric.", field="metric")
    if metric not in METRICS:
        raise unknown_name("metric", metric, METRICS)
    return METRICS[metric]


_BEST_IF_INFORMED = ("accuracy", "balanced_accuracy", "auc", "average_precision", "log_loss", "brier")


def metric_for(metric: str | Metric | None, class_names: Sequence[str]) -> Metric:
    """Return a metric for so many classes by its name, or the given one; None: accuracy.

    Raises:
        SettingError: no such metric, or one that the task has not; it says which are.
    """
    chosen, task = metric_named("accuracy" if metric is None else metric), task_of(class_names)
    if task not in chosen.tasks:
        others = ", ".join(name for name, each in METRICS.items() if task in each.tasks)
        wanted = "classes" if "multiclass" in chosen.tasks else "two classes"
        raise SettingError(
            f"metric {chosen.name!r} is for {wanted}, and the target has {len(class_names)} classes; choose "
            f"one of {others}."
        )
    return chosen


def _correct(found: Predictions) -> Floats:
    correct: Floats = (found.predicted == found.targets).astype(np.float64)
    return correct


def _log_losses(found: Predictions) -> Floats:
    chosen = found.probabilities[np.arange(len(found)), found.targets]
    losses: Floats = -np.log(np.maximum(chosen, np.finfo(np.float64).eps))  # scikit-learn's smallest
    return losses


def _squares(found: Predictions) -> Floats:
    true = np.eye(len(found.class_names))[found.targets]
    squares: Floats = ((found.probabilities - true) ** 2).sum(axis=1) / 2
    return squares


def _accuracy(found: Predictions) -> float:
    return float(accuracy_score(found.targets, found.predicted))


def _balanced_accuracy(found: Predictions) -> float:
    _check_both_classes(found)
    return float(balanced_accuracy_score(found.targets, found.predicted))


def _auc(found: Predictions) -> float:
    _check_both_classes(found)
    return float(roc_auc_score(found.hits, found.risks))


def _average_precision(found: Predictions) -> float:
    _check_both_classes(found)
    return float(average_precision_score(found.hits, found.risks))


def _log_loss(found: Predictions) -> float:
    return float(log_loss(found.targets, found.probabilities, labels=range(len(found.class_names))))


def _brier(found: Predictions) -> float:
    labels, shares = range(len(found.class_names)), found.probabilities
    if found.task == "binary":
        return float(brier_score_loss(found.targets, shares[:, 1], labels=labels))
    return float(brier_score_loss(found.targets, shares, labels=labels, scale_by_half=True))


def _recall(found: Predictions) -> float:
    if not found.hits.any():
        raise ValueError(f"no example is of class {found.positive_name!r}")
    return float(recall_score(found.hits, found.predicted_positive))


def _precision(found: Predictions) -> float:
    if not found.predicted_positive.any():
        raise ValueError(f"the model predicts {found.positive_name!r} for none")
    return float(precision_score(found.hits, found.predicted_positive))


def _calibration(found: Predictions) -> float:
    return abs(float(found.risks.mean() - found.hits.mean()))


def _check_both_classes(found: Predictions) -> None:
    if (found.counts > 0).sum() < 2:
        raise ValueError("all examples are of one class")


def _rarer_count(found: Predictions) -> int:
    """Number of examples of the rarer of two classes; ValueError: too few for an interval."""
    rarer = int(found.counts.min())
    if rarer < intervals.FEWEST_OF_A_CLASS:
        name = found.class_names[int(found.counts.argmin())]
        raise ValueError(
            f"there are {rarer} examples of class {name!r}, fewer than {intervals.FEWEST_OF_A_CLASS}"
        )
    return rarer


def _share_ends(counted: npt.NDArray[Any], level: float) -> Ends:
    return intervals.wilson(int(counted.sum()), len(counted), level)[1:]


def _balanced_ends(found: Predictions, level: float) -> Ends:
    correct = _correct(found)
    of_classes = [correct[found.targets == each] for each in np.unique(found.targets)]
    return intervals.mean_of_shares(
        [intervals.wilson(int(each.sum()), len(each), level) for each in of_classes]
    )


def _mean_ends(of: Callable[[Predictions], Floats]) -> Callable[[Predictions, float], Ends]:
    """Student's, with the degrees of freedom of the rarer of two classes, on which a mean of losses hangs."""

    def ends(found: Predictions, level: float) -> Ends:
        rarer = _rarer_count(found) if found.task == "binary" else len(found)
        return intervals.mean_interval(of(found), level, freedom=rarer - 1)[1:]

    return ends


def _score_ends(of: Callable[[Any, Any, float], Interval]) -> Callable[[Predictions, float], Ends]:
    def ends(found: Predictions, level: float) -> Ends:
        _rarer_count(found)
        return of(found.hits, found.risks, level)[1:]

    return ends


def _calibration_ends(found: Predictions, level: float) -> Ends:
    """From Wilson's of the observed share, which knows that none in a few examples is not none at all."""
    low, high = (float(end - found.risks.mean()) for end in _share_ends(found.hits, level))
    return 0.0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high))


_SHARE, _TWO = (0.0, 1.0), ("binary",)
_TABLE = (
    Metric(
        "accuracy",
        _accuracy,
        True,
        _SHARE,
        interval=lambda found, level: _share_ends(_correct(found), level),
        per_example=_correct,
    ),
    Metric("balanced_accuracy", _balanced_accuracy, True, _SHARE, interval=_balanced_ends),
    Metric("auc", _auc, True, _SHARE, _TWO, _score_ends(intervals.auc)),
    Metric(
        "average_precision", _average_precision, True, _SHARE, _TWO, _score_ends(intervals.average_precision)
    ),
    Metric(
        "log_loss",
        _log_loss,
        False,
        (0.0, np.inf),
        interval=_mean_ends(_log_losses),
        per_example=_log_losses,
    ),
    Metric("brier", _brier, False, _SHARE, interval=_mean_ends(_squares), per_example=_squares),
    Metric(
        "recall",
        _recall,
        True,
        _SHARE,
        _TWO,
        lambda found, level: _share_ends(found.predicted_positive[found.hits == 1], level),
    ),
    Metric(
        "precision",
        _precision,
        True,
        _SHARE,
        _TWO,
        lambda found, level: _share_ends(found.hits[found.predicted_positive == 1], level),
    ),
    Metric("calibration", _calibration, False, _SHARE, _TWO, _calibration_ends),
)
METRICS = {metric.name: metric for metric in _TABLE}
"""Name -> metric. Accuracies, recall and precision are of the predicted classes, and so of the threshold.
Calibration is how far the mean predicted risk lies from the share of positives."""
