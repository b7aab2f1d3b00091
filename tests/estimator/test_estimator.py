"""The estimators: what goes in, what a fit spends, and that fits of one estimator are added up."""

from __future__ import annotations

import dataclasses
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import equidp
from equidp.accounting.planned import default_delta
from equidp.errors import BudgetError, DataError, PrivacyWarning, SettingError
from equidp.policies.table import METHODS
from support.errors import raises_field

N = 240
GROUPS = np.where(np.arange(N) % 3, "city", "country")

SEEDED = pytest.mark.filterwarnings(
    "ignore:random_state:equidp.errors.PrivacyWarning"
)  # where accuracy is asserted


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(seed).normal(size=(N, 4))
    return inputs, np.where(inputs[:, 0] > 0, "yes", "no")


def quick(method: str = "dpsgd", **settings) -> equidp.PrivateClassifier:
    return equidp.PrivateClassifier(method, **{"epochs": 5, "accountant": "rdp", **settings})


def alone(estimator, *arguments, **named):
    """fit() of an estimator that was not fitted before: complains of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        return estimator.fit(*arguments, **named)


def totals(caught) -> list[str]:
    return [str(each.message) for each in caught if "together spent" in str(each.message)]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "sgd"])
def test_every_method_stays_within_epsilon(method):
    X, y = table(seed=100 + list(METHODS).index(method))
    fitted = alone(quick(method, epsilon=2.0), X, y, sensitive_features=GROUPS)
    assert 1.9 < fitted.epsilon_spent_ <= 2.0
    assert fitted.epsilon_total_ == fitted.epsilon_spent_ == fitted.run_.epsilon()
    assert fitted.delta_ == default_delta(N)
    assert fitted.group_names_ == ("city", "country")


def test_rows_in_another_order_are_refused_and_other_labels_are_not():
    """Matched by position they would give every example someone else's group, and nobody would notice."""
    inputs, target = (values(each) for values, each in zip((pd.DataFrame, pd.Series), table(), strict=True))
    groups = pd.Series(GROUPS)
    with raises_field(DataError, "sensitive_features"):
        quick("dpsgd-f").fit(inputs, target, sensitive_features=groups[::-1])
    with raises_field(DataError, "y"):
        quick("dpsgd-f").fit(inputs, target[::-1], sensitive_features=groups)
    with raises_field(DataError, "sensitive_features"):
        quick("dpsgd-f").fit(inputs.to_numpy(), target, sensitive_features=groups[::-1])
    shifted = groups.set_axis(groups.index + 1)
    assert quick("dpsgd-f").fit(inputs, target, sensitive_features=shifted).group_names_ == (
        "city",
        "country",
    )


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"method": "dpsgd-g"}, "method"),
        ({"epsilon": None}, "epsilon"),
        ({"method": "sgd"}, "epsilon"),
        ({"epsilon": -1}, "epsilon"),
        ({"epochs": 0}, "epochs"),
        ({"model": nn.Linear(4, 2)}, "model"),
        ({"batch_size": 1000}, "batch_size"),
        ({"method_settings": {"smothing": 0.9}}, "method setting"),
        ({"model": lambda shape: nn.Linear(4, 2)}, "model"),
        ({"device": 99}, "device"),
    ],
)
def test_wrong_settings_are_refused(settings, field):
    X, y = table()
    with raises_field(SettingError, field):
        quick(**settings).fit(X, y)


@SEEDED
@pytest.mark.filterwarnings("ignore::equidp.errors.PrivacyWarning")
@pytest.mark.parametrize("refused", ["sample_weight", "epsilon", "ledger"])
def test_a_refused_fit_leaves_the_estimator_as_it_was(refused):
    """Otherwise the old model would predict by the names of the refused fit's classes."""
    X, y = table(seed=18)
    inputs = pd.DataFrame(X, columns=list("abcd"))
    ledger = equidp.Ledger(limit=(3.5, 1e-3))
    model = quick(ledger=ledger if refused == "ledger" else None).fit(inputs, y)
    before, predicted = model.epsilon_total_, model.predict(inputs)
    if refused == "epsilon":
        model.set_params(epsilon=-1)
    others = {"sample_weight": [1.0]} if refused == "sample_weight" else {}
    error = {"sample_weight": DataError, "epsilon": SettingError, "ledger": BudgetError}[refused]
    with pytest.raises(error):
        model.fit(inputs[["a", "b"]], np.where(y == "yes", "good", "bad"), GROUPS, **others)
    assert (model.predict(inputs) == predicted).all()
    assert model.classes_.tolist() == ["no", "yes"]
    assert (model.n_features_in_, model.group_names_) == (4, ("everyone",))
    assert model.epsilon_total_ == before


@pytest.mark.soak
def test_an_estimator_that_is_fitted_again_warns_with_the_total():
    X, y = table(seed=9)
    model, entries = quick(epsilon=1.0), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for scale in (1.0, 2.0, 3.0):  # other rows may be of the same people
            model.fit(scale * X, y)
            entries += model.run_.entries
    assert [text.split()[0] for text in totals(caught)] == ["2", "3"]
    by_best_order = equidp.kernel.epsilon.epsilon(tuple(entries), model.delta_, "rdp")
    assert by_best_order <= model.epsilon_total_ < 1.2 * by_best_order < 3.0
    assert f"epsilon {model.epsilon_total_:.4g}" in totals(caught)[-1]


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::equidp.errors.PrivacyWarning")
def test_fits_chosen_by_results_add_up_at_the_order_of_the_first():
    """Privacy losses of a second fit whose settings follow from the first may not be composed."""
    X, y = table(seed=9)
    model = quick(epsilon=1.0, epochs=1).fit(X, y)
    entries, ledger = model.run_.entries, equidp.Ledger()
    (event, steps) = entries[0]
    ledger.check(event, steps, delta=model.delta_)
    model.set_params(epochs=3, batch_size=60).fit(X, y)
    entries += model.run_.entries
    assert model.epsilon_total_ == ledger.spent(entries, delta=model.delta_)
    assert model.epsilon_total_ > equidp.kernel.epsilon.epsilon(entries, model.delta_)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::equidp.errors.PrivacyWarning")
def test_groups_are_routed_as_metadata():
    X, y = table(seed=12)
    with sklearn.config_context(enable_metadata_routing=True):
        model = make_pipeline(StandardScaler(), quick("dpsgd-f").set_fit_request(sensitive_features=True))
        done = cross_validate(model, X, y, cv=2, params={"sensitive_features": GROUPS}, return_estimator=True)
        search = GridSearchCV(model, {"privateclassifier__clipping_bound": [0.5, 1.0]}, cv=2)
        search.fit(X, y, sensitive_features=GROUPS)
    assert all(each[-1].group_names_ == ("city", "country") for each in done["estimator"])
    assert search.best_estimator_[-1].group_names_ == ("city", "country")


@pytest.mark.soak
def test_one_limit_holds_for_all_folds_and_refuses_the_one_too_many():
    X, y = table(seed=13)
    ledger = equidp.Ledger(limit=(3.0, 1e-4))
    model = quick(epsilon=1.5, ledger=ledger)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        cross_validate(model, X, y, cv=2, error_score="raise")
    assert 1.5 < ledger.spent() <= 3.0
    with raises_field(BudgetError, "ledger"):
        cross_validate(model, X, y, cv=5, error_score="raise")
    assert ledger.spent() <= 3.0
    assert clone(model).ledger is ledger
    with raises_field(BudgetError, "ledger"):
        pickle.dumps(model)


@pytest.mark.soak
def test_what_a_stopped_fit_spent_is_counted(monkeypatch):
    X, y = table(seed=14)
    model = quick()
    step, steps = equidp.Trainer.step, []

    def interrupted(self):
        taken = step(self)
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return taken

    monkeypatch.setattr(equidp.Trainer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert 0 < model.epsilon_spent_ < 3.0
    monkeypatch.undo()
    with pytest.warns(PrivacyWarning, match="2 fits"):
        model.fit(X, y)
    assert model.epsilon_total_ > model.epsilon_spent_


def test_options_of_a_plan_are_arguments_of_estimators_with_the_same_defaults():
    """A new option of `Plan` becomes an argument of `PrivateEstimator`, or is listed here with the reason."""
    not_arguments = {
        "noise_multiplier",  # follows from epsilon
        "risk",
        "steps",  # follow from epochs
        "sample_rate",  # the number of rows is public
        "workers",  # rows are in memory
        "physical_batch_size",
        "views",  # of images
        "augmentation",
    }
    own_defaults = {"batch_size", "learning_rate", "class_weight"}  # by the number of rows and the optimizer
    own_defaults |= {"epsilon", "epochs"}  # those of a plan say that none is given
    arguments = {each.name: each.default for each in dataclasses.fields(equidp.PrivateClassifier)}
    options = {each.name: each.default for each in equidp.Plan.options()}
    assert options.keys() - arguments.keys() == not_arguments
    same = options.keys() & arguments.keys() - own_defaults
    assert {name: arguments[name] for name in same} == {name: options[name] for name in same}


def test_groups_are_crossed_from_columns_and_missing_ones_are_a_group():
    X, y = table(seed=2)
    groups = pd.DataFrame({"sex": np.where(np.arange(N) % 2, "F", "M"), "old": np.arange(N) % 3 == 0})
    groups.loc[0, "sex"] = None
    fitted = alone(quick("dpsgd-f"), X, y, sensitive_features=groups.set_index(np.arange(N) + 5))
    assert "F, False" in fitted.group_names_
    assert "missing, True" in fitted.group_names_
    assert len(fitted.group_names_) == 5


def test_without_privacy_it_says_so():
    X, y = table(seed=3)
    with pytest.warns(PrivacyWarning, match="without privacy"):
        fitted = quick("sgd", epsilon=None).fit(X, y)
    assert math.isinf(fitted.epsilon_spent_)
    with pytest.warns(PrivacyWarning, match="follow from a seed"):
        quick(random_state=5).fit(X, y)


def test_fits_outside_the_ledger_count_in_the_total():
    X, y = table(seed=13)
    first, second = (equidp.Ledger(limit=(9.0, 1e-4)) for _ in range(2))
    model = quick(epsilon=1.0).fit(X, y)
    alone = model.epsilon_total_
    with pytest.warns(PrivacyWarning, match="1 fits"):
        model.set_params(ledger=first).fit(X, y)
    assert model.epsilon_total_ > 1.2 * alone
    with pytest.warns(PrivacyWarning, match="2 fits"):
        model.set_params(ledger=second).fit(X, y)
    assert model.epsilon_total_ > 1.5 * alone
