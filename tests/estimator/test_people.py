"""fit(X, y, people=...): each person with all rows is one example."""

from __future__ import annotations

import numpy as np
import pytest

import equidp
from equidp.errors import DataError, SettingError
from equidp.training.initial_weights import FRESH
from support.errors import raises_field

pytestmark = pytest.mark.filterwarnings("ignore::equidp.errors.PrivacyWarning")


def table(n: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, classes and whose rows they are: a hundred people of three."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, 3))
    return rows, np.where(rows[:, 0] > 0, "yes", "no"), np.arange(n) % 100


def quick(**settings) -> equidp.PrivateClassifier:
    return equidp.PrivateClassifier(**{"epochs": 4, "batch_size": 25, "accountant": "rdp", **settings})


@pytest.mark.soak
def test_people_are_counted_sampled_and_promised_epsilon():
    rows, classes, people = table()
    model = quick(rows_per_person=3).fit(rows, classes, people=people)
    facts = model.run_.facts
    assert (facts.num_examples, facts.rows, facts.start.weights) == (100, 3, FRESH)
    (event, steps), *_ = model.run_.entries
    assert (event.rate, steps) == (0.25, 16)
    assert model.epsilon_spent_ <= 3
    assert len(model.predict(rows)) == 300


def test_what_cannot_be_is_refused():
    rows, classes, people = table()
    with raises_field(SettingError, "rows_per_person"):
        quick().fit(rows, classes, people=people)
    with raises_field(SettingError, "rows_per_person"):
        quick(rows_per_person=3).fit(rows, classes)
    with raises_field(SettingError, "most_rows"):
        quick(rows_per_person=0).fit(rows, classes, people=people)
    with raises_field(DataError, "people", "10", "300"):
        quick(rows_per_person=3).fit(rows, classes, people=people[:10])


@pytest.mark.soak
def test_fits_on_rows_and_on_people_have_no_total():
    rows, classes, people = table()
    model = quick().fit(rows, classes)
    model.set_params(rows_per_person=3)
    with pytest.warns(equidp.errors.PrivacyWarning, match="cannot be added"):
        model.fit(rows, classes, people=people)
    assert model.epsilon_spent_ <= 3
    assert model.epsilon_total_ == float("inf")
