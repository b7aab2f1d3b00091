"""Tight epsilons are dp_accounting's own of each history, never below the truth, and hardly above."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings, strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from equidp.individual.tight import tight_epsilons, tight_profiles


@functools.lru_cache
def one_step(noise: float, sample_rate: float, pessimistic: bool):
    return pld.from_gaussian_mechanism(
        noise,
        sampling_prob=sample_rate,
        value_discretization_interval=1e-4,
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
    )


def composed(
    history: list[tuple[float, int]], sample_rate: float, delta: float, *, pessimistic: bool
) -> float:
    parts = [one_step(noise, sample_rate, pessimistic).self_compose(steps) for noise, steps in history]
    return functools.reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(delta)


def tight(history: list[tuple[float, int]], sample_rate: float, delta: float) -> float:
    counts = np.array([[steps for _, steps in history]], dtype=np.uint32)
    return float(tight_epsilons(counts, np.array([1 / noise for noise, _ in history]), sample_rate, delta)[0])


@pytest.mark.parametrize(
    ("sample_rate", "history", "delta"),
    [
        pytest.param(256 / 54_649, [(0.8, 12_680)], 1e-6, marks=pytest.mark.soak),
        pytest.param(0.01, [(1.0, 1000)], 1e-5, marks=pytest.mark.soak),
        (1.0, [(10.0, 30)], 1e-6),
        pytest.param(0.02, [(0.7, 300), (2.0, 1000), (8.0, 3000)], 1e-6, marks=pytest.mark.soak),
        pytest.param(0.01, [(0.5, 20)], 1e-7, marks=pytest.mark.soak),
        pytest.param(0.1, [(3.0, 1), (1.5, 4), (6.0, 60)], 1e-5, marks=pytest.mark.soak),
    ],
)
def test_epsilons_are_those_of_dp_accounting(sample_rate, history, delta):
    """Its pessimistic figure is itself at most about 0.1% above the truth, so ours may be a hair below."""
    found = tight(history, sample_rate, delta)
    upper = composed(history, sample_rate, delta, pessimistic=True)
    lower = composed(history, sample_rate, delta, pessimistic=False)
    assert lower <= found
    assert found == pytest.approx(upper, rel=2e-3)


@pytest.mark.soak
@given(
    noises=st.lists(st.floats(2.0, 30.0), min_size=1, max_size=4),
    steps=st.integers(1, 50),
    log_delta=st.floats(-8, -3),
)
@settings(max_examples=15, deadline=None)
def test_without_sampling_it_is_one_gaussian_mechanism(noises, steps, log_delta):
    """Balle and Wang 2018, equation 6: the exact epsilon of a Gaussian mechanism; never below, at most 0.5%
    above."""
    mean = math.sqrt(sum(steps / noise**2 for noise in noises))
    delta = 10**log_delta

    def excess(epsilon: float) -> float:
        far, near = norm.logcdf(-epsilon / mean - mean / 2), norm.logcdf(mean / 2 - epsilon / mean)
        return math.exp(near) - math.exp(epsilon + far) - delta

    exact = brentq(excess, 0.0, 500.0, xtol=1e-12) if excess(0.0) > 0 else 0.0
    found = tight([(noise, steps) for noise in noises], 1.0, delta)
    assert exact * (1 - 1e-9) <= found <= exact * 1.005 + 1e-4


@given(st.lists(st.lists(st.integers(0, 60), min_size=3, max_size=3), min_size=1, max_size=6))
@settings(max_examples=12, deadline=None)
def test_more_steps_never_cost_less_and_company_changes_nothing(rows):
    """Each history has its own epsilon, whatever others stand beside it, and one step more never lowers
    it."""
    means, sample_rate, delta = np.array([0.0, 0.4, 1.1]), 0.05, 1e-6
    counts = np.array(rows, dtype=np.uint32)
    together = tight_epsilons(counts, means, sample_rate, delta)
    alone = [tight_epsilons(row[None], means, sample_rate, delta)[0] for row in counts]
    np.testing.assert_allclose(together, alone, rtol=1e-9)
    # Windows come in powers of two: between two of them the bound's slack differs by up to 0.3%.
    more = tight_epsilons(counts + np.array([0, 1, 1], dtype=np.uint32), means, sample_rate, delta)
    assert (more >= together * 0.997).all()
    np.testing.assert_array_equal(
        tight_epsilons(counts + np.array([5, 0, 0], dtype=np.uint32), means, sample_rate, delta), together
    )


def test_what_cannot_be_vouched_for_is_infinite():
    counts = np.array([[3, 0], [0, 3], [0, 0]], dtype=np.uint32)
    assert np.isinf(tight_epsilons(counts, np.array([1.0, math.inf]), 0.1, 1e-15)[:2]).all()
    found = tight_epsilons(counts, np.array([1.0, math.inf]), 0.1, 1e-5)
    assert 0 < found[0] < math.inf == found[1]
    assert found[2] == 0


@pytest.mark.soak
@pytest.mark.parametrize(
    ("sample_rate", "noise", "steps"), [(1.0, 0.5, 1), (0.8, 1.0, 5), (0.1, 0.4, 1), (0.1, 0.4, 5)]
)
def test_profiles_are_dp_accountings_own(sample_rate, noise, steps):
    """On the standard deviations and sampling probabilities of its tests, at epsilons on both sides of the
    largest loss that an added example can have: never below its optimistic delta, hardly above the other."""
    epsilons = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0])
    counts, means = np.array([[steps]], dtype=np.uint32), np.array([1 / noise])
    found = tight_profiles(counts, means, sample_rate, epsilons)[0]
    lower, upper = (
        pld.from_gaussian_mechanism(
            noise,
            sampling_prob=sample_rate,
            value_discretization_interval=1e-3,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        .self_compose(steps, 1e-15 if pessimistic else 0)
        .get_delta_for_epsilon(epsilons)
        for pessimistic in (False, True)
    )
    assert (found >= lower - 1e-12).all()
    # The law of one step has an edge, which smoothing rounds off.
    np.testing.assert_allclose(found, upper, rtol=0.02 if steps > 1 else 0.1, atol=1e-5)


@pytest.mark.soak
def test_mechanisms_of_other_sample_rates_and_histories_without_any():
    """One step at q = .1, a release at 1; a history of nothing has no delta, one of no noise all of it."""
    counts = np.array([[3, 1, 0], [0, 0, 0], [1, 0, 1]], dtype=np.uint32)
    epsilons = np.array([0.0, 1.0, 3.0])
    means, rates = np.array([1.0, 0.25, math.inf]), np.array([0.1, 1.0, 0.1])
    found = tight_profiles(counts, means, rates, epsilons)
    both = one_step(1.0, 0.1, True).self_compose(3).compose(one_step(4.0, 1.0, True))
    np.testing.assert_allclose(found[0], both.get_delta_for_epsilon(epsilons), rtol=0.01, atol=1e-5)
    assert (found[0] >= both.get_delta_for_epsilon(epsilons) * (1 - 1e-3)).all()
    assert found[1:].tolist() == [[0.0] * 3, [1.0] * 3]
    assert tight_epsilons(counts, means, rates, 1e-5)[1:].tolist() == [0.0, math.inf]
