"""What fits a limit holds for analysts who choose by results; worked out apart from the product."""

from __future__ import annotations

import math
import re
from contextlib import suppress

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, strategies as st
from scipy.optimize import brentq
from scipy.signal import fftconvolve

from equidp.errors import BudgetError, SettingError
from equidp.kernel.event import Event, Share
from equidp.ledger.ledger import Ledger
from equidp.ledger.renyi import renyi_epsilon
from support.errors import raises_field

DELTA = 1e-5


def most_steps(ledger: Ledger, event: Event, run: str = "a") -> int:
    """How many steps of a kind are charged until one is refused."""
    steps = 0
    while True:
        try:
            ledger.charge(run, event, 10**6)
        except BudgetError:
            return steps
        steps += 1


def test_a_plan_that_does_not_fit_is_refused_with_the_steps_that_do(tmp_path):
    event = Event(0.05, 4.0)
    for path in (None, tmp_path / "ledger"):
        ledger = Ledger(path, limit=(1.0, DELTA))
        with raises_field(BudgetError, "ledger", "of the steps fit") as caught:
            ledger.check(event, 1000)
        fitting = int(re.search(r"([\d,]+) of the steps", str(caught.value))[1])
        ledger.check(event, fitting)
        assert ledger.entries() == ()
        assert most_steps(ledger, event) == fitting
        assert ledger.spent() <= 1.0 < ledger.spent([(event, 1)])


def test_the_limit_holds_over_runs_openings_and_blocks(tmp_path):
    limit, event = (2.0, DELTA), Event(0.05, 2.0)
    with Ledger(tmp_path / "ledger", limit=limit) as ledger:
        ledger.check(event, 50)
        alone = Ledger(limit=limit)
        alone.check(event, 50)
        for _ in range(50):
            ledger.charge("a", event, 50)
    with Ledger(tmp_path / "ledger") as ledger:
        assert (ledger.limit, ledger.order) == (limit, alone.order)
        assert 50 + most_steps(ledger, event, "b") == most_steps(alone, event)
        assert ledger.spent() <= 2.0


def test_what_was_released_counts_beside_the_steps():
    event, release = Event(0.05, 4.0), Event(1.0, 10.0, name="counts")
    ledger = Ledger(limit=(1.0, DELTA))
    ledger.check(event, 10, beside=((release, 1),))
    with raises_field(BudgetError, "ledger"):
        ledger.check(event, 10, beside=((release, 100),))
    ledger.release("a", "counts", 10.0, lambda noise: None)
    assert ledger.spent() == renyi_epsilon([(release, 1)], ledger.order, DELTA)


def rdp_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    accountant = RdpAccountant().compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(
    ("limit", "rate", "steps"),
    [
        ((3.0, 1e-5), 0.05, 400),
        *(
            pytest.param(*plan, marks=pytest.mark.soak)
            for plan in (
                ((8.0, 1e-6), 0.001, 20_000),
                ((0.1, 1e-5), 1e-4, 10_000),
            )
        ),
    ],
)
def test_a_first_plan_that_costs_the_limit_fits_but_for_a_few_steps(limit, rate, steps):
    """The order follows from it. At an order that was chosen for another plan, few or none of them fit."""
    noise = brentq(lambda noise: rdp_epsilon(rate, noise, steps, limit[1]) - limit[0], 0.3, 20.0, xtol=1e-6)
    event, ledger = Event(rate, noise), Ledger(limit=limit)
    with suppress(BudgetError):
        ledger.check(event, steps)
    assert ledger.spent([(event, int(0.985 * steps))]) <= limit[0]


def test_the_order_is_that_of_the_first_plan_that_is_spent_from(tmp_path):
    """A plan that was given up before anything of it came out leaves no trace."""
    small, large = Event(0.001, 1.0), Event(0.05, 4.0)
    with Ledger(tmp_path / "ledger", limit=(1.0, DELTA)) as ledger:
        ledger.check(large, 20)
        first = ledger.order
        ledger.check(small, 10_000)
        order = ledger.order
        ledger.charge("a", small)
        ledger.check(large, 1)
        assert ledger.order == order != first
    for opened in (Ledger, Ledger.read):
        assert opened(tmp_path / "ledger").order == order


def test_an_empty_ledger_has_spent_nothing():
    assert Ledger(limit=(3.0, DELTA)).spent() == 0.0
    assert Ledger().spent(delta=DELTA) == 0.0
    with raises_field(SettingError, "delta"):
        Ledger().spent()


def test_steps_without_noise_fit_no_limit_but_an_infinite_one():
    event = Event(0.1, 0.0)
    with raises_field(BudgetError, "ledger"):
        Ledger(limit=(3.0, DELTA)).charge("a", event)
    ledger = Ledger(limit=(math.inf, DELTA))
    ledger.charge("a", event)
    assert ledger.spent() == math.inf


def test_labels_of_two_columns_are_two_labels_though_their_names_are_the_same():
    """Sex, then diabetes, both "0" and "1": an example that is often drawn in both pays for both."""
    first = Event(0.02, 1.0, shares=(Share("0", 0.002), Share("1", 0.02)), column="sex")
    second = Event(0.02, 1.0, shares=(Share("0", 0.02), Share("1", 0.002)), column="diabetes")
    pays, ledger = Event(0.02, 1.0), Ledger(limit=(3.0, DELTA))
    ledger.check(first, 100)
    for event, run in ((first, "a"), (second, "b")):
        for _ in range(100):
            ledger.charge(run, event)
    assert ledger.spent() >= renyi_epsilon([(pays, 200)], ledger.order, DELTA) - 1e-9
    assert renyi_epsilon([(first, 200)], ledger.order, DELTA) == pytest.approx(ledger.spent())


@pytest.mark.soak
@given(
    st.lists(
        st.tuples(st.floats(1e-3, 1.0), st.floats(0.5, 20.0), st.integers(1, 300)), min_size=1, max_size=5
    ),
    st.floats(1.5, 60.0),
    st.sampled_from([1e-5, 1e-7]),
)
def test_spent_is_what_dp_accounting_says_at_that_order(kinds, order, delta):
    accountant = RdpAccountant([order])
    for rate, noise, steps in kinds:
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    ledger = Ledger()
    ledger._order = order
    found = ledger.spent([(Event(rate, noise), steps) for rate, noise, steps in kinds], delta=delta)
    assert found == pytest.approx(accountant.get_epsilon(delta), rel=1e-6)


class Analyst:
    """One who adds a run of kind A or of kind B as long as a limit holds, by the likelihood ratio so far.

    Exact, by dynamic programming over the loss so far; losses are rounded down, so that delta is a lower
    bound.
    """

    WIDTH, LOW, HIGH, EPSILON = 1e-2, -8.0, 14.0, 3.0

    def __init__(self, kinds: tuple[tuple[Event, int], ...], ledger: Ledger) -> None:
        self.kinds, self.ledger = kinds, ledger
        self.grid = np.arange(round(self.LOW / self.WIDTH), round(self.HIGH / self.WIDTH) + 1) * self.WIDTH
        self.end = np.maximum(0, -np.expm1(self.EPSILON - self.grid))

    def delta(self) -> float:
        """The most that delta at the limit's epsilon can be made."""
        return max(self._of_direction(remove) for remove in (True, False))

    def _of_direction(self, remove: bool) -> float:
        laws = [self._law(*kind, remove) for kind in self.kinds]
        table: dict[tuple[int, int], np.ndarray] = {}

        def value(a: int, b: int) -> np.ndarray:
            if (a, b) not in table:
                following = [((a + 1, b), laws[0]), ((a, b + 1), laws[1])]
                options = [self._after(value(*there), law) for there, law in following if self._fits(*there)]
                table[a, b] = np.max([self.end, *options], axis=0)
            return table[a, b]

        return float(value(0, 0)[np.argmin(np.abs(self.grid))])

    def _fits(self, *counts: int) -> bool:
        spent = [(event, steps * n) for (event, steps), n in zip(self.kinds, counts, strict=True) if n]
        return self.ledger.spent(spent) <= self.EPSILON

    def _law(self, event: Event, steps: int, remove: bool):
        losses = pld.from_gaussian_mechanism(
            event.noise,
            sampling_prob=event.rate,
            value_discretization_interval=self.WIDTH,
            pessimistic_estimate=False,
        ).self_compose(steps)
        dense = (losses._pmf_remove if remove else losses._pmf_add).to_dense_pmf()
        return dense._lower_loss, np.asarray(dense._probs), dense._infinity_mass

    def _after(self, values: np.ndarray, law) -> np.ndarray:
        """E values(loss + L); beyond the grid, values are 0 below and 1 above."""
        low, probs, infinite = law
        reach = len(probs) + abs(low)
        padded = np.concatenate([np.zeros(reach), values, np.ones(reach)])
        full = fftconvolve(padded, probs[::-1], mode="full")
        start = reach + len(probs) - 1 + low
        return np.clip(full[start : start + len(values)], 0, 1) + infinite


@pytest.mark.soak
@pytest.mark.parametrize("order", [None, 12.0])
def test_no_analyst_exceeds_delta(order):
    """At the order of one of his kinds of run, or at others at which some fit."""
    kinds = ((Event(1.0, 2.8), 1), (Event(0.01, 0.6), 5))
    ledger = Ledger(limit=(3.0, DELTA))
    ledger._order = order
    ledger.check(*kinds[0])
    assert 0 < Analyst(kinds, ledger).delta() <= DELTA
