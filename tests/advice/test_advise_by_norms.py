"""Advice by norms stays within epsilon together with its own cost, and can be trained with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from equidp.accounting import calibrate_noise, effective_noise_multiplier
from equidp.accounting.target import Target
from equidp.advice.advise import advise_by_norms
from equidp.advice.norm_profile import _EDGES, NormProfile
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent
from equidp.kernel.policy import statistics_noise
from equidp.training.plan import Plan
from support.errors import raises_field


def profile(median: float = 1.0, cost: float = 0.0, delta: float = 1e-6):
    """Norms that are log-normal about a median; private at some cost, or public."""
    middle = np.log(_EDGES / median)
    counts = (*(1e4 * np.exp(-0.5 * (middle / 0.3) ** 2)).tolist(), 0.0)
    spent = ((StepEvent(1.0, calibrate_noise(cost, delta, 1.0, 1)), 1),) if cost else ()
    return NormProfile(counts, spent)


def advise(n: int, d: int, **given):
    return advise_by_norms(n, d, **{"model": "logistic", "epsilon": 3.0, "delta": 1e-6, **given})


def total(advice, num_examples: int, target: float, accountant: str = "rdp") -> float:
    """Epsilon of advice and training, from the plan that one would train with."""
    plan = advice.plan(Plan(delta=1e-6)).resolve(
        advice.method, num_examples, Target(target, accountant=accountant), also_spent=advice.spent
    )
    event = StepEvent(
        plan.sample_rate, plan.noise_multiplier, statistics_noise(plan.policy, plan.noise_multiplier)
    )
    return epsilon((*advice.spent, (event, plan.steps)), plan.delta, accountant)


@pytest.mark.parametrize("examples", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_advice_and_training_together_stay_within_epsilon(examples):
    @settings(max_examples=examples)
    @given(
        n=st.integers(40, 200_000),
        d=st.integers(1, 10**6),
        target=st.floats(0.3, 8.0),
        known=st.sampled_from(["nothing", "public", "private"]),
    )
    def check(n, d, target, known):
        cost = target / 10 if known == "private" else 0.0
        found = None if known == "nothing" else profile(1.0, cost)
        advice = advise(n, d, epsilon=target, profile=found)
        assert 0.98 * target < total(advice, n, target) <= target
        assert advice.cost(1e-6) == (0 if known != "private" else pytest.approx(target / 10, rel=1e-2))
        assert advice.settings["learning_rate"] > 0
        assert 1 <= advice.settings["batch_size"] <= n

    check()


@pytest.mark.soak
def test_a_profile_sets_the_bound_and_without_one_it_follows_the_norms():
    known, unknown = advise(36_177, 82, profile=profile()), advise(36_177, 82)
    noisy = advise(36_177, 82, profile=NormProfile((0.0,) * 77, ((StepEvent(1.0, 100.0), 1),)))
    assert (known.method, unknown.method, noisy.method) == ("dpsgd", "quantile", "quantile")
    assert "noisy profile" in [reason.name for reason in noisy.reasons]
    assert noisy.cost(1e-6) > 0


@pytest.mark.soak
def test_a_profile_that_was_paid_for_raises_the_noise():
    free, paid = (advise(36_177, 82, profile=profile(cost=cost)) for cost in (0.0, 1.0))
    assert free.settings == paid.settings
    noises = [
        each.plan(Plan(delta=1e-6))
        .resolve(each.method, 36_177, Target(3.0, accountant="rdp"), also_spent=each.spent)
        .noise_multiplier
        for each in (free, paid)
    ]
    assert noises[1] > 1.01 * noises[0]


def test_the_bound_is_higher_where_noise_is_lower():
    quiet, loud = (advise(n, 100, profile=profile(2.0)) for n in (50_000, 200))
    assert quiet.settings["clipping_bound"] == pytest.approx(profile(2.0).quantile(0.99), rel=5e-3)
    assert loud.settings["clipping_bound"] < quiet.settings["clipping_bound"]
    assert loud.settings["clipping_bound"] >= profile(2.0).quantile(0.5) * 0.995


@pytest.mark.soak
def test_noise_moves_the_weights_by_no_more_than_the_rule_says():
    advice = advise(1_229, 6_090, profile=profile(2.0))
    plan = advice.plan(Plan(delta=1e-6)).resolve("dpsgd", 1_229, Target(3.0, accountant="rdp"))
    settings, noise = advice.settings, effective_noise_multiplier(plan.noise_multiplier, None)
    walk = settings["learning_rate"] * noise * settings["clipping_bound"] / settings["batch_size"]
    assert 3.5 < walk * (plan.steps * 6_090 / 3) ** 0.5 <= 4.05  # rates fall from the first to 0


_RIGHT = {"num_examples": 1000, "num_parameters": 10, "model": "mlp", "epsilon": 2.0, "delta": 1e-6}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"num_examples": 0}, "num_examples"),
        ({"num_parameters": 1.5}, "num_parameters"),
        ({"epsilon": 0}, "target_epsilon"),
        ({"delta": 1}, "delta"),
    ],
    ids=str,
)
def test_wrong_numbers_are_refused(given, field):
    with raises_field(SettingError, field):
        advise_by_norms(**{**_RIGHT, **given})


def test_a_profile_that_leaves_nothing_is_refused():
    with raises_field(SettingError, "epsilon"):
        advise_by_norms(**_RIGHT, profile=profile(cost=3.0))
