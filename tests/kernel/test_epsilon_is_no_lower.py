"""Epsilon is never below what the mechanism certainly costs: bounds from below, for odd settings."""

from __future__ import annotations

import math

import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq
from scipy.stats import norm

from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Entries, Event

ODD = {
    "one step of everyone": ([(Event(1.0, 1.0), 1)], 1e-5),
    "hardly ever drawn": ([(Event(1e-6, 0.5), 2000)], 1e-8),
    "two kinds of statistics": ([(Event(0.02, 1.1, 11.0), 500), (Event(0.02, 1.1, 1.1), 100)], 1e-6),
    "a profile, training and releases": (
        [(Event(1.0, 40.0), 1), (Event(0.01, 1.0, 10.0), 1000), (Event(1.0, 60.0), 20)],
        1e-6,
    ),
    "three runs": (
        [(Event(0.1, 2.0), 100), (Event(0.05, 0.8), 50), (Event(0.3, 4.0, 4.0), 30)],
        1e-5,
    ),
    "little noise": ([(Event(0.01, 0.3), 100)], 1e-5),
    "delta beyond PLD": ([(Event(0.01, 1.0), 100)], 1e-12),
}


def at_least(entries: Entries, delta: float) -> float:
    """Epsilon with privacy losses rounded down, which the true one is not below."""
    total = None
    for event, steps in entries:
        sigma = event.cost().noise
        part = privacy_loss_distribution.from_gaussian_mechanism(
            sigma,
            sampling_prob=event.rate,
            value_discretization_interval=1e-3,
            pessimistic_estimate=False,
        ).self_compose(steps)
        total = part if total is None else total.compose(part)
    return float(total.get_epsilon_for_delta(delta))


def of_gaussians(entries: Entries, delta: float) -> float:
    """Epsilon of steps that read everyone: one Gaussian mechanism, in closed form."""
    mu = math.sqrt(sum(steps / event.cost().noise ** 2 for event, steps in entries))

    def excess(each: float) -> float:
        return norm.cdf(mu / 2 - each / mu) - math.exp(each) * norm.cdf(-each / mu - mu / 2) - delta

    return float(brentq(excess, 0, 200))


@pytest.mark.soak
@pytest.mark.parametrize("name", ODD)
def test_epsilon_is_not_below_what_the_steps_certainly_cost(name):
    entries, delta = ODD[name]
    found = epsilon(entries, delta)
    assert found >= at_least(entries, delta) - 1e-9
    if all(event.rate == 1 for event, _ in entries):
        assert found >= of_gaussians(entries, delta) - 1e-9
