"""Lower bounds are what their papers say, and are above the truth as seldom as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy import stats

from equidp.accounting.risk import Risk
from equidp.audit.bounds import (
    Rates,
    epsilon_from_rates,
    noise_from_rates,
)
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event

ONE_GAUSSIAN = ((Event(1.0, 1.0), 1),)


def gaussian_epsilon(mu: float, delta: float) -> float:
    return get_epsilon_gaussian(1 / mu, delta)


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
def test_a_claim_that_samples_is_judged_by_its_own_curve():
    """One step at q = 1/2: the true-positive rate is at most q z + (1 - q) rate, and here exactly that."""
    claim = ((Event(0.5, 0.8), 1),)
    rate = np.array([0.01, 0.1, 0.3])
    curve = 0.5 * rate + 0.5 * stats.norm.cdf(stats.norm.ppf(rate) + 1 / 0.8)
    reach = np.array(Risk.of(claim, tuple(rate)).true_positive_rates)
    assert reach == pytest.approx(curve, abs=2e-3)
    assert (reach >= curve - 1e-6).all()  # rounded towards more loss
    runs = 100_000
    rates = Rates(int(runs * curve[1]), runs, int(runs * rate[1]), runs)
    claimed = epsilon(claim, 1e-5)
    assert 0.9 * claimed < noise_from_rates(rates, claim, 1e-5) < claimed


@pytest.mark.soak
def test_what_no_noise_explains_is_infinite():
    """Poisson sampling at 1/2 leaves a canary out half of the time."""
    claim = ((Event(0.5, 1.0), 1),)
    assert noise_from_rates(Rates(990, 1000, 0, 1000), claim, 1e-5) == math.inf
    assert noise_from_rates(Rates(400, 1000, 0, 1000), claim, 1e-5) < math.inf


def test_blind_guesses_prove_nothing():
    rates = Rates(500, 1000, 500, 1000)
    assert epsilon_from_rates(rates, 1e-5) == 0 == noise_from_rates(rates, ONE_GAUSSIAN, 1e-5)
