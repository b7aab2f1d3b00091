"""Epsilons equal published and independent values, and never understate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from opacus.accountants.analysis import rdp as opacus_rdp
from scipy import stats

from equidp.accounting import (
    ACCOUNTANTS,
    calibrate_noise,
    epsilon,
    epsilon_so_far,
    mechanism,
)
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon as epsilon_of_one_run
from equidp.kernel.event import Event
from support.errors import raises_field

MNIST, ADULT, DUTCH = (54649, 0.8, 12808), (36177, 1.0, 2826), (48336, 1.0, 3776)


def run_of(setting, statistics_noise=None):
    n, sigma, steps = setting
    return ((Event(256 / n, sigma, statistics_noise), steps),)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("setting", "statistics_noise", "accountant", "expected"),
    [
        (MNIST, None, "rdp", 5.911),
        (MNIST, None, "pld", 5.429),
        (MNIST, 8.0, "rdp", 5.987),
    ],
)
def test_anchor_values(setting, statistics_noise, accountant, expected):
    """The specification's values, to 3 decimals."""
    assert epsilon(run_of(setting, statistics_noise), 1e-6, accountant) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("setting", "printed"), [(MNIST, 6.55), (ADULT, 3.1), (DUTCH, 2.66)])
def test_the_classic_conversion_gives_what_xu_et_al_print(setting, printed):
    assert epsilon(run_of(setting), 1e-6, "rdp-classic") == pytest.approx(printed, abs=0.03)


def test_two_queries_on_one_sample_are_not_two_samples():
    """q 0.01, T 6000, multipliers 2.0 and 1.0: jointly 6.37 (Renyi); as if each had its own sample, 5.48,
    which is too low."""
    joint = epsilon(((Event(0.01, 1.0, 2.0), 6000),), 1e-5, "rdp")
    apart = epsilon(((Event(0.01, 1.0), 6000), (Event(0.01, 2.0), 6000)), 1e-5, "rdp")
    assert joint == pytest.approx(6.37, abs=0.01)
    assert apart == pytest.approx(5.48, abs=0.01)


@pytest.mark.soak
def test_whole_number_multipliers_are_read_as_floats():
    """dp_accounting 0.6.0 gives epsilon 0.29 for Gaussians 10 and 1.0 composed, and 5.11 for 10.0 and 1.0."""
    entries = ((Event(1, 10), 1), (Event(1, 1.0), 1))
    assert epsilon(entries, 1e-5) == pytest.approx(
        epsilon(((Event(1.0, 10.0), 1), (Event(1.0, 1.0), 1)), 1e-5)
    )
    composed = mechanism(entries)
    assert all(type(each.event.event.noise_multiplier) is float for each in composed.events)


@pytest.mark.parametrize("setting", [MNIST, ADULT, DUTCH])
def test_renyi_equals_opacus(setting):
    n, sigma, steps = setting
    orders = np.asarray(RdpAccountant().orders)
    rdp = opacus_rdp.compute_rdp(q=256 / n, noise_multiplier=sigma, steps=steps, orders=orders)
    theirs, _ = opacus_rdp.get_privacy_spent(orders=orders, rdp=rdp, delta=1e-6)
    assert epsilon(run_of(setting), 1e-6, "rdp") == pytest.approx(theirs, rel=1e-4)


def test_the_joint_multiplier_is_that_of_two_gaussians_on_one_input():
    """Closed form: independent Gaussians of multipliers 3 and 4 on one query are one of 12 / 5."""
    assert Event(1.0, 3.0, 4.0).cost().noise == pytest.approx(2.4)
    assert Event(1.0, 3.0).cost().noise == 3.0
    assert Event(1.0, 0.0, 4.0).cost().noise == Event(1.0, 3.0, 0.0).cost().noise == 0.0


def test_no_noise_is_infinite_and_no_step_is_free():
    assert epsilon(((Event(0.1, 0.0), 1),), 1e-5) == math.inf
    assert epsilon(((Event(0.1, 1.0, 0.0), 1),), 1e-5) == math.inf
    assert epsilon(((Event(0.1, 1.0), 10), (Event(0.1, 0.0), 1)), 1e-5, "rdp") == math.inf
    for accountant in ACCOUNTANTS:
        assert epsilon((), 1e-5, accountant) == epsilon(((Event(0.1, 1.0), 0),), 1e-5, accountant) == 0.0


@pytest.mark.soak
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_meter_is_an_upper_bound_that_rises(accountant):
    run = Event(0.02, 1.1, 11.0), 60, 1e-5, accountant
    values = [epsilon_so_far(steps, *run) for steps in range(61)]
    assert values[0] == 0.0
    assert values == sorted(values)
    for steps in (2, 60):
        exact = epsilon(((Event(0.02, 1.1, 11.0), steps),), 1e-5, accountant)
        assert exact <= values[steps] + 1e-9
    assert values[60] == pytest.approx(exact, rel=0.005)


@pytest.mark.soak
def test_the_meter_counts_what_was_spent_before():
    other = ((Event(1.0, 5.0, None), 1),)
    run = Event(0.02, 1.1, None), 60, 1e-5, "pld", other
    for steps in (0, 60):
        together = epsilon((*other, (Event(0.02, 1.1, None), steps)), 1e-5)
        assert together <= epsilon_so_far(steps, *run) + 1e-9
    assert epsilon_so_far(60, *run) == together


@pytest.mark.parametrize(
    ("steps", "distance", "delta"), [(1000, 3.0, 1e-12), (100_000, 1.0, 1e-12), (10**6, 3.0, 1e-9)]
)
def test_epsilon_at_the_smallest_deltas_is_not_below_the_gaussian_mechanisms_own(steps, distance, delta):
    """Balle and Wang 2018, Theorem 8: where dp_accounting loses in its transforms as much as there is of
    delta."""
    found = epsilon(((Event(1.0, steps**0.5 / distance, None), steps),), delta)
    tail = stats.norm.cdf(distance / 2 - found / distance)
    exact = tail - np.exp(found + stats.norm.logcdf(-distance / 2 - found / distance))
    assert exact <= delta * (1 + 1e-3)


@pytest.mark.parametrize("noise", [1e-3, 1e-5, 1e-12])
def test_hardly_any_noise_has_an_epsilon_that_promises_nothing(noise):
    """Where bins for its losses could not be counted, Renyi's bound stands in."""
    event = Event(0.08, noise, None)
    assert 1e5 < epsilon([(event, 250)], 1e-5) <= epsilon([(event, 250)], 1e-5, "rdp")


STEP = Event(0.1, 1.0)


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda: epsilon([(STEP, 2.5)], 1e-5, "rdp"), "steps"),  # two steps were counted
        (lambda: epsilon([(STEP, 10), (STEP, -9)], 1e-5, "rdp"), "steps"),
        (lambda: epsilon_of_one_run([(STEP, True)], 1e-5, "rdp"), "steps"),
        (lambda: epsilon((STEP, 3), 1e-5, "rdp"), "entries"),
        (lambda: epsilon([(STEP, 3)], 1.0), "delta"),
        (lambda: epsilon([(STEP, 3)], math.nan), "delta"),
        (lambda: epsilon([(STEP, 3)], 1e-5, "plt"), "accountant"),
        (lambda: calibrate_noise(math.nan, 1e-5, STEP, 10), "epsilon"),
        (lambda: calibrate_noise(3.0, 1e-5, STEP, 2.5), "steps"),
    ],
)
def test_numbers_that_would_give_a_wrong_epsilon_are_refused(ask, field):
    with raises_field(SettingError, field):
        ask()
