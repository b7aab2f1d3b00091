"""Conformance of metrics: value, interval and range; a user-defined one is a line in CASES."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from equidp.evaluation.metrics import METRICS, Metric, measure_with_interval, metric_named
from equidp.evaluation.predictions import Predictions

OWN = Metric("f1", lambda found: f1_score(found.hits, found.predicted_positive), True, range=(0, 1))
CASES = [*(metric_named(name) for name in METRICS), OWN]


def made(n: int = 400, *, positive: int = 1, threshold: float | None = None) -> Predictions:
    """Two classes, three tenths of them positive, and risks that are a little right."""
    generator = np.random.default_rng(0)
    hits = (generator.random(n) < 0.3).astype(np.int64)
    risks = 1 / (1 + np.exp(1.5 - hits - generator.standard_normal(n)))
    both = np.stack([1 - risks, risks], axis=1)
    targets, both = (hits, both) if positive else (1 - hits, both[:, ::-1])
    return Predictions(targets, both, ("no", "yes"), positive, threshold)


@pytest.fixture(params=CASES, ids=lambda metric: metric.name)
def metric(request) -> Metric:
    return request.param


def test_the_value_lies_in_its_interval_both_in_the_range_and_again_the_same(metric):
    for found in (made(), made(40, positive=0, threshold=0.3)):
        value, low, high, reason = measure_with_interval(metric, found, 0.9)
        assert reason == ""
        assert metric.range[0] <= low <= value <= high <= metric.range[1]
    assert measure_with_interval(metric, found, 0.9) == (value, low, high, reason)
