"""`PrivateClassifier` of people who chose their own epsilon."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import equidp
from equidp.errors import DataError, SettingError
from support.errors import raises_field

X = np.random.default_rng(0).normal(size=(200, 3))
Y = X[:, 0] > 0
CHOICES = np.array([0.5, 1.0, 2.0])[np.arange(200) % 3]


def classifier(**given) -> equidp.PrivateClassifier:
    return equidp.PrivateClassifier(epochs=2, batch_size=20, accountant="rdp", epsilon=2.0, **given)


@pytest.mark.soak
def test_each_person_has_at_most_the_chosen_epsilon():
    """People with two rows, of which the smaller choice counts, and rows of their own."""
    model = classifier(epsilon_levels=[0.5, 1, 2]).fit(X, Y, epsilons=CHOICES)
    for level, found in zip((0.5, 1.0, 2.0), model.run_.epsilon_by_level().values(), strict=True):
        assert 0.99 * level <= found <= level
    assert model.epsilon_spent_ == found
    model = classifier(epsilon_levels=[0.5, 1, 2], rows_per_person=2)
    model.fit(X, Y, epsilons=CHOICES, people=np.arange(200) // 2)
    assert model.run_.epsilon_by_level()["level 0.5"] <= 0.5


@pytest.mark.parametrize(
    ("levels", "x", "epsilons", "error", "field"),
    [
        ([0.5, 2], X, CHOICES, DataError, "epsilons"),
        ([0.5, 1, 2], X, None, DataError, "epsilons"),
        ([0.5, 1, 2], X, CHOICES[:5], DataError, "epsilons"),
        ([0.5, 1], X, CHOICES, SettingError, "epsilon_levels"),
        (None, X, CHOICES, SettingError, "epsilon_levels"),
        ([0.5, 1, 2], sparse.csr_matrix(X), CHOICES, SettingError, "epsilons"),
    ],
)
def test_choices_that_cannot_be_kept_are_refused(levels, x, epsilons, error, field):
    with raises_field(error, field):
        classifier(epsilon_levels=levels).fit(x, Y, epsilons=epsilons)
