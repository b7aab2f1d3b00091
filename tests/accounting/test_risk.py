"""Risk: no attack exceeds it, it is close to what the best attack achieves, and noise meets it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from equidp import Risk, RiskTarget
from equidp.accounting import calibrate_noise_to_risk
from equidp.errors import SettingError
from equidp.kernel.event import Event
from support.errors import raises_field

RATES = (0.001, 0.01, 0.1, 0.5)


@pytest.mark.parametrize("mean", [0.05, 1.0, 8.0])
def test_a_gaussian_mechanism_has_the_risk_of_its_closed_form(mean):
    """The best attack is a threshold: TPR = Phi(Phi^-1(FPR) + mean) (Dong, Roth and Su 2022). The
    specification's value for mean 1 at 1%: .0924."""
    found = Risk.of([(Event(1.0, 1 / mean), 1)], RATES)
    exact = [*stats.norm.cdf(stats.norm.ppf(RATES) + mean), 2 * stats.norm.cdf(mean / 2) - 1]
    exact, bounds = np.array(exact), np.array([*found.true_positive_rates, found.advantage])
    assert (bounds >= exact - 1e-12).all()
    np.testing.assert_allclose(bounds, exact, rtol=5e-4)
    if mean == 1.0:
        assert found.true_positive_rates[1] == pytest.approx(0.0924, abs=5e-5)


def roc_of_one_step(rate, sigma):
    """False- and true-positive rates of the likelihood-ratio test on one step, at each threshold."""
    places = np.linspace(-8 * sigma, 1 + 8 * sigma, 100_001)
    false = stats.norm.sf(places / sigma)
    return false, (1 - rate) * false + rate * stats.norm.sf((places - 1) / sigma)


@pytest.mark.soak
@pytest.mark.parametrize(("rate", "sigma"), [(0.1, 0.5), (0.9, 0.3)])
def test_the_best_attack_on_a_subsampled_step_stays_within_its_risk(rate, sigma):
    false, true = roc_of_one_step(rate, sigma)
    found = Risk.of([(Event(rate, sigma), 1)], RATES)
    attack = np.interp(RATES, false[::-1], true[::-1])
    assert (np.array(found.true_positive_rates) >= attack - 1e-9).all()
    assert found.advantage == pytest.approx((true - false).max(), rel=1e-4)
    np.testing.assert_allclose(found.true_positive_rates[:2], attack[:2], rtol=1e-3)


@pytest.mark.soak
@given(
    rate=st.floats(0.01, 1.0),
    sigma=st.floats(0.5, 5.0),
    steps=st.integers(1, 50),
    factor=st.floats(1.1, 3.0),
)
@settings(max_examples=8, deadline=None)
def test_more_noise_is_less_risk_and_rates_obey_their_order(rate, sigma, steps, factor):
    """TPR >= FPR, and the advantage is the largest difference of the two."""
    rates = tuple(np.linspace(0.02, 0.98, 49))
    found = Risk.of([(Event(rate, sigma), steps)], rates)
    quieter = Risk.of([(Event(rate, sigma * factor), steps)], rates)
    differences = np.array(found.true_positive_rates) - rates
    assert (differences >= -1e-12).all()
    assert differences.max() <= found.advantage + 1e-9
    assert differences.max() >= found.advantage - 0.04  # two rates away is the highest point
    for one, other in zip(quieter.values_by_name().values(), found.values_by_name().values(), strict=True):
        assert one <= other * 1.001


@pytest.mark.soak
def test_rows_of_one_person_that_are_always_drawn_are_one_of_their_sensitivity():
    found, expected = Risk.of([(Event(1.0, 6.0), 4)], rows=3), Risk.of([(Event(1.0, 2.0), 4)])
    assert found.values_by_name() == pytest.approx(expected.values_by_name(), rel=1e-3)


def test_nothing_is_no_risk_and_no_noise_every_risk():
    assert Risk.of([]) == Risk((0.001, 0.01), (0.001, 0.01), 0.0)
    assert Risk.of([(Event(0.1, 0.0), 1)]) == Risk((0.001, 0.01), (1.0, 1.0), 1.0)
    assert Risk.of([(Event(0.1, 1e-9), 10)]).advantage == 1.0


def test_a_profile_of_one_pair_gives_the_textbook_bounds():
    """One (epsilon, delta): TPR <= e^epsilon FPR + delta, and the advantage where both lines
    meet (Kairouz, Oh and Viswanath 2015)."""
    risk = Risk.of_profile(np.array([1.0]), np.array([0.01]), (0.1, 0.9))
    assert risk.true_positive_rates[0] == pytest.approx(math.e * 0.1 + 0.01)
    assert risk.true_positive_rates[1] == pytest.approx(1 - (1 - 0.01 - 0.9) / math.e)
    assert risk.advantage == pytest.approx((math.e - 1 + 0.02) / (math.e + 1))


@pytest.mark.soak
@pytest.mark.parametrize(("target", "ratio"), [(RiskTarget(0.05, 0.01), 10.0), (RiskTarget(0.1), None)])
def test_noise_is_calibrated_to_a_risk_from_below(target, ratio):
    sigma = calibrate_noise_to_risk(target, Event(0.02, 1.0, ratio), 200)

    def reached(noise):
        event = Event(0.02, noise, None if ratio is None else ratio * noise)
        risk = Risk.of([(event, 200)], (0.01,))
        return risk.advantage if target.false_positive_rate is None else risk.true_positive_rates[0]

    assert reached(sigma) <= target.most < reached(sigma * 0.99)


@pytest.mark.soak
def test_a_risk_pays_for_what_was_spent_before():
    target, spent, step = RiskTarget(0.2), ((Event(1.0, 10.0), 2),), Event(0.02, 1.0)
    alone, together = (calibrate_noise_to_risk(target, step, 10, before) for before in ((), spent))
    assert alone < together
    assert Risk.of([*spent, (Event(0.02, together), 10)]).advantage <= 0.2
    with raises_field(SettingError, "risk", "beside what is released"):
        calibrate_noise_to_risk(RiskTarget(0.01), step, 10, spent)


@pytest.mark.parametrize(
    ("numbers", "field"),
    [
        ((0.01, 0.05), "risk"),
        ((0.5, 0.0), "false_positive_rate"),
        ((1.0,), "risk"),
        ((math.nan,), "risk"),
    ],
)
def test_a_target_that_cannot_be_is_refused(numbers, field):
    with raises_field(SettingError, field):
        RiskTarget.of(*numbers)
