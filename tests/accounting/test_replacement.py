"""Epsilon for replacing one example by another is never below the truth, where that is known."""

from __future__ import annotations

import math

import pytest
from scipy import optimize, stats

from equidp.accounting.replacement import replacement_epsilon
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent
from support.errors import raises_field


def gaussian(distance: float, delta: float) -> float:
    """Epsilon of two normal distributions of deviation 1 so far apart (Balle and Wang 2018, Theorem 8)."""

    def excess(spent: float) -> float:
        far = stats.norm.sf(spent / distance - distance / 2)
        near = stats.norm.sf(spent / distance + distance / 2)
        return far - math.exp(spent) * near - delta

    return float(optimize.brentq(excess, 0.0, 300.0))


@pytest.mark.soak
@pytest.mark.parametrize("noise", [0.7, 2.0, 8.0])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_gaussian_without_sampling_has_less(noise, accountant):
    """Replaced, sums differ by twice the sensitivity."""
    delta = 1e-5
    found = replacement_epsilon([(StepEvent(1.0, noise), 1)], delta, accountant)
    assert gaussian(2 / noise, delta) <= found
    assert found <= 1.6 * gaussian(2 / noise, delta) + 0.1


def test_it_is_two_of_the_epsilon_at_a_delta_that_makes_room():
    entries, delta = [(StepEvent(0.02, 1.0), 200)], 1e-5
    found = replacement_epsilon(entries, delta, "rdp")
    assert found > 2 * epsilon(entries, delta, "rdp")
    smaller = delta / (1 + math.exp(found / 2))
    assert epsilon(entries, smaller, "rdp") <= found / 2 + 1e-3


def test_nothing_spent_costs_nothing_and_no_noise_everything():
    assert replacement_epsilon([], 1e-5) == 0.0
    assert replacement_epsilon([(StepEvent(0.1, 0.0), 3)], 1e-5) == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, math.nan])
def test_a_delta_that_is_no_small_probability_is_refused(delta):
    with raises_field(SettingError, "delta"):
        replacement_epsilon([(StepEvent(0.1, 1.0), 3)], delta, "rdp")
