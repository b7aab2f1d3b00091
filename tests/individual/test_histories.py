"""Individual epsilons are what dp_accounting says of each example's own steps, and never above the run's."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings, strategies as st

from equidp.errors import SettingError
from equidp.individual.epsilons import individual_epsilons, own_noise_multiplier
from equidp.individual.histories import Histories
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent
from support.errors import raises_field

DELTA = 1e-5


def by_hand(shares: list[float], event: StepEvent) -> float:
    """One accountant, composed step by step."""
    accountant = RdpAccountant()
    for share in shares:
        parts = [(share / event.noise_multiplier) ** 2]
        if event.statistics_noise is not None:
            parts.append(event.statistics_noise**-2)
        if sum(parts):
            gaussian = dp_accounting.GaussianDpEvent(sum(parts) ** -0.5)
            accountant.compose(dp_accounting.PoissonSampledDpEvent(event.sample_rate, gaussian))
    return accountant.get_epsilon(DELTA)


@pytest.mark.soak
@given(
    data=st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=3, max_size=3), min_size=1, max_size=4
    ),
    sigma=st.sampled_from([0.7, 2.0]),
    statistics=st.sampled_from([None, 7.0]),
)
@settings(max_examples=6)
def test_epsilons_are_those_of_dp_accounting(data, sigma, statistics):
    event = StepEvent(0.1, sigma, statistics)
    histories = Histories(len(data), 0.25)
    for shares in np.array(data).T:
        histories.add(histories.cells(shares))
    found = individual_epsilons(histories, event, DELTA, "rdp")
    np.testing.assert_allclose(found, [by_hand(row, event) for row in data], rtol=1e-12)


@pytest.mark.soak
@pytest.mark.parametrize("statistics", [None, 8.0])
def test_the_worst_case_is_the_runs_renyi_epsilon(statistics):
    event = StepEvent(0.05, 1.1, statistics)
    histories = Histories(3, 0.5)
    histories.add(histories.cells(np.ones(3)), steps=200)
    expected = epsilon([(event, 200)], DELTA, "rdp")
    np.testing.assert_allclose(individual_epsilons(histories, event, DELTA, "rdp"), expected, rtol=1e-12)


@given(share=st.floats(0, 1), grid=st.sampled_from([0.01, 0.003, 0.1, 1 / 3, 1.0]))
@settings(max_examples=300)
def test_shares_are_rounded_up_by_less_than_a_cell(share, grid):
    histories = Histories(1, grid)
    rounded = histories.shares[histories.cells(np.array([share]))[0]]
    assert share <= rounded <= min(1.0, share + grid * (1 + 1e-9))


def test_shares_that_are_no_numbers_count_in_full():
    histories = Histories(4)
    cells = histories.cells(np.array([math.nan, math.inf, 1.0 + 1e-6, -0.0]))
    assert histories.shares[cells].tolist() == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.soak
def test_an_example_that_never_contributed_has_none():
    histories = Histories(2, 0.3)
    histories.add(histories.cells(np.array([0.0, 0.3])), steps=50)
    found = individual_epsilons(histories, StepEvent(0.1, 1.0), DELTA, "rdp")
    assert found[0] == 0 < found[1]


def test_with_statistics_everyone_pays_for_their_row():
    event = StepEvent(0.1, 1.0, 5.0)
    assert own_noise_multiplier(event, 0.0) == 5.0
    histories = Histories(1, 0.5)
    histories.add(np.zeros(1, dtype=np.int64), steps=100)
    expected = epsilon([(StepEvent(0.1, 5.0), 100)], DELTA, "rdp")
    assert individual_epsilons(histories, event, DELTA, "rdp")[0] == pytest.approx(expected, rel=1e-12)


def test_orders_that_do_not_converge_count_only_where_they_occur():
    event = StepEvent(0.9, 0.05)
    histories = Histories(2, 0.5)
    histories.add(np.array([2, 1]), steps=3)
    found = individual_epsilons(histories, event, DELTA, "rdp")
    expected = [by_hand([1.0] * 3, event), by_hand([0.5] * 3, event)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_table_on_disk_gives_the_same(monkeypatch):
    shares = np.linspace(0, 1, 500)
    found = []
    for limit in (2**30, 1000):
        histories = Histories(500, 0.1, memory_limit=limit)
        histories.add(histories.cells(shares), steps=9)
        found.append(individual_epsilons(histories, StepEvent(0.1, 1.0), DELTA, "rdp"))
    assert isinstance(histories.table, np.memmap)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("grid", [0, -0.1, 1.5, math.nan])
def test_a_grid_coarser_than_the_bound_is_refused(grid):
    with raises_field(SettingError, "grid"):
        Histories(3, grid)


@given(share=st.floats(0, 1), grid=st.sampled_from([0.01, 0.003, 0.1, 0.3, 1 / 3, 1.0]))
def test_nearest_is_at_most_half_a_cell_away(share, grid):
    histories = Histories(1, grid, rounding="nearest")
    rounded = histories.shares[histories.cells(np.array([share]))[0]]
    assert abs(rounded - share) == pytest.approx(np.abs(histories.shares - share).min(), abs=1e-12)


def test_an_unknown_rounding_is_refused():
    with raises_field(SettingError, "rounding", "'down'"):
        Histories(3, rounding="down")


def test_tight_epsilons_are_below_renyi_and_fall_back_to_it():
    """At a delta within rounding the distribution says nothing; Renyi's bound does."""
    event, histories = StepEvent(0.05, 1.1, 9.0), Histories(3, 0.5)
    histories.add(np.array([0, 1, 2]), steps=40)
    tight, renyi = (individual_epsilons(histories, event, 1e-6, name) for name in ("pld", "rdp"))
    assert (0.6 * renyi < tight).all()
    assert (tight < renyi).all()
    np.testing.assert_array_equal(
        *(individual_epsilons(histories, event, 1e-14, name) for name in ("pld", "rdp"))
    )
    with raises_field(SettingError, "accountant", "'gdp'"):
        individual_epsilons(histories, event, 1e-6, "gdp")
