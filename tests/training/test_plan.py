"""Plans carry the published settings, and every method's name makes a policy that keeps the contract."""

from __future__ import annotations

import pytest

from equidp.accounting.schedule import default_delta
from equidp.data import SOURCES
from equidp.data.published import PUBLISHED
from equidp.errors import SettingError
from equidp.policies import GlobalAdapt, check_policy
from equidp.policies.methods import METHODS
from equidp.training.plan import Plan, default_plan


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("data", PUBLISHED)
def test_every_method_of_every_plan_keeps_the_contract(name, data):
    policy = METHODS[name].make(default_plan(data).for_method(name), 4)
    check_policy(policy, 4, noise_multiplier=0.0 if name == "sgd" else default_plan(data).noise_multiplier)


def test_every_named_dataset_has_a_plan():
    assert set(PUBLISHED) == set(SOURCES)


def test_esipovas_statistics_noise_is_ten_not_ten_sigma():
    plan = default_plan("mnist-esipova").for_method("global-adapt")
    policy = METHODS["global-adapt"].make(plan, 10)
    assert isinstance(policy, GlobalAdapt)
    policy.prepare(noise_multiplier=plan.noise_multiplier, expected_batch_size=256.0)
    assert policy.statistics_noise == pytest.approx(10.0)
    assert plan.learning_rate == 0.1


def test_a_change_holds_for_every_method():
    plan = default_plan("mnist-esipova").with_changes({"learning_rate": 0.5})
    assert {plan.for_method(name).learning_rate for name in METHODS} == {0.5}
    assert plan.for_method("global").strict_bound == 100.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "lenett"}, "Did you mean 'lenet'"),
        ({"learning_rate": 0.0}, "learning_rate=0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1"),
        ({"by_method": {"dpsgd": {"lerning_rate": 1.0}}}, "Did you mean 'learning_rate'"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(SettingError, match=message):
        Plan(**settings)


@pytest.mark.parametrize(("n", "delta"), [(1617, 1e-5), (36177, 1e-6), (54649, 1e-6), (1000, 1e-4)])
def test_default_delta_is_well_below_one_over_n(n, delta):
    assert default_delta(n) == pytest.approx(delta)
