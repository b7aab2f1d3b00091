"""Weights and coefficients mean what they mean in scikit-learn."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LogisticRegression

import equidp
from equidp.errors import DataError, PrivacyWarning
from support.errors import raises_field

N = 240
pytestmark = pytest.mark.filterwarnings("ignore::equidp.errors.PrivacyWarning")


def table(seed: int, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(N, 3))
    scores = inputs[:, :1] * np.arange(classes) + rng.normal(size=(N, classes))
    return inputs, np.array(["no", "yes", "maybe"])[scores.argmax(axis=1)]


def quick(**settings) -> equidp.PrivateClassifier:
    return equidp.PrivateClassifier(**{"epochs": 3, "accountant": "rdp", **settings})


def exact(**settings) -> dict:
    """Plain gradient descent on all rows until it has converged: no clipping, no noise."""
    return {"method": "sgd", "epsilon": None, "batch_size": N, "learning_rate": 1.0, **settings}


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "classes"), [("rows", 2), ("both", 3)])
def test_without_privacy_weights_are_those_of_logistic_regression(kind, classes):
    X, y = table(0, classes)
    rows = np.random.default_rng(1).uniform(0, 2, N) if kind != "classes" else None
    by_class = {"yes": 3.0, "no": 0.5} if kind != "rows" else None
    ours = quick(epochs=400, class_weight=by_class, **exact(learning_rate=2.0)).fit(X, y, sample_weight=rows)
    theirs = LogisticRegression(C=np.inf, tol=1e-8, class_weight=by_class).fit(X, y, sample_weight=rows)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=2e-3)
    if classes == 2:  # of more classes, coefficients are known up to a shift
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=0.02)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=0.02)
    plain = LogisticRegression(C=np.inf).fit(X, y)
    assert abs(plain.predict_proba(X) - theirs.predict_proba(X)).max() > 0.02  # weights matter here


@pytest.mark.parametrize("classes", [2, 3])
def test_coefficients_give_the_decision_function_and_that_the_predictions(classes):
    X, y = table(3, classes)
    fitted = quick(random_state=0).fit(X, y)
    scores = X @ fitted.coef_.T + fitted.intercept_
    assert fitted.coef_.shape == ((1, 3) if classes == 2 else (3, 3))
    np.testing.assert_allclose(
        fitted.decision_function(X), scores[:, 0] if classes == 2 else scores, rtol=1e-4
    )
    codes = (scores[:, 0] > 0).astype(int) if classes == 2 else scores.argmax(axis=1)
    assert (fitted.classes_[codes] == fitted.predict(X)).all()
    assert SelectFromModel(fitted, prefit=True, max_features=1).transform(X).shape == (N, 1)


@pytest.mark.parametrize(
    ("weights", "given"),
    [
        (np.ones(3), "(3,), and X has 240"),
        (np.ones((N, 2)), "(240, 2)"),
        (np.full(N, np.nan), "missing"),
        (np.full(N, -1.0), "negative"),
        (np.full(N, 1e9), "beyond"),
        (np.where(table(6)[1] == "yes", 1.0, 0.0), "two classes"),
    ],
)
def test_weights_that_are_none_are_refused_before_anything_is_spent(weights, given):
    X, y = table(6)
    ledger = equidp.Ledger(limit=(3.0, 1e-4))
    with raises_field(DataError, "sample_weight", given):
        quick(ledger=ledger).fit(X, y, sample_weight=weights)
    assert ledger.entries() == ()


@pytest.mark.soak
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_counts_the_fits_that_it_carries(copied):
    X, y = table(12)
    model = quick(epsilon=1.0).fit(X[:120], y[:120])
    again = copied(model)
    with pytest.warns(PrivacyWarning, match="2 fits"):
        again.fit(X[:120], y[:120])
    assert again.epsilon_total_ > 1.2
    other = copied(again)
    with pytest.warns(PrivacyWarning, match="3 fits"):
        other.fit(X[120:], y[120:])
    assert other.epsilon_total_ > again.epsilon_total_ > again.run_.epsilon()
    assert model.epsilon_total_ == model.run_.epsilon() <= 1.0  # the original knows of no copy
