"""class_weight="balanced" counts classes with noise that epsilon and ledger pay for; own losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import equidp
from equidp.data import class_counts
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.ledger.renyi import renyi_epsilon
from equidp.losses import Loss
from equidp.tables.release import private_counts
from support.errors import raises_field
from support.releases import paid_for

N = 2000
DELTA = 1e-4
pytestmark = pytest.mark.filterwarnings("ignore::equidp.errors.PrivacyWarning")


def table(seed: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng([seed, 92]).normal(size=(N, 3))  # rows of no other file of tests
    return X, np.where(X[:, 0] > 1.4, "yes", "no")  # 8% yes


def quick(**settings) -> equidp.PrivateClassifier:
    given = {"epochs": 1, "accountant": "rdp", "class_weight": "balanced", "counts_share": 0.1}
    return equidp.PrivateClassifier(**{**given, **settings})


def by_truth(y) -> np.ndarray:
    counts = np.array([(y == "no").sum(), (y == "yes").sum()])
    return counts.min() / counts


@pytest.fixture
def drawn(monkeypatch):
    """(codes, noise multiplier) of each draw of counts."""
    draws = []

    def watched(codes, cells, *, noise_multiplier, randomness):
        draws.append((codes, noise_multiplier))
        return private_counts(codes, cells, noise_multiplier=noise_multiplier, randomness=randomness)

    monkeypatch.setattr(class_counts, "private_counts", watched)
    return draws


@pytest.mark.soak
def test_a_fit_with_its_counts_spends_epsilon_and_no_more(drawn):
    X, y = table(0)
    model = quick(epsilon=2.0, delta=DELTA).fit(X, y)
    event = paid_for("class counts", 0.1 * 2.0, DELTA)
    assert model.run_.entries[0] == (event, 1)
    assert 1.99 < epsilon_of(model.run_.entries, DELTA, "rdp") <= 2.0
    assert model.epsilon_spent_ == model.epsilon_total_ == model.run_.epsilon()
    assert model.epsilon_spent_ == epsilon_of(model.run_.entries, DELTA, "rdp")
    plain = quick(epsilon=2.0, delta=DELTA, class_weight=None).fit(X, y)
    assert model.noise_multiplier_ > plain.noise_multiplier_
    assert plain.class_weight_.tolist() == [1.0, 1.0]
    # Each row is in one count, and the noise is what was charged for a sensitivity of 1.
    ((codes, noise),) = drawn
    assert (codes == (y == "yes")).all()
    assert noise == event.noise


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:weights of rows reach:equidp.errors.DataWarning")
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_come_near_the_truth_and_are_what_is_trained_on(weighted):
    X, y = table(1)
    rows = np.arange(N) % 3 if weighted else None
    given = {"epsilon": 50.0, "counts_share": 0.5, "epochs": 3, "random_state": 0}
    model = quick(**given).fit(X, y, sample_weight=rows)
    # The noise's deviation is below 1 of about 160 rows: off by a twentieth with probability below 1e-14.
    np.testing.assert_allclose(model.class_weight_, by_truth(y), rtol=0.05)
    loss = replace(Loss.of(model.run_.loss), row_weights=False)
    plain = loss(torch.zeros(2, 2), torch.tensor([0, 1]))
    np.testing.assert_allclose(plain / np.log(2), model.class_weight_, rtol=1e-5)
    again = quick(**given).fit(X, y, sample_weight=rows)
    other = quick(**{**given, "random_state": 1}).fit(X, y, sample_weight=rows)
    assert (again.class_weight_ == model.class_weight_).all()
    assert (again.coef_ == model.coef_).all()
    assert (other.class_weight_ != model.class_weight_).any()
    secure = [quick(**{**given, "random_state": None}).fit(X, y).class_weight_ for _ in range(2)]
    assert (secure[0] != secure[1]).any()


@pytest.mark.soak
def test_a_limit_that_holds_the_whole_is_charged_once_and_one_that_does_not_reads_nothing(drawn):
    X, y = table(4)
    ledger = equidp.Ledger(limit=(2.5, DELTA))
    model = quick(epsilon=2.0, delta=DELTA, ledger=ledger).fit(X, y)
    assert sorted(ledger.entries(), key=str) == sorted(model.run_.entries, key=str)
    assert ledger.spent() == model.epsilon_total_ <= 2.5
    assert len(drawn) == 1

    # Room for the steps, and not for the counts beside them.
    steps = [entry for entry in model.run_.entries if entry[0].rate < 1]
    between = (ledger.spent(delta=DELTA) + renyi_epsilon(steps, ledger.order, DELTA)) / 2
    small = equidp.Ledger(limit=(between, DELTA))
    small._order = ledger.order
    again, kept = model.set_params(ledger=small), model.coef_.copy()
    with raises_field(BudgetError, "ledger"):
        again.fit(X, y)
    assert len(drawn) == 1
    assert small.entries() == ()
    small.check(*steps[0])
    assert (again.coef_ == kept).all()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"counts_share": 0.0}, "counts_share"),
        ({"counts_share": 1.0}, "counts_share"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"class_weight": "balance"}, "class_weight"),
        ({"epsilon": None}, "epsilon"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_before_anything_is_read(settings, field, drawn):
    X, y = table(7)
    ledger = equidp.Ledger(limit=(3.0, DELTA))
    with raises_field(SettingError, field):
        quick(ledger=ledger, **settings).fit(X, y)
    assert not drawn
    assert ledger.entries() == ()
