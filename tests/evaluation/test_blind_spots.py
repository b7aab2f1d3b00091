"""Blind spots of a model's main metric are found, and no more than chance allows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from equidp.evaluation.blind_spots import BlindSpots, RiskOff, calibration_table, risks_off
from equidp.evaluation.metrics import METRICS
from equidp.evaluation.predictions import Predictions

NAMES = ("well", "ill", "dead")


def predictions(targets, shares, names=NAMES, positive=None) -> Predictions:
    return Predictions(np.asarray(targets, dtype=np.int64), np.asarray(shares), names, positive)


def find(targets, shares) -> BlindSpots:
    return BlindSpots.of(predictions(targets, shares), METRICS["accuracy"], 0.95)


def test_what_accuracy_hides_is_found():
    assert find([0, 0, 0, 2], [[0.7, 0.2, 0.1]] * 4) == BlindSpots("well", 0.75, ("ill", "dead"), True)
    assert not find([0, 1, 2] * 20, np.tile(np.eye(3), (20, 1)))


def risks(predicted: float, observed: float, n: int = 1000, shown=("a", "b", "all")) -> tuple[RiskOff, ...]:
    targets = np.zeros(n, dtype=np.int64)
    targets[: round(n * observed)] = 1
    found = predictions(targets, np.tile([1 - predicted, predicted], (n, 1)), NAMES[:2], 1)
    return risks_off(calibration_table(found, np.arange(n) % 2, ("a", "b"), 0.95), shown)


@pytest.mark.parametrize(
    ("predicted", "observed", "off"),
    [
        (0.019, 0.072, True),
        (0.07, 0.072, False),
        (0.06, 0.072, False),
        (0.80, 0.95, True),
        (0.945, 0.95, False),
    ],
)
def test_risks_are_off_where_they_differ_by_a_fifth_and_by_more_than_chance(predicted, observed, off):
    found = risks(predicted, observed)
    assert bool(found) == off
    if off:
        assert found[0] == RiskOff("all", pytest.approx(predicted), pytest.approx(observed))


def test_a_group_that_is_not_shown_is_not_spoken_of():
    assert [each.group for each in risks(0.3, 0.04, 1000, shown=("b", "all"))] == ["all", "b"]


def test_models_of_more_classes_have_no_risks():
    found = Predictions(np.array([0, 1, 2]), np.eye(3), NAMES)
    assert calibration_table(found, np.zeros(3), ("a",), 0.95).empty
    assert isinstance(calibration_table(found, np.zeros(3), ("a",), 0.95), pd.DataFrame)
