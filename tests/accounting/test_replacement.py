"""Epsilon for replacing one example by another is never below the truth, where that is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st
from scipy import optimize, stats

from equidp.accounting.replacement import replacement_epsilon
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event


def gaussian(distance: float, delta: float) -> float:
    """Epsilon of two normal distributions of deviation 1 so far apart (Balle and Wang 2018, Theorem 8)."""

    def excess(spent: float) -> float:
        far = stats.norm.sf(spent / distance - distance / 2)
        near = stats.norm.sf(spent / distance + distance / 2)
        return far - math.exp(spent) * near - delta

    return float(optimize.brentq(excess, 0.0, 300.0))


@pytest.mark.soak
@pytest.mark.parametrize(("noise", "accountant"), [(0.7, "pld"), (2.0, "rdp"), (8.0, "pld")])
def test_a_gaussian_without_sampling_has_less(noise, accountant):
    """Replaced, sums differ by twice the sensitivity."""
    delta = 1e-5
    found = replacement_epsilon([(Event(1.0, noise), 1)], delta, accountant)
    assert gaussian(2 / noise, delta) <= found
    assert found <= 1.6 * gaussian(2 / noise, delta) + 0.1


@given(noise=st.floats(0.02, 5.0), steps=st.integers(1, 3000), log_delta=st.floats(-12, -2))
@settings(max_examples=30, deadline=None)
def test_what_is_stated_leaves_room_at_its_delta(noise, steps, log_delta):
    """Both halves hold at a delta that 1 + e^epsilon times is no more than the one asked for; where numbers
    leave no such room, nothing is stated."""
    entries, delta = [(Event(0.05, noise), steps)], 10**log_delta
    found = replacement_epsilon(entries, delta, "rdp")
    if found == math.inf:
        return
    half = found / 2
    assert half <= 600
    assert epsilon(entries, delta * math.exp(-math.log1p(math.exp(half)) - 1e-3), "rdp") <= half * 1.001


def test_an_epsilon_too_large_for_any_room_is_infinite():
    assert replacement_epsilon([(Event(0.05, 0.03), 3000)], 1e-5, "rdp") == math.inf
