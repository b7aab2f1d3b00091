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


def metric_named(metric: str | Metric | Any) -> Metric:
    """Return a metric of the table by its name, or a user-defined one.

    Args:
        metric: a name from `METRICS`, a `Metric`, or an object with its name, function, higher_is_better and
            range.

    Raises:
        SettingError: no such name, or an object that lacks one of these.
    """
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        if metric not in METRICS:
            raise unknown_name("metric", metric, METRICS)
        return METRICS[metric]
    if not _is_metric(metric):
        raise SettingError(f"metric={metric!r}; expected an equidp.Metric, with {', '.join(_NEEDED)}.")
    return Metric(*(getattr(metric, name) for name in _NEEDED))


_BEST_IF_INFORMED = ("accuracy", "balanced_accuracy", "auc", "average_precision", "log_loss", "brier")
_NEEDED = ("name", "function", "higher_is_better", "range")


def _is_metric(thing: object) -> bool:
    return all(hasattr(thing, name) for name in _NEEDED)


def check_task(metric: Metric, class_names: Sequence[str]) -> None:
    """Raise a SettingError unless the metric is for so many classes; say which are."""
    task = task_of(class_names)
    if task not in metric.tasks:
        others = ", ".join(name for name, each in METRICS.items() if task in each.tasks)
        wanted = "classes" if "multiclass" in metric.tasks else "two classes"
        raise SettingError(
            f"metric {metric.name!r} is for {wanted}, and the target has {len(class_names)} classes; choose "
            f"one of {others}."
        )


def metric_for(metric: str | Metric | Any | None, class_names: Sequence[str]) -> Metric:
    """Return a metric by its name, or a user-defined one; None: accuracy.

    Raises:
        SettingError: no such metric, or one that the task has not.
    """
    chosen = metric_named("accuracy" if metric is None else metric)
    check_task(chosen, class_names)
    return chosen


def _accuracy(predictions: Predictions) -> float:
    return float(accuracy_score(predictions.targets, predictions.predicted))


def _correct(predictions: Predictions) -> Floats:
    correct: Floats = (predictions.predicted == predictions.targets).astype(np.float64)
    return correct


def _balanced_accuracy(predictions: Predictions) -> float:
    _check_both_classes(predictions)
    return float(balanced_accuracy_score(predictions.targets, predictions.predicted))


def _balanced_interval(predictions: Predictions, level: float) -> tuple[float, float]:
    correct = _correct(predictions)
    recalls = [
        intervals.wilson(int(correct[predictions.targets == each].sum()), int(count), level)
        for each, count in enumerate(predictions.counts)
        if count
    ]
    return intervals.mean_of_shares(recalls)


def _auc(predictions: Predictions) -> float:
    _check_both_classes(predictions)
    return float(roc_auc_score(predictions.hits, predictions.risks))


def _average_precision(predictions: Predictions) -> float:
    _check_both_classes(predictions)
    return float(average_precision_score(predictions.hits, predictions.risks))


def _log_loss(predictions: Predictions) -> float:
    return float(
        log_loss(predictions.targets, predictions.probabilities, labels=range(len(predictions.class_names)))
    )


def _log_losses(predictions: Predictions) -> Floats:
    chosen = predictions.probabilities[np.arange(len(predictions)), predictions.targets]
    losses: Floats = -np.log(np.maximum(chosen, np.finfo(np.float64).eps))  # scikit-learn's smallest
    return losses


def _brier(predictions: Predictions) -> float:
    labels = range(len(predictions.class_names))
    if predictions.task == "binary":
        return float(brier_score_loss(predictions.targets, predictions.probabilities[:, 1], labels=labels))
    return float(
        brier_score_loss(predictions.targets, predictions.probabilities, labels=labels, scale_by_half=True)
    )


def _squares(predictions: Predictions) -> Floats:
    true = np.eye(len(predictions.class_names))[predictions.targets]
    squares: Floats = ((predictions.probabilities - true) ** 2).sum(axis=1) / 2
    return squares


def _recall(predictions: Predictions) -> float:
    if not predictions.hits.any():
        raise ValueError(f"no example is of class {predictions.positive_name!r}")
    return float(recall_score(predictions.hits, predictions.predicted_positive))


def _precision(predictions: Predictions) -> float:
    if not predictions.predicted_positive.any():
        raise ValueError(f"the model predicts {predictions.positive_name!r} for none")
    return float(precision_score(predictions.hits, predictions.predicted_positive))


def _calibration(predictions: Predictions) -> float:
    return abs(float(predictions.risks.mean() - predictions.hits.mean()))


def _calibration_interval(predictions: Predictions, level: float) -> tuple[float, float]:
    """From Wilson's of the observed share, which knows that none in a few examples is not none at all."""
    _, low, high = intervals.wilson(int(predictions.hits.sum()), len(predictions), level)
    ends = low - predictions.risks.mean(), high - predictions.risks.mean()
    return 0.0 if ends[0] <= 0 <= ends[1] else min(map(abs, ends)), max(map(abs, ends))


def _share_interval(
    of: Callable[[Predictions], Any], among: Callable[[Predictions], Any] | None = None
) -> Callable[[Predictions, float], tuple[float, float]]:
    def ends(predictions: Predictions, level: float) -> tuple[float, float]:
        counted = of(predictions) if among is None else of(predictions)[among(predictions) == 1]
        _, low, high = intervals.wilson(int(counted.sum()), len(counted), level)
        return low, high

    return ends


def _hits(predictions: Predictions) -> Any:
    return predictions.hits


def _predicted_positive(predictions: Predictions) -> Any:
    return predictions.predicted_positive


def _mean_interval(
    of: Callable[[Predictions], Floats],
) -> Callable[[Predictions, float], tuple[float, float]]:
    """Student's, with the degrees of freedom of the rarer of two classes, on which a mean of losses hangs."""

    def ends(predictions: Predictions, level: float) -> tuple[float, float]:
        rarer = _rarer_count(predictions) if predictions.task == "binary" else len(predictions)
        _, low, high = intervals.mean_interval(of(predictions), level, freedom=rarer - 1)
        return low, high

    return ends


def _score_interval(
    of: Callable[[Any, Any, float], Interval],
) -> Callable[[Predictions, float], tuple[float, float]]:
    def ends(predictions: Predictions, level: float) -> tuple[float, float]:
        _rarer_count(predictions)
        _, low, high = of(predictions.hits, predictions.risks, level)
        return low, high

    return ends


def _check_both_classes(predictions: Predictions) -> None:
    if (predictions.counts > 0).sum() < 2:
        raise ValueError("all examples are of one class")


def _rarer_count(predictions: Predictions) -> int:
    """Number of examples of the rarer of two classes; ValueError: too few for an interval."""
    rarer = int(predictions.counts.min())
    if rarer < intervals.FEWEST_OF_A_CLASS:
        name = predictions.class_names[int(predictions.counts.argmin())]
        raise ValueError(
            f"there are {rarer} examples of class {name!r}, fewer than {intervals.FEWEST_OF_A_CLASS}"
        )
    return rarer


_SHARE, _TWO = (0.0, 1.0), ("binary",)
_TABLE = (
    Metric("accuracy", _accuracy, True, _SHARE, interval=_share_interval(_correct), per_example=_correct),
    Metric("balanced_accuracy", _balanced_accuracy, True, _SHARE, interval=_balanced_interval),
    Metric("auc", _auc, True, _SHARE, _TWO, _score_interval(intervals.auc)),
    Metric(
        "average_precision",
        _average_precision,
        True,
        _SHARE,
        _TWO,
        _score_interval(intervals.average_precision),
    ),
    Metric(
        "log_loss",
        _log_loss,
        False,
        (0.0, np.inf),
        interval=_mean_interval(_log_losses),
        per_example=_log_losses,
    ),
    Metric("brier", _brier, False, _SHARE, interval=_mean_interval(_squares), per_example=_squares),
    Metric("recall", _recall, True, _SHARE, _TWO, _share_interval(_predicted_positive, among=_hits)),
    Metric("precision", _precision, True, _SHARE, _TWO, _share_interval(_hits, among=_predicted_positive)),
    Metric("calibration", _calibration, False, _SHARE, _TWO, _calibration_interval),
)
METRICS = {metric.name: metric for metric in _TABLE}
"""Name -> metric. Accuracies, recall and precision are of the predicted classes, and so of the threshold.
Calibration is how far the mean predicted risk lies from the share of positives."""
