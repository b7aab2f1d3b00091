"""Calibrated noise keeps to its target by the epsilon that is stated, and is as small as it can be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from equidp.accounting.calibration import calibrate_noise
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event, Share

PLANS = [
    (3.0, 1e-6, 0.0079, 300, None),
    (3.0, 1e-6, 0.0079, 300, 10.0),
    (0.5, 1e-5, 1.0, 10, None),
    (60.0, 1e-5, 0.1, 100, None),
    (3.0, 1e-12, 0.01, 100, None),  # by Renyi's bound
    (0.1, 1e-6, 1e-4, 500_000, None),  # whose privacy losses are below the width of a bin
]


BY_RENYI = [(PLANS[1], "rdp"), (PLANS[2], "rdp-classic")]


@pytest.mark.parametrize(
    ("plan", "accountant"),
    [*(pytest.param(plan, "pld", marks=pytest.mark.soak) for plan in PLANS), *BY_RENYI],
)
def test_noise_keeps_to_its_target_and_a_ten_thousandth_less_does_not(plan, accountant):
    target, delta, rate, steps, ratio = plan
    noise = calibrate_noise(target, delta, Event(rate, 1.0, ratio), steps, accountant)

    def spent(sigma: float) -> float:
        statistics = None if ratio is None else ratio * sigma
        return epsilon([(Event(rate, sigma, statistics), steps)], delta, accountant)

    assert spent(noise) <= target < spent(noise * (1 - 1.5e-4))


def test_noise_of_a_target_that_hardly_any_meets_is_small_and_enough():
    noise = calibrate_noise(1e6, 1e-5, Event(0.02, 1.0), 10, accountant="rdp")
    assert noise < 0.01
    assert epsilon([(Event(0.02, noise), 10)], 1e-5, "rdp") <= 1e6


@pytest.mark.soak
@given(
    target=st.floats(0.05, 20.0),
    rates=st.tuples(st.floats(1e-3, 1.0), st.floats(1e-3, 1.0)),
    bounds=st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0)),
    steps=st.integers(1, 500),
)
@settings(max_examples=8, deadline=None)
def test_the_label_that_pays_most_is_at_the_target(target, rates, bounds, steps):
    """By the very epsilon that a finished run states, with a release beside its steps."""
    shares = tuple(Share(name, rate, bound) for name, rate, bound in zip("ab", rates, bounds, strict=True))
    unit, release = Event(max(rates), 1.0, shares=shares, column="sex"), (Event(1.0, 60.0, name="counts"), 1)
    try:
        noise = calibrate_noise(target, 1e-6, unit, steps, "rdp", (release,))
    except SettingError:
        assert epsilon([release], 1e-6, "rdp") > target * 0.99
        return
    spent = [release, (Event(max(rates), noise, shares=shares, column="sex"), steps)]
    assert epsilon(spent, 1e-6, "rdp") <= target
    if noise >= 0.01:
        less = [release, (Event(max(rates), noise * (1 - 1.5e-4), shares=shares, column="sex"), steps)]
        assert epsilon(less, 1e-6, "rdp") > target
