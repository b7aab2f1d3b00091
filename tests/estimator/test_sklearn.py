"""scikit-learn's own checks of what an estimator is: settings, inputs, clones, pickles, names of columns and
classes, accuracy."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import equidp

EXPECTED_FAILURES: dict[str, str] = {}
"""Name of a check -> why private training cannot pass it. At epsilon 3 there is none."""


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    # Renyi accounting: each check has its own number of rows, and so a calibration of its own.
    [equidp.PrivateClassifier(accountant="rdp"), equidp.PrivateRegressor(accountant="rdp")],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_accepts_the_estimators(estimator, check):
    check(estimator)
