"""Blind spots of a model's main metric: constant predictions, and classes never predicted."""

from __future__ import annotations

from dataclasses import dataclass

from equidp.evaluation.metrics import METRICS, Metric, tells_something
from equidp.evaluation.predictions import Predictions


@dataclass(frozen=True)
class BlindSpots:
    """Findings on what a model's main metric hides on some examples.

    Attributes:
        constant_class: the most frequent class.
        constant_value: accuracy of always predicting that class.
        never_predicted: classes that the model predicts for no example.
        uninformative: True where the model is no better than one constant prediction by the metric.
        ranking_auc: AUC of an uninformative model of two classes whose ranking is better than chance.

    >>> import numpy as np
    >>> found = Predictions(np.array([0, 0, 0, 1]), np.tile([0.9, 0.1], (4, 1)), ("well", "ill"), 1)
    >>> BlindSpots.of(found, METRICS["accuracy"], 0.95)
    BlindSpots(constant_class='well', constant_value=0.75, never_predicted=('ill',), uninformative=True, \
ranking_auc=None)
    """

    constant_class: str
    constant_value: float
    never_predicted: tuple[str, ...] = ()
    uninformative: bool = False
    ranking_auc: float | None = None

    def __bool__(self) -> bool:
        """True where the metric hides something."""
        return self.uninformative or bool(self.never_predicted)

    @classmethod
    def of(cls, found: Predictions, metric: Metric, level: float) -> BlindSpots:
        """Return the findings on predictions of one or more examples; `level` is of the intervals."""
        uninformative, area = not tells_something(metric, found, level), None
        given = set(found.predicted.tolist())
        never = [name for at, name in enumerate(found.class_names) if at not in given]
        if uninformative and metric.name != "auc" and found.task == "binary":
            ranks = tells_something(METRICS["auc"], found, level)
            area = METRICS["auc"].function(found) if ranks else None
        name, share = found.class_names[int(found.counts.argmax())], found.counts.max() / len(found)
        return cls(name, float(share), tuple(never), uninformative, area)
