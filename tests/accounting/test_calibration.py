"""Calibrated noise keeps to its target by narrow bins, is as small as it can be, and is found quickly."""

from __future__ import annotations

import pytest

from equidp.accounting import calibration
from equidp.accounting.calibration import calibrate_noise
from equidp.kernel import epsilon as accountants
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent

PLANS = [
    (3.0, 1e-6, 0.0079, 300, None),
    (3.0, 1e-6, 0.0079, 300, 10.0),
    (0.1, 1e-6, 0.01, 300, None),
    (0.5, 1e-5, 1.0, 10, None),
    (60.0, 1e-5, 0.1, 100, None),
    (3.0, 1e-12, 0.01, 100, None),  # by Renyi's bound
]


BY_RENYI = [(PLANS[1], "rdp"), (PLANS[3], "rdp-classic")]


@pytest.mark.parametrize(
    ("plan", "accountant"),
    [*(pytest.param(plan, "pld", marks=pytest.mark.soak) for plan in PLANS), *BY_RENYI],
)
def test_noise_keeps_to_its_target_and_a_ten_thousandth_less_does_not(plan, accountant):
    target, delta, rate, steps, ratio = plan
    noise = calibrate_noise(target, delta, rate, steps, ratio, accountant)

    def spent(sigma: float) -> float:
        statistics = None if ratio is None else ratio * sigma
        return epsilon([(StepEvent(rate, sigma, statistics), steps)], delta, accountant)

    assert spent(noise) <= target < spent(noise * (1 - 1.5e-4))


def test_noise_of_a_target_that_hardly_any_meets_is_small_and_enough():
    noise = calibrate_noise(1e6, 1e-5, 0.02, 10, accountant="rdp")
    assert noise < 0.01
    assert epsilon([(StepEvent(0.02, noise), 10)], 1e-5, "rdp") <= 1e6


@pytest.mark.soak
def test_most_calibrations_take_one_evaluation_by_narrow_bins(monkeypatch):
    widths, make = [], accountants._pld_accountant.__wrapped__
    monkeypatch.setattr(
        accountants, "_pld_accountant", lambda event, width: widths.append(width) or make(event, width)
    )
    calibrate_noise(3.0, 1e-6, 0.0081, 301)
    assert widths.count(accountants.FINE) == 1


@pytest.mark.soak
def test_search_that_the_secant_does_not_end_takes_narrow_bins_alone(monkeypatch):
    noise = calibrate_noise(2.0, 1e-6, 0.0083, 302)
    monkeypatch.setattr(calibration, "_TRIES", 0)
    again = calibrate_noise.__wrapped__.__wrapped__(2.0, 1e-6, 0.0083, 302)
    assert noise == pytest.approx(again, rel=1.5e-4)


@pytest.mark.soak
def test_renyi_accounting_takes_few_orders_in_calibration_and_gives_the_same_noise(monkeypatch):
    evaluated, accountant = [], calibration.renyi_accountant

    def count_orders(event, orders):
        evaluated.append(len(orders))
        return accountant(event, orders)

    monkeypatch.setattr(calibration, "renyi_accountant", count_orders)
    for target, delta, rate, steps in ((3.0, 1e-6, 0.1, 60), (0.3, 1e-5, 0.004, 60), (30.0, 1e-7, 1.0, 1)):
        evaluated.clear()
        found = calibrate_noise.__wrapped__.__wrapped__(target, delta, rate, steps, accountant="rdp")
        assert sum(evaluated) < 0.7 * max(evaluated) * len(evaluated)
        whole = calibration._smallest(
            lambda event, delta=delta: accountants.ACCOUNTANTS["rdp"](event, delta),
            target,
            calibration._event_of(calibration._entries_with(rate, steps, None, ())),
            1.0,
            2.0,
        )
        assert found == whole
