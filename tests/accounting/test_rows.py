"""Epsilon of people who own several rows: never below the truth, and close to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import optimize, stats

from equidp.accounting.risk import privacy_profile
from equidp.accounting.rows import epsilon, mechanism, rows_drawn
from equidp.errors import SettingError
from equidp.kernel.event import Event
from support.errors import raises_field

MNIST = ((Event(256 / 54649, 0.8), 12808),)
EPSILONS = np.array([0.0, 0.3, 1.0, 2.5, 6.0])


def densities(sigma, numbers, chances, x):
    """Of Q, the noise alone, and of P, the mixture, at points [n]."""
    base = stats.norm.pdf(x, scale=sigma)
    mixture = stats.norm.pdf(x[:, None], loc=np.array(numbers), scale=sigma) @ np.array(chances)
    return base, mixture


def delta_of_one_step(sigma, numbers, chances, eps):
    """The larger direction of the integral of max(0, P - e^epsilon Q), by Gauss-Legendre on each side of the
    place where the integrand becomes 0."""

    def loss(x):
        base, mixture = densities(sigma, numbers, chances, np.array([x]))
        return math.log(mixture[0] / base[0])

    low, high = -10 * sigma, max(numbers) + 10 * sigma
    found = []
    for sign, inside in ((1, lambda place: (place, high)), (-1, lambda place: (low, place))):
        if not loss(low) < sign * eps < loss(high):
            continue  # nothing but a negligible tail: this direction has no such loss
        start, end = inside(optimize.brentq(lambda x, at=sign * eps: loss(x) - at, low, high, xtol=1e-14))
        nodes, weights = np.polynomial.legendre.leggauss(40)
        pieces = np.linspace(start, end, 101)
        half = np.diff(pieces)[:, None] / 2
        x = (pieces[:-1, None] + half * (1 + nodes)).reshape(-1)
        base, mixture = densities(sigma, numbers, chances, x)
        one, other = (mixture, base) if sign == 1 else (base, mixture)
        found.append(float((one - math.exp(eps) * other) @ (half * weights).reshape(-1)))
    return max(found)


@pytest.mark.soak
@pytest.mark.parametrize(("sigma", "rows", "rate"), [(1.0, 2, 0.4), (0.6, 5, 0.05)])
def test_one_step_is_what_direct_integration_gives(sigma, rows, rate):
    found = privacy_profile(mechanism([(Event(rate, sigma), 1)], rows), EPSILONS, usual=5.0)
    exact = np.array([delta_of_one_step(sigma, *rows_drawn(rows, rate), eps) for eps in EPSILONS])
    assert (found >= exact - 1e-11).all()
    np.testing.assert_allclose(found, exact, atol=1e-7, rtol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize(("rows", "rate", "sigma", "steps"), [(2, 0.02, 1.0, 300), (6, 0.3, 5.0, 40)])
def test_it_lies_between_dp_accountings_bounds_of_mixtures(rows, rate, sigma, steps):
    law, numbers = stats.binom(rows, rate), list(map(float, range(rows + 1)))
    upper, lower = (
        pld.from_mixture_gaussian_mechanism(
            sigma,
            numbers,
            [law.pmf(k) for k in range(rows + 1)],
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=0.01,
        ).self_compose(steps, 1e-15 if pessimistic else 0)
        for pessimistic in (True, False)
    )
    entries = [(Event(rate, sigma), steps)]
    spent = epsilon(entries, 1e-6, rows=rows)
    assert lower.get_epsilon_for_delta(1e-6) <= spent <= upper.get_epsilon_for_delta(1e-6)


@pytest.mark.parametrize("rows", [2, 7])
def test_without_sampling_several_rows_are_one_gaussian_of_that_sensitivity(rows):
    """A release reads every row; Balle and Wang 2018, Theorem 8, gives its delta."""
    entries, mean = ((Event(1.0, 20.0), 3),), rows * 3**0.5 / 20
    found = epsilon(entries, 1e-5, rows=rows)
    delta = stats.norm.cdf(mean / 2 - found / mean) - math.exp(found) * stats.norm.cdf(
        -mean / 2 - found / mean
    )
    assert delta == pytest.approx(1e-5, rel=0.01)
    assert delta <= 1e-5


@pytest.mark.soak
def test_statistics_and_gradients_are_one_query_for_several_rows_too():
    joint = epsilon([(Event(0.05, 3.0, 4.0), 20)], 1e-5, rows=3)
    assert joint == epsilon([(Event(0.05, 2.4), 20)], 1e-5, rows=3)


@pytest.mark.parametrize(("rows", "rate"), [(2, 0.5), (8, 0.999), (10**6, 0.3), (3, 1e-30)])
def test_listed_numbers_of_rows_are_never_fewer_than_drawn(rows, rate):
    """Each of them is at least as likely to be exceeded as under the binomial law."""
    numbers, chances = map(np.array, rows_drawn(rows, rate))
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    assert len(numbers) <= 102
    assert numbers[-1] <= rows
    at_least = chances[::-1].cumsum()[::-1]
    law = stats.binom(rows, rate)
    assert (at_least[1:] >= law.sf(numbers[:-1]) * (1 - 1e-9)).all()
    assert chances @ numbers <= law.mean() * 1.01 + 1e-20


@pytest.mark.parametrize("rows", [2, 10**9])
def test_tiny_deltas_and_little_noise_have_a_bound_that_is_no_lower(rows):
    """Where transforms would lose delta, or bins fill memory, a cheap bound stands in."""
    entries = ((Event(0.01, 1.0), 100),)
    assert epsilon(entries, 1e-12, rows=rows) >= epsilon(entries, 1e-9, rows=rows) > 0
    assert math.isfinite(epsilon(((Event(0.01, 1e-3), 1000),), 1e-5, rows=rows))


@pytest.mark.parametrize("accountant", ["rdp", "rdp-classic"])
def test_renyi_accounting_of_several_rows_is_refused(accountant):
    with raises_field(SettingError, "rows", "'pld'"):
        epsilon(MNIST, 1e-6, accountant, rows=2)


@pytest.mark.soak
def test_a_privacy_profile_holds_every_epsilon_of_a_run():
    """Against dp_accounting's own values: sqrt(3), three times; q .2, sigma .5, three times."""
    for event, exact in (
        (mechanism([(Event(1.0, 3**0.5), 3)]), 0.126936),
        (mechanism([(Event(0.2, 0.5), 3)]), 0.15594),
    ):
        assert privacy_profile(event, np.array([1.0]), usual=5.0)[0] == pytest.approx(exact, abs=1e-4)
    gaussian = mechanism([(Event(1.0, 1.0), 1)])
    exact = stats.norm.cdf(0.5 - EPSILONS) - np.exp(EPSILONS) * stats.norm.cdf(-0.5 - EPSILONS)
    found = privacy_profile(gaussian, EPSILONS, usual=5.0)
    assert (found >= exact).all()
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-9)
