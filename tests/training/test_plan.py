"""Plans carry the published settings, and are resolved for every method."""

from __future__ import annotations

import pytest

from equidp.accounting.planned import default_delta
from equidp.data.published import PUBLISHED
from equidp.errors import SettingError
from equidp.kernel.policy import statistics_noise
from equidp.policies import DPSGD, PSAC, GlobalAdapt
from equidp.policies.methods import fixed_options
from equidp.policies.table import METHODS
from equidp.training.plan import Plan, default_plan
from equidp.training.resolved import ResolvedPlan
from support.errors import raises_field


@pytest.mark.parametrize("data", PUBLISHED)
def test_every_method_of_every_plan_is_resolved(data):
    """That its policy keeps the contract is in tests/policies, whatever its settings."""
    for name, method in METHODS.items():
        plan = default_plan(data).for_method(name).resolve(10_000)
        assert isinstance(plan.policy, method.policy)
        assert (plan.noise_multiplier == 0) == (name == "sgd")
        assert ResolvedPlan.from_plain(plan.to_plain()) == plan


def test_esipovas_statistics_noise_is_ten_not_ten_sigma():
    plan = default_plan("mnist-esipova").for_method("global-adapt").resolve(54649)
    assert isinstance(plan.policy, GlobalAdapt)
    assert statistics_noise(plan.policy, plan.noise_multiplier) == pytest.approx(10.0)
    assert plan.learning_rate == 0.1


FREE = [name for name in METHODS if not fixed_options(name)]


def test_a_change_holds_for_every_method():
    plan = default_plan("mnist-esipova").with_changes({"learning_rate": 0.5})
    assert {plan.for_method(name).learning_rate for name in FREE} == {0.5}
    assert plan.for_method("global").policy.strict_bound == 100.0
    changed = plan.with_changes({"strict_bound": 70.0})
    assert changed.for_method("global").policy.strict_bound == 70.0


def test_what_differs_for_a_method_is_its_own():
    plan = Plan(
        by_method={"dpsgd": {"epochs": 3, "clipping_bound": 0.1}}, method_settings={"clipping_bound": 2.0}
    )
    assert plan.with_usual_noise().resolve(512).policy == DPSGD(0.1)
    assert (
        plan.with_usual_noise().resolve(512).steps,
        plan.for_method("psac").with_usual_noise().resolve(512).steps,
    ) == (6, 40)
    assert plan.for_method("psac").with_usual_noise().resolve(512).policy == PSAC(2.0)


@pytest.mark.parametrize("change", [{"epsilon": 3.0}, {"epsilon_by_group": "rare=1,*=3"}])
def test_a_change_of_what_decides_the_noise_holds_for_every_method(change):
    plan = Plan(by_method={"psac": {"noise_multiplier": 2.0}}).with_changes(change).for_method("psac")
    assert (plan.noise_multiplier, plan.run_epsilon) == (None, 3.0)


@pytest.mark.parametrize(
    ("settings", "field", "given"),
    [
        ({"model": "lenett"}, "model", "'lenet'"),
        ({"learning_rate": 0.0}, "learning_rate", "0.0"),
        ({"by_method": {"dpsgd": {"lerning_rate": 1.0}}}, "setting of dpsgd", "'learning_rate'"),
        ({"method_settings": {"cliping_bound": 1.0}}, "method setting", "'clipping_bound'"),
        ({"momentum": 1.0}, "momentum", "1.0"),
        ({"batch_size": -1}, "batch_size", "-1"),
    ],
)
def test_bad_settings_are_named(settings, field, given):
    with raises_field(SettingError, field, given):
        Plan(**settings)


@pytest.mark.parametrize(("n", "delta"), [(1617, 1e-5), (36177, 1e-6), (54649, 1e-6), (1000, 1e-4)])
def test_default_delta_is_well_below_one_over_n(n, delta):
    assert default_delta(n) == pytest.approx(delta)
