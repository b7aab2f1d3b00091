"""Blind spots of a model's main metric are found, and no more than chance allows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from equidp.data.dataset import GroupedDataset
from equidp.evaluation.blind_spots import BlindSpots
from equidp.evaluation.calibration import RiskOff, calibration_table, risks_off
from equidp.evaluation.groups import parts_of
from equidp.evaluation.metrics import METRICS
from equidp.evaluation.predictions import Decision, Predictions
from equidp.evaluation.small_cells import SmallCells

NAMES = ("well", "ill", "dead")


def predictions(targets, shares, names=NAMES, positive=None) -> Predictions:
    return Predictions(np.asarray(targets, dtype=np.int64), np.asarray(shares), names, positive)


def find(targets, shares) -> BlindSpots:
    return BlindSpots.of(predictions(targets, shares), METRICS["accuracy"], 0.95)


def test_what_accuracy_hides_is_found():
    assert find([0, 0, 0, 2], [[0.7, 0.2, 0.1]] * 4) == BlindSpots("well", 0.75, ("ill", "dead"), True)
    assert not find([0, 1, 2] * 20, np.tile(np.eye(3), (20, 1)))


def calibration(targets: torch.Tensor, shares: list[float], names=NAMES[:2]) -> pd.DataFrame:
    """Of a model that predicts these shares for every example."""
    n = len(targets)
    test = GroupedDataset(torch.zeros(n, 1), targets, torch.arange(n) % 2, ("a", "b"), names)
    outputs = torch.tensor(shares, dtype=torch.float64).log().expand(n, -1)
    return calibration_table(parts_of(test, outputs, None, Decision(), SmallCells()), 0.95)


def risks(predicted: float, observed: float, *hidden: str) -> tuple[RiskOff, ...]:
    targets = (torch.arange(1000) < round(1000 * observed)).long()
    return risks_off(calibration(targets, [1 - predicted, predicted]), SmallCells({"": hidden}))


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
    assert [each.group for each in risks(0.3, 0.04, "a")] == ["all", "b"]


def test_models_of_more_classes_have_no_risks():
    assert calibration(torch.tensor([0, 1, 2]), [0.2, 0.3, 0.5], NAMES).empty
