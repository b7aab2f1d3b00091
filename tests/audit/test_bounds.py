"""Lower bounds are what their papers say, and are above the truth as seldom as they say."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given, strategies as st
from scipy import stats
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from equidp.audit.bounds import (
    NoiseFamily,
    Rates,
    epsilon_from_rates,
    epsilon_of_guesses,
    noise_from_rates,
    noise_of_guesses,
    p_value,
)
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent
from support.errors import raises_field

ONE_GAUSSIAN = NoiseFamily([(StepEvent(1.0, 1.0), 1)])


def gaussian_epsilon(mu: float, delta: float) -> float:
    return get_epsilon_gaussian(1 / mu, delta)


@given(
    st.integers(1, 12).flatmap(lambda r: st.tuples(st.just(r), st.integers(0, r))),
    st.floats(0, 4),
    st.floats(0, 0.1),
)
def test_the_p_value_is_algorithm_d1(guesses_right, epsilon_, delta):
    """Steinke, Nasr, Jagielski 2023, as printed there: loops over i."""
    guesses, right = guesses_right
    canaries = guesses + 3
    q = 1 / (1 + math.exp(-epsilon_))
    beta, alpha, running = stats.binom.sf(right - 1, guesses, q), 0.0, 0.0
    for i in range(1, right + 1):
        running += stats.binom.pmf(right - i, guesses, q)
        alpha = max(alpha, running / i)
    expected = min(beta + alpha * delta * 2 * canaries, 1.0)
    assert p_value(canaries, right, guesses, epsilon_, delta) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("delta", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("epsilon_", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("mechanism", ["each alone", "all at once"])
def test_no_private_mechanism_is_right_more_often_than_the_p_value_allows(mechanism, epsilon_, delta):
    """By enumeration of all outcomes for 6 canaries: randomised response, which with probability delta shows
    a bit as it is, or all of them."""
    m = 6
    response = math.exp(epsilon_) / (1 + math.exp(epsilon_))
    chances = np.zeros(m + 1)
    for outcome in itertools.product((0, 1), repeat=m):
        right = sum(outcome)
        if mechanism == "each alone":
            hit = delta + (1 - delta) * response
            chances[right] += hit**right * (1 - hit) ** (m - right)
        else:
            chances[right] += (1 - delta) * response**right * (1 - response) ** (m - right)
    if mechanism == "all at once":
        chances[m] += delta
    for right in range(m + 1):
        assert chances[right:].sum() <= p_value(m, right, m, epsilon_, delta) + 1e-12


@pytest.mark.soak
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("m", [20, 200])
def test_one_run_bounds_exceed_the_truth_in_one_of_twenty_runs_at_most(m, mu):
    """Exactly: with each canary seen through noise of its own, the number right is binomial."""
    delta = 1e-3
    truth = gaussian_epsilon(mu, delta)
    chance = stats.norm.cdf(mu / 2)
    least = next(
        (v for v in range(m // 2, m + 1) if noise_of_guesses(m, v, m, ONE_GAUSSIAN, delta) > truth), m + 1
    )
    assert stats.binom.sf(least - 1, m, chance) <= 0.05
    least = next((v for v in range(m // 2, m + 1) if epsilon_of_guesses(m, v, m, delta) > truth), m + 1)
    assert stats.binom.sf(least - 1, m, chance) <= 0.05


def test_the_tighter_one_run_bound_is_the_recursion_of_its_paper():
    """Mahloujifar et al. 2410.22235, Algorithm 3, written out with k = 2."""
    m, guesses, right, delta = 60, 30, 26, 1e-3

    def passes(mu: float) -> bool:
        def least(rate: float) -> float:
            return float(ndtr(ndtri(rate) - mu))

        r, h = {right: 0.05 * right / m}, {right: 0.05 * (guesses - right) / m}
        for i in reversed(range(right)):
            h[i] = max(h[i + 1], least(r[i + 1]))
            r[i] = r[i + 1] + i / (guesses - i) * (h[i] - h[i + 1])
        return r[0] + h[0] >= guesses / m

    largest = brentq(lambda mu: passes(mu) - 0.5, 0.01, 6, xtol=1e-6)
    found = noise_of_guesses(m, right, guesses, ONE_GAUSSIAN, delta)
    assert found == pytest.approx(gaussian_epsilon(largest, delta), rel=2e-3)


def test_the_tighter_one_run_bound_is_tighter():
    for m, guesses, right in [(1000, 200, 180), (1000, 1000, 640), (500, 100, 100), (100, 20, 16)]:
        tight = noise_of_guesses(m, right, guesses, ONE_GAUSSIAN, 1e-5)
        assert tight > epsilon_of_guesses(m, right, guesses, 1e-5)


def test_rates_bound_a_gaussian_by_its_mu():
    rates, delta = Rates(900, 1000, 10, 1000), 1e-5
    found = stats.beta.ppf(0.025, 900, 101)
    false = stats.beta.ppf(0.975, 11, 990)
    mu = stats.norm.ppf(found) - stats.norm.ppf(false)
    assert noise_from_rates(rates, ONE_GAUSSIAN, delta) == pytest.approx(
        gaussian_epsilon(mu, delta), rel=1e-4
    )
    assert epsilon_from_rates(rates, delta) == pytest.approx(math.log((found - delta) / false))


def test_rates_are_judged_from_both_sides():
    """A rule that is hardly ever wrong about "out" is worth as much as one about "in"."""
    rates = Rates(400, 1000, 1, 1000)
    assert epsilon_from_rates(rates, 1e-5) == epsilon_from_rates(rates.swap_sides(), 1e-5) > 3


@pytest.mark.soak
@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_many_run_bounds_exceed_the_truth_in_one_of_twenty_audits_at_most(mu):
    """Exactly, over all pairs of counts of 60 runs a side with a threshold between the means."""
    runs, delta = 60, 1e-3
    truth = gaussian_epsilon(mu, delta)
    found, false = stats.norm.cdf(mu / 2), stats.norm.cdf(-mu / 2)
    too_high = 0.0
    for a in range(runs + 1):
        bounds = [
            noise_from_rates(Rates(a, runs, b, runs), ONE_GAUSSIAN, delta) for b in (0, 1, 3, 6, 12, 30)
        ]
        above = [b for b, bound in zip((0, 1, 3, 6, 12, 30), bounds, strict=True) if bound > truth]
        if above:  # the bound falls as false positives rise: find where it passes the truth
            last = max(above)
            while noise_from_rates(Rates(a, runs, last + 1, runs), ONE_GAUSSIAN, delta) > truth:
                last += 1
            too_high += stats.binom.pmf(a, runs, found) * stats.binom.cdf(last, runs, false)
    assert too_high <= 0.05


@pytest.mark.soak
def test_a_family_that_samples_is_judged_by_its_own_curve():
    """One step at q = 1/2: the true-positive rate is at most q z + (1 - q) rate, and here exactly that."""
    event = StepEvent(0.5, 0.8)
    family = NoiseFamily([(event, 1)])
    rate = np.array([0.01, 0.1, 0.3])
    curve = 0.5 * rate + 0.5 * stats.norm.cdf(stats.norm.ppf(rate) + 1 / 0.8)
    assert family.reach(1.0, rate) == pytest.approx(curve, abs=2e-3)
    assert (family.reach(1.0, rate) >= curve - 1e-6).all()  # rounded towards more loss
    runs = 100_000
    rates = Rates(int(runs * curve[1]), runs, int(runs * rate[1]), runs)
    claimed = epsilon([(event, 1)], 1e-5)
    assert 0.9 * claimed < noise_from_rates(rates, family, 1e-5) < claimed


@pytest.mark.soak
def test_what_no_noise_explains_is_infinite():
    """Poisson sampling at 1/2 leaves a canary out half of the time."""
    family = NoiseFamily([(StepEvent(0.5, 1.0), 1)])
    assert noise_from_rates(Rates(990, 1000, 0, 1000), family, 1e-5) == math.inf
    assert noise_from_rates(Rates(400, 1000, 0, 1000), family, 1e-5) < math.inf


def test_blind_guesses_prove_nothing():
    rates = Rates(500, 1000, 500, 1000)
    assert epsilon_from_rates(rates, 1e-5) == 0 == noise_from_rates(rates, ONE_GAUSSIAN, 1e-5)
    assert epsilon_of_guesses(1000, 500, 1000, 1e-5) == 0
    assert noise_of_guesses(1000, 500, 1000, ONE_GAUSSIAN, 1e-5) == 0


def test_counts_that_cannot_be_are_refused():
    with raises_field(SettingError, "found"):
        Rates(11, 10, 0, 10)
    with raises_field(SettingError, "right"):
        epsilon_of_guesses(10, 5, 11, 1e-5)
    with raises_field(SettingError, "found"):
        Rates(-1, 10, 0, 10)
    with raises_field(SettingError, "level"):
        epsilon_from_rates(Rates(1, 10, 0, 10), 1e-5, level=95)
    with raises_field(SettingError, "noise_multiplier"):
        NoiseFamily([(StepEvent(1.0, 0.0), 1)])


@given(st.integers(1, 30), st.integers(0, 30))
def test_the_p_value_without_delta_is_a_binomial_tail(guesses, right):
    if right <= guesses:
        tail = sum(Fraction(math.comb(guesses, k), 2**guesses) for k in range(right, guesses + 1))
        assert p_value(guesses, right, guesses, 0.0, 0.0) == pytest.approx(float(tail))
