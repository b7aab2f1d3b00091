"""Advice stays within epsilon together with its own cost, follows docs/advise.md, and can be trained with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from equidp.accounting import calibrate_noise, effective_noise_multiplier
from equidp.advice.advise import advise
from equidp.advice.norm_profile import _EDGES, NormProfile
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent
from equidp.kernel.policy import statistics_noise


def profile(
    median: float = 1.0, shares: tuple[float, ...] = (0.5, 0.5), cost: float = 0.0, delta: float = 1e-6
):
    """Norms that are log-normal about a median; private at some cost, or public."""
    middle = np.log(_EDGES / median)
    counts = (*(1e4 * np.exp(-0.5 * (middle / 0.3) ** 2)).tolist(), 0.0)
    spent = ((StepEvent(1.0, calibrate_noise(cost, delta, 1.0, 1)), 1),) if cost else ()
    return NormProfile(counts, shares, spent)


def total(advice, num_examples: int) -> float:
    """Epsilon of advice and training, from the plan that one would train with."""
    plan = advice.plan("logistic")
    noise = plan.noise_multiplier
    event = StepEvent(
        plan.batch_size / num_examples, noise, statistics_noise(plan.policy(advice.method), noise)
    )
    return epsilon((*advice.spent, (event, advice.steps)), advice.delta)


@pytest.fixture
def renyi(monkeypatch):
    """Takes the noise from Renyi accounting, which is quicker, where the noise is not the subject."""

    def calibrate(epsilon, delta, rate, steps, statistics, accountant, spent):
        return calibrate_noise(epsilon, delta, rate, steps, statistics, "rdp", spent)

    monkeypatch.setattr("equidp.advice.advise.calibrate_noise", calibrate)


@pytest.mark.parametrize("examples", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_advice_and_training_together_stay_within_epsilon(examples):
    @settings(max_examples=examples)
    @given(
        n=st.integers(40, 200_000),
        d=st.integers(1, 10**6),
        target=st.floats(0.3, 8.0),
        shares=st.sampled_from([(1.0,), (0.5, 0.5), (0.99, 0.01)]),
        known=st.sampled_from(["nothing", "public", "private"]),
    )
    def check(n, d, target, shares, known):
        cost = target / 10 if known == "private" else 0.0
        found = None if known == "nothing" else profile(1.0, shares, cost)
        advice = advise(n, d, epsilon=target, delta=1e-6, num_groups=len(shares), profile=found)
        assert 0.98 * target < total(advice, n) <= target
        assert advice.cost == (0 if known != "private" else pytest.approx(target / 10, rel=1e-2))
        assert advice.settings["learning_rate"] > 0
        assert 1 <= advice.settings["batch_size"] <= n

    check()


@pytest.mark.soak
def test_what_the_advice_cost_raises_the_noise(renyi):
    given = {"epsilon": 3.0, "delta": 1e-6, "num_groups": 2}
    free = advise(36_177, 82, **given, profile=profile())
    paid = advise(36_177, 82, **given, profile=profile(cost=1.0))
    assert free.settings == paid.settings
    assert paid.noise_multiplier > 1.01 * free.noise_multiplier


def method(n: int, d: int, shares: tuple[float, ...], target: float = 3.0) -> str:
    known = profile(1.0, shares)
    return advise(n, d, epsilon=target, num_groups=len(shares), profile=known).method


@pytest.mark.soak
def test_methods_with_a_profile_follow_the_rules(renyi):
    assert method(36_177, 82, (1.0,)) == "dpsgd"  # one group
    assert method(36_177, 82, (0.67, 0.33)) == "dpsgd-f-code"  # large groups: Adult
    assert method(36_177, 82, (0.99, 0.001)) == "global-adapt"  # a rare group, little noise
    assert method(1_229, 6_090, (0.99, 0.01)) == "dpsgd"  # a rare group, much noise: digits


@pytest.mark.soak
def test_methods_without_a_profile_follow_the_rules(renyi):
    assert advise(36_177, 82, epsilon=3.0, num_groups=2).method == "global-adapt"
    assert advise(36_177, 82, epsilon=3.0).method == "quantile"
    assert advise(1_229, 10**6, epsilon=1.0, num_groups=2).method == "automatic"
    noisy = NormProfile((0.0,) * 77, (0.5, 0.5), ((StepEvent(1.0, 100.0), 1),))
    advice = advise(36_177, 82, epsilon=3.0, num_groups=2, profile=noisy)
    assert advice.method == "global-adapt"
    assert any("do not stand out" in reason for reason in advice.reasons)
    assert advice.cost > 0


@pytest.mark.soak
def test_the_bound_is_higher_where_noise_is_lower(renyi):
    quiet, loud = (advise(n, 100, epsilon=3.0, profile=profile(2.0)) for n in (50_000, 200))
    assert quiet.settings["clipping_bound"] == pytest.approx(profile(2.0).quantile(0.99), rel=5e-3)
    assert loud.settings["clipping_bound"] < quiet.settings["clipping_bound"]
    assert loud.settings["clipping_bound"] >= profile(2.0).quantile(0.5) * 0.995


def test_noise_moves_the_weights_by_no_more_than_the_rule_says(renyi):
    advice = advise(1_229, 6_090, epsilon=3.0, profile=profile(2.0))
    settings = advice.settings
    noise = effective_noise_multiplier(advice.noise_multiplier, None)
    walk = settings["learning_rate"] * noise * settings["clipping_bound"] / settings["batch_size"]
    # The rule is worked out with Renyi accounting, whose noise is somewhat above the recommended.
    assert 3.5 < walk * (advice.steps * 6_090) ** 0.5 <= 4.05


_RIGHT = {"num_examples": 1000, "num_parameters": 10, "epsilon": 2.0, "delta": 1e-6, "num_groups": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_examples": 0}, "num_examples=0"),
        ({"num_parameters": 1.5}, "num_parameters=1.5"),
        ({"num_groups": 0}, "num_groups=0"),
        ({"epsilon": 0}, "target_epsilon=0"),
        ({"delta": 1}, "delta=1"),
    ],
    ids=str,
)
def test_wrong_numbers_are_refused(given, message):
    with pytest.raises(SettingError, match=message):
        advise(**{**_RIGHT, **given})


@pytest.mark.soak
def test_a_profile_that_leaves_nothing_is_refused():
    with pytest.raises(SettingError, match="nothing is left to train with"):
        advise(**_RIGHT, profile=profile(cost=3.0))
