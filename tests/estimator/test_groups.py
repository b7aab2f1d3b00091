"""`PrivateClassifier` with rates, bounds and budgets by group."""

from __future__ import annotations

import numpy as np
import pytest

import equidp
from equidp.errors import SettingError
from support.errors import raises_field

X = np.random.default_rng(0).normal(size=(200, 3))
Y = X[:, 0] > 0
SEX = np.where(np.arange(200) % 4, "usual", "rare")


def classifier(**given) -> equidp.PrivateClassifier:
    return equidp.PrivateClassifier(epochs=2, batch_size=20, accountant="rdp", **given)


@pytest.mark.soak
def test_budgets_of_groups_are_met_in_each_fit():
    model = classifier(epsilon=2.0, epsilon_by_group={"rare": 1.0}).fit(X, Y, sensitive_features=SEX)
    found = model.run_.epsilon_by_group()
    assert 0.99 <= found["rare"] <= 1.0
    assert 1.99 <= found["usual"] <= 2.0
    assert model.epsilon_spent_ == found["usual"]


@pytest.mark.parametrize(
    ("given", "features", "field"),
    [
        ({"epsilon_by_group": {"raer": 1.0}}, SEX, "epsilon_by_group"),
        ({"epsilon_by_group": {"rare": 4.0}}, SEX, "epsilon_by_group"),
        ({"rates": {"rare": 2.0}}, None, "rates"),
        ({"rates": {"rare": 100.0}}, SEX, "rates"),
        ({"protect_by": "luck"}, SEX, "protect_by"),
    ],
)
def test_groups_that_are_not_there_are_refused(given, features, field):
    with raises_field(SettingError, field):
        classifier(epsilon=3.0, **given).fit(X, Y, sensitive_features=features)
