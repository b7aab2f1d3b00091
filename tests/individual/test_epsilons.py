"""Individual epsilons are what dp_accounting says of each example's own steps, and never above the run's."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings, strategies as st

from equidp.errors import SettingError
from equidp.individual.accounts import cells_of, shares_on_grid
from equidp.individual.epsilons import individual_epsilons
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event, Share
from support.errors import raises_field

DELTA = 1e-5


def by_hand(shares: list[float], event: Event) -> float:
    """One accountant, composed step by step."""
    accountant = RdpAccountant()
    for share in shares:
        parts = [(share / event.noise) ** 2]
        if event.statistics_noise is not None:
            parts.append(event.statistics_noise**-2)
        if sum(parts):
            gaussian = dp_accounting.GaussianDpEvent(sum(parts) ** -0.5)
            accountant.compose(dp_accounting.PoissonSampledDpEvent(event.rate, gaussian))
    return accountant.get_epsilon(DELTA)


def counted(rows: list[list[float]], grid: np.ndarray) -> np.ndarray:
    """Steps of each example in each cell, of the shares that it used, a row each."""
    cells = cells_of(np.array(rows), grid)
    return np.stack([np.bincount(row, minlength=len(grid)) for row in cells])


@pytest.mark.soak
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=3, max_size=3), min_size=1, max_size=4
    ),
    sigma=st.sampled_from([0.7, 2.0]),
    statistics=st.sampled_from([None, 7.0]),
)
@settings(max_examples=6)
def test_epsilons_are_those_of_dp_accounting(rows, sigma, statistics):
    event, grid = Event(0.1, sigma, statistics), shares_on_grid(0.25)
    found = individual_epsilons(counted(rows, grid), grid, event, DELTA, "rdp")
    np.testing.assert_allclose(found, [by_hand(row, event) for row in rows], rtol=1e-12)


@given(share=st.floats(0, 1), width=st.sampled_from([0.01, 0.003, 0.1, 1 / 3, 1.0]))
@settings(max_examples=300)
def test_shares_are_rounded_up_by_less_than_a_cell(share, width):
    grid = shares_on_grid(width)
    rounded = grid[cells_of(np.array([share]), grid)[0]]
    assert share <= rounded <= min(1.0, share + width * (1 + 1e-9))


def test_shares_that_are_no_numbers_count_in_full():
    grid = shares_on_grid(0.01)
    cells = cells_of(np.array([math.nan, math.inf, 1.0 + 1e-6, -0.0]), grid)
    assert grid[cells].tolist() == [1.0, 1.0, 1.0, 0.0]


def test_an_example_pays_by_the_rate_the_row_and_at_most_the_bound_of_its_label():
    shares = (Share("a", 0.1), Share("b", 0.05, bound=0.5, row=0.25), Share("c", 0.0))
    event, grid = Event(0.1, 1.0, 5.0, shares=shares, column="groups"), shares_on_grid(0.25)
    counts = counted([[1.0] * 9, [0.25] * 9, [1.0] * 9, [0.25] * 9, [1.0] * 9], grid)
    found = individual_epsilons(counts, grid, event, DELTA, "rdp", labels=np.array([0, 0, 1, 1, 2]))
    alone = [
        Event(0.1, 1.0, 5.0), Event(0.1, 4.0, 5.0), Event(0.05, 2.0, 20.0), Event(0.05, 4.0, 20.0)
    ]  # fmt: skip
    expected = [epsilon([(each, 9)], DELTA, "rdp") for each in alone]
    np.testing.assert_allclose(found, [*expected, 0.0], rtol=1e-12)


def test_tight_epsilons_are_below_renyi_and_fall_back_to_it():
    """At a delta within rounding the distribution says nothing; Renyi's bound does."""
    event, grid = Event(0.05, 1.1, 9.0), shares_on_grid(0.5)
    counts = counted([[0.0] * 40, [0.5] * 40, [1.0] * 40], grid)
    tight, renyi = (individual_epsilons(counts, grid, event, 1e-6, name) for name in ("pld", "rdp"))
    assert (0.6 * renyi < tight).all()
    assert (tight < renyi).all()
    np.testing.assert_array_equal(
        *(individual_epsilons(counts, grid, event, 1e-14, name) for name in ("pld", "rdp"))
    )
    with raises_field(SettingError, "accountant", "'gdp'"):
        individual_epsilons(counts, grid, event, 1e-6, "gdp")
