"""A private choice is accounted for by Renyi divergences, kept in ledgers, and tries as often as it says."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from equidp.accounting.risk import Risk
from equidp.accounting.rows import epsilon
from equidp.errors import SettingError
from equidp.kernel.epsilon import run_event
from equidp.kernel.ledger import ChoiceEvent, MemoryLedger, StepEvent
from equidp.kernel.noise import SeededRandomness
from equidp.ledger.file import LedgerFile
from equidp.ledger.format import read_ledger
from equidp.runs.experimental.private_choice import number_of_tries
from support.errors import raises_field

STEP, SCORE = StepEvent(0.02, 2.0), StepEvent(1.0, 20.0)
CHOICE = ChoiceEvent(((STEP, 200), (SCORE, 1)), 8.0)


def by_hand(sigma, score, mean) -> float:
    sampled = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(sigma))
    steps = dp_accounting.SelfComposedDpEvent(sampled, 200)
    tried = dp_accounting.ComposedDpEvent((steps, dp_accounting.GaussianDpEvent(score)))
    event = dp_accounting.dp_event.RepeatAndSelectDpEvent(tried, mean, 1.0)
    return float(RdpAccountant().compose(event).get_epsilon(1e-5))


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_is_that_of_dp_accounting(accountant):
    found = epsilon([(CHOICE, 1)], 1e-5, accountant)
    assert found == pytest.approx(by_hand(2.0, 20.0, 8.0))
    assert found > 1.5 * epsilon(CHOICE.tried, 1e-5, "rdp")


def test_whole_numbers_cost_what_floats_do():
    """dp_accounting 0.6.0 misreads whole-number multipliers in composed events."""
    whole = ChoiceEvent(
        ((replace(STEP, noise_multiplier=2), 200), (replace(SCORE, noise_multiplier=20), 1)), 8
    )
    assert epsilon([(whole, 1)], 1e-5) == epsilon([(CHOICE, 1)], 1e-5)


def test_choices_and_steps_add_up():
    alone, twice = (epsilon([(CHOICE, count)], 1e-5) for count in (1, 2))
    assert alone < epsilon([(CHOICE, 1), (STEP, 200)], 1e-5) < twice < 2 * alone


def test_a_try_without_noise_is_not_private():
    for tried in (((replace(STEP, noise_multiplier=0.0), 5),), ((StepEvent(0.1, 1.0, 0.0), 5),)):
        assert epsilon([(ChoiceEvent(tried, 2.0), 1)], 1e-5) == math.inf


def test_several_rows_are_bounded_by_group_privacy():
    single = epsilon([(CHOICE, 1)], 1e-5)
    several = [epsilon([(CHOICE, 1)], 1e-5, rows=rows) for rows in (2, 4)]
    assert 2 * single < several[0] < several[1] < math.inf


@pytest.mark.soak
def test_risk_is_below_certainty_and_above_that_of_one_try():
    choice, one = Risk.of([(CHOICE, 1)]), Risk.of(CHOICE.tried)
    assert one.advantage < choice.advantage < 1
    assert one.true_positive_rates[1] < choice.true_positive_rates[1] < 1


def test_a_ledger_file_keeps_the_whole_choice(tmp_path):
    with LedgerFile(tmp_path / "ledger") as ledger:
        ledger.spend(SCORE)
        ledger.spend(CHOICE)
        ledger.abandon()  # as a kill would
    assert read_ledger(tmp_path / "ledger").entries == ((SCORE, 1), (CHOICE, 1))
    assert '"choice":{"tried":[[{"sample_rate":0.02,' in (tmp_path / "ledger").read_text()
    with LedgerFile(tmp_path / "ledger") as ledger:
        assert ledger.count_of(CHOICE) == 1
        ledger.spend(CHOICE)
    assert dict(read_ledger(tmp_path / "ledger").entries)[CHOICE] == 2


def test_a_ledger_in_memory_keeps_it_too():
    ledger = MemoryLedger(((CHOICE, 1),))
    assert run_event(ledger.entries) == run_event([(CHOICE, 1)])


def test_tries_are_geometric():
    """Of 20,000 draws at mean 8, share of 1 and mean are within 5 standard errors: 1 failure in a million."""
    randomness = SeededRandomness(0)
    draws = np.array([number_of_tries(8.0, randomness) for _ in range(20_000)])
    assert draws.min() == 1
    assert (draws == 1).mean() == pytest.approx(1 / 8, abs=5 * math.sqrt(7 / 64 / 20_000))
    assert draws.mean() == pytest.approx(8, abs=5 * math.sqrt(56 / 20_000))
    assert {number_of_tries(1.0, randomness) for _ in range(10)} == {1}


@pytest.mark.parametrize("mean", [0.5, math.nan, math.inf])
def test_a_mean_that_no_number_of_tries_has_is_refused(mean):
    with raises_field(SettingError, "mean"):
        ChoiceEvent(CHOICE.tried, mean)
    with raises_field(SettingError, "mean"):
        number_of_tries(mean, SeededRandomness(0))
