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
from equidp.evaluation.intervals import (
    FEWEST_OF_A_CLASS,
    Floats,
    Interval,
    auc_interval,
    check_level,
    mean_interval,
    mean_of_shares,
    paired_interval,
    wilson,
)
from equidp.evaluation.predictions import Codes, Predictions, task_of

with require_extra("tables"):
    from sklearn.metrics import roc_auc_score

Ends = tuple[float, float]
_RESAMPLES = 200


@final
@dataclass(frozen=True)
class Metric:
    """A number that describes a model's predictions on examples.

    Attributes:
        name: name of its column, in letters, digits and underscores.
        function: `Predictions` -> value. It raises a ValueError with the reason if the value is undefined.
        higher_is_better: whether a larger value means a better model.
        range: smallest and largest possible value.
        tasks: tasks that it supports: "binary" and "multiclass".
        interval: (predictions, level) -> (low, high). None: percentiles of 200 resamples of the examples,
            drawn from a fixed seed.
        per_example: predictions -> value of each example, [n], whose mean is the metric. None: not available.

    Raises:
        SettingError: the name has other characters, or the range is invalid.

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
        """Return 1 if a decrease of the metric is a cost, and -1 if an increase is."""
        return 1 if self.higher_is_better else -1

    @property
    def width(self) -> float:
        """Return the largest difference between two values."""
        return self.range[1] - self.range[0]

    @property
    def percent(self) -> bool:
        """Return whether it is shown in percentage points."""
        return self.name in _PERCENT

    @property
    def label(self) -> str:
        """Return its display name."""
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
    """A metric's value with its interval; NaN with the reason if it is not defined."""

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

    The interval is for the differences example by example. It is Agresti and Min's for accuracy, and
    Student's for other metrics of single examples. For all others it has percentiles over resamples of the
    examples.
    """
    check_level(level)

    def cost(rows: Any = slice(None)) -> float:
        return metric.sign * (
            measure_metric(metric, theirs.take(rows))[0] - measure_metric(metric, ours.take(rows))[0]
        )

    if metric.per_example is None or not len(ours):
        value = cost()
        ends = (np.nan, np.nan) if np.isnan(value) else percentiles(cost, len(ours), level)
        return value, *ends
    better = metric.sign * (metric.per_example(theirs) - metric.per_example(ours))
    between = paired_interval if metric.name == "accuracy" else mean_interval
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


_BEST_IF_INFORMED = ("accuracy", "balanced_accuracy", "auc", "log_loss", "brier")


def metric_for(metric: str | Metric | None, class_names: Sequence[str]) -> Metric:
    """Return a metric for this many classes by its name, or the given one. None: accuracy.

    Raises:
        SettingError: no such metric, or one that the task has not. It says which are.
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


def _recalled(found: Predictions) -> Codes:
    if not found.hits.any():
        raise ValueError(f"no example is of class {found.positive_name!r}")
    recalled: Codes = found.predicted_positive[found.hits == 1]
    return recalled


def _precise(found: Predictions) -> Codes:
    if not found.predicted_positive.any():
        raise ValueError(f"the model predicts {found.positive_name!r} for none")
    precise: Codes = found.hits[found.predicted_positive == 1]
    return precise


def _correct_by_class(found: Predictions) -> list[Floats]:
    _check_several_classes(found)
    return [_correct(found.take(found.targets == each)) for each in np.unique(found.targets)]


def _check_several_classes(found: Predictions) -> None:
    if (found.counts > 0).sum() < 2:
        raise ValueError("all examples are of one class")


def _rarer_count(found: Predictions) -> int:
    """Number of examples of the rarer of two classes; ValueError: too few for an interval."""
    rarer = int(found.counts.min())
    if rarer < FEWEST_OF_A_CLASS:
        name = found.class_names[int(found.counts.argmin())]
        raise ValueError(f"there are {rarer} examples of class {name!r}, fewer than {FEWEST_OF_A_CLASS}")
    return rarer


def _share(name: str, counted: Callable[[Predictions], Floats | Codes], **options: Any) -> Metric:
    """Metric that is the share of ones among some examples, with Wilson's interval."""

    def ends(found: Predictions, level: float) -> Ends:
        ones = counted(found)
        return wilson(int(ones.sum()), len(ones), level)[1:]

    return Metric(name, lambda found: float(counted(found).mean()), True, _SHARE, interval=ends, **options)


def _loss(name: str, losses: Callable[[Predictions], Floats], largest: float) -> Metric:
    """Metric that is a mean of losses, with Student's interval.

    Its degrees of freedom come from the rarer of two classes, on which a mean of losses depends.
    """

    def ends(found: Predictions, level: float) -> Ends:
        rarer = _rarer_count(found) if found.task == "binary" else len(found)
        return mean_interval(losses(found), level, freedom=rarer - 1)[1:]

    mean = lambda found: float(losses(found).mean())  # noqa: E731
    return Metric(name, mean, False, (0.0, largest), interval=ends, per_example=losses)


def _balanced_accuracy(found: Predictions) -> float:
    return float(np.mean([each.mean() for each in _correct_by_class(found)]))


def _balanced_ends(found: Predictions, level: float) -> Ends:
    return mean_of_shares([wilson(int(each.sum()), len(each), level) for each in _correct_by_class(found)])


def _auc(found: Predictions) -> float:
    _check_several_classes(found)
    return float(roc_auc_score(found.hits, found.risks))


def _auc_ends(found: Predictions, level: float) -> Ends:
    _rarer_count(found)
    return auc_interval(found.hits, found.risks, level)[1:]


def _calibration(found: Predictions) -> float:
    return abs(float(found.risks.mean() - found.hits.mean()))


def _calibration_ends(found: Predictions, level: float) -> Ends:
    """From Wilson's of the observed share, which knows that none in a few examples is not none at all."""
    low, high = (
        end - float(found.risks.mean()) for end in wilson(int(found.hits.sum()), len(found), level)[1:]
    )
    return 0.0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high))


_SHARE, _TWO = (0.0, 1.0), ("binary",)
_TABLE = (
    _share("accuracy", _correct, per_example=_correct),
    Metric("balanced_accuracy", _balanced_accuracy, True, _SHARE, interval=_balanced_ends),
    Metric("auc", _auc, True, _SHARE, _TWO, _auc_ends),
    _loss("log_loss", _log_losses, np.inf),
    _loss("brier", _squares, 1.0),
    _share("recall", _recalled, tasks=_TWO),
    _share("precision", _precise, tasks=_TWO),
    Metric("calibration", _calibration, False, _SHARE, _TWO, _calibration_ends),
)
METRICS = {metric.name: metric for metric in _TABLE}
"""Name -> metric. Accuracies, recall and precision use the predicted classes, and so depend on the threshold.
Calibration is the distance between the mean predicted probability and the share of positives."""
