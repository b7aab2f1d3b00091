"""No example's steps cost more than its account, whatever its norms are and whatever is released before."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings, strategies as st
from torch import Tensor

from equidp.accounting.meter import EpsilonMeter
from equidp.audit.bounds import NoiseFamily, Rates, noise_from_rates
from equidp.errors import BudgetError, SettingError
from equidp.kernel.epsilon import epsilon, filtered_epsilon
from equidp.kernel.filter import CELLS, WHOLE, ExampleAccounts, charges_of
from equidp.kernel.ledger import (
    FilteredStepEvent,
    GroupedStepEvent,
    GroupShare,
    MemoryLedger,
    ReleaseEvent,
    StepEvent,
)
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD
from equidp.runs.recompute import recompute_epsilon
from support.errors import raises_field
from support.given_gradients import GivenGradients, loop_over

EVENTS = {
    "all in each step": FilteredStepEvent(1.0, 2.0, order=4.0, full_steps=3),
    "sampled": FilteredStepEvent(0.1, 0.8, order=3.5, full_steps=5),
    "little noise": FilteredStepEvent(0.02, 0.5, order=2.25, full_steps=2),
    "a high order": FilteredStepEvent(0.05, 3.0, order=64.0, full_steps=4),
}


@cache
def divergence(event: FilteredStepEvent, share: float) -> float:
    """Renyi divergence of one step at a share of the bound, by dp_accounting alone."""
    if not share:
        return 0.0
    accountant = RdpAccountant([event.order])
    gaussian = GaussianDpEvent(event.noise_multiplier / share)
    accountant.compose(PoissonSampledDpEvent(event.sample_rate, gaussian))
    return float(accountant.rdp[0])


@pytest.mark.parametrize("name", EVENTS)
@given(st.lists(st.lists(st.floats(0, 1.5), min_size=3, max_size=3), min_size=1, max_size=40))
@settings(max_examples=40, deadline=None)
def test_no_sequence_of_norms_costs_an_example_more_than_its_account(name, sequence):
    event = EVENTS[name]
    accounts, spent = ExampleAccounts(event, 3), np.zeros(3)
    for shares in sequence:
        accounts.set_shares(torch.tensor(shares))
        accounts.charge()
        drawn = accounts.drawn_shares.tolist()
        assert all(not one or one >= min(share, 1.0) for one, share in zip(drawn, shares, strict=True))
        spent += [divergence(event, share) for share in drawn]
    most = event.full_steps * divergence(event, 1.0)
    assert (spent <= most * (1 + 1e-12)).all()
    left = np.array([event.full_steps * WHOLE - each for each in accounts.sensitive_spent.tolist()]) / WHOLE
    assert (left >= 0).all()
    assert (spent / divergence(event, 1.0) <= event.full_steps - left + 1e-12).all()


@pytest.mark.parametrize("name", EVENTS)
def test_charges_are_those_of_dp_accounting_and_rise_with_the_share(name):
    event = EVENTS[name]
    charges = charges_of(event)
    assert charges[0] == 0
    assert charges[CELLS] == WHOLE
    assert all(np.diff(charges) >= 0)
    for part in (1, 16, 17, 100, 255):
        expected = divergence(event, max(part, 16) / CELLS) / divergence(event, 1.0)
        assert 0 < charges[part] / WHOLE - expected < 1e-6


def test_an_example_at_the_bound_is_drawn_in_full_steps_and_a_small_one_for_longer():
    accounts = ExampleAccounts(EVENTS["all in each step"], 3)
    accounts.set_shares(torch.tensor([1.0, 0.5, 0.0]))
    drawn = []
    for _ in range(20):
        accounts.charge()
        drawn.append((accounts.drawn_shares > 0).tolist())
    assert np.sum(drawn, axis=0).tolist() == [3, 11, 0]  # 3 / .5^2, but for what is rounded up


def test_one_that_does_not_fit_may_fit_later():
    accounts = ExampleAccounts(FilteredStepEvent(1.0, 2.0, order=4.0, full_steps=1), 1)
    accounts.set_shares(torch.tensor([0.5]))
    accounts.charge()
    accounts.set_shares(torch.tensor([1.0]))
    accounts.charge()
    assert accounts.drawn_shares.tolist() == [0.0]
    accounts.set_shares(torch.tensor([math.nan]))  # the worst
    accounts.charge()
    assert accounts.drawn_shares.tolist() == [0.0]
    accounts.set_shares(torch.tensor([0.25]))
    accounts.charge()
    assert accounts.drawn_shares.tolist() == [0.25]


@pytest.mark.parametrize("name", EVENTS)
def test_a_restored_account_goes_on_and_lost_steps_count_as_whole(name):
    event = EVENTS[name]
    first = ExampleAccounts(event, 2)
    first.set_shares(torch.tensor([0.3, 1.0]))
    first.charge()
    state = first.state()
    for lost in (0, 1, 10**12):
        again = ExampleAccounts(event, 2, steps_before=1 + lost)
        assert again.sensitive_spent.tolist() == [min(1 + lost, event.full_steps) * WHOLE] * 2
        again.restore(**state, lost=lost)
        most = event.full_steps * WHOLE
        expected = [min(spent + lost * WHOLE, most) for spent in state["spent"].tolist()]
        assert again.sensitive_spent.tolist() == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"spent": torch.zeros(3, dtype=torch.int64)},
        {"spent": torch.tensor([-1, 0])},
        {"spent": torch.tensor([0.0, 0.0])},
        {"spent": torch.tensor([0, 3 * WHOLE + 1])},
        {"cells": torch.tensor([0, CELLS + 1])},
    ],
)
def test_a_state_of_no_accounts_is_refused(wrong):
    accounts = ExampleAccounts(EVENTS["all in each step"], 2)
    zeros = torch.zeros(2, dtype=torch.int64)
    with raises_field(SettingError, "spent"):
        accounts.restore(**{"spent": zeros, "cells": zeros, **wrong}, lost=0)


def test_a_state_ahead_of_the_ledger_is_refused():
    accounts = ExampleAccounts(EVENTS["all in each step"], 2)
    accounts.set_shares(torch.ones(2))
    with raises_field(SettingError, "lost"):
        accounts.restore(**accounts.state(), lost=-1)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("statistics_noise", {"statistics_noise": 1.0}),
        ("noise_multiplier", {"noise_multiplier": 0.0}),
        ("order", {"order": 1.0}),
        ("full_steps", {"full_steps": 0}),
    ],
)
def test_an_event_of_no_accounts_is_refused(field, wrong):
    with raises_field(SettingError, field):
        FilteredStepEvent(**{"sample_rate": 0.1, "noise_multiplier": 1.0, **wrong})


# The step.

SMALL = FilteredStepEvent(1.0, 2.0, order=4.0, full_steps=2)


def make_step(event=SMALL, n=4, seed=0, accounts=..., ledger=None):
    parameter = torch.nn.Parameter(torch.zeros(3))
    return PrivateStep(
        GivenGradients(parameter),
        DPSGD(2.0),
        [parameter],
        event=event,
        expected_batch_size=1.0,
        num_groups=1,
        ledger=MemoryLedger() if ledger is None else ledger,
        randomness=SeededRandomness(seed),
        accounts=ExampleAccounts(event, n) if accounts is ... else accounts,
    )


@pytest.fixture
def quiet(monkeypatch):
    """No noise: what remains is the sum, whose sensitivity is at stake."""
    monkeypatch.setattr(SeededRandomness, "normal", lambda self, count, *_: torch.zeros(count).double())


def moved(step: PrivateStep, gradients: Tensor) -> Tensor:
    n = len(gradients)
    step(gradients, torch.zeros(n), torch.zeros(n, dtype=torch.int64), torch.arange(n))
    return step.parameters[0].grad.clone()


def cost_of_canary(shares: list[float], lengths: list[float]) -> tuple[float, float]:
    """What an example's steps cost in fact, by what they moved, and what its account may hold.

    The example alone has gradients along the last axis.
    """
    step, found = make_step(), 0.0
    for share, length in zip(shares, lengths, strict=True):
        step.accounts.set_shares(torch.tensor([1.0, 1.0, 1.0, share]))
        gradients = torch.eye(3)[[0, 1, 1, 2]] * torch.tensor([[1.0], [1.0], [9.0], [length]])
        found += divergence(SMALL, min(1e3, float(moved(step, gradients)[2]) / 2.0))
    return found, SMALL.full_steps * divergence(SMALL, 1.0) * (1 + 1e-3)  # the grid of released sums


SEQUENCES = {
    "grows after its norm was taken": ([0.25] * 40, [50.0] * 40),
    "always at the bound": ([1.0] * 10, [50.0] * 10),
    "shorter than its share": ([1.0] * 10, [0.5] * 10),
    "not finite at times": ([0.5] * 12, [1.0, math.inf] * 6),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_what_a_step_is_moved_by_costs_no_more_than_the_account(name, quiet):
    found, most = cost_of_canary(*SEQUENCES[name])
    assert 0 < found <= most


def _without_cut(monkeypatch):
    weights = PrivateStep._capped_weights

    def uncut(self, *args):
        accounts, self.accounts = self.accounts, None
        try:
            return weights(self, *args)
        finally:
            self.accounts = accounts

    monkeypatch.setattr(PrivateStep, "_capped_weights", uncut)


def _never_full(monkeypatch):
    charge = ExampleAccounts.charge

    def again(self):
        self._most = 10**15
        charge(self)

    monkeypatch.setattr(ExampleAccounts, "charge", again)


def _charged_after_the_step(monkeypatch):
    """By one step more than fits."""
    charge = ExampleAccounts.charge

    def late(self):
        before = self.sensitive_spent.clone()
        self.sensitive_spent -= WHOLE
        charge(self)
        self.sensitive_spent += WHOLE
        assert (self.sensitive_spent >= before).all()

    monkeypatch.setattr(ExampleAccounts, "charge", late)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "gradients are not cut to their share": (_without_cut, "grows after its norm was taken"),
    "nobody is left out": (_never_full, "always at the bound"),
    "the step that fills an account is taken twice": (_charged_after_the_step, "always at the bound"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_caught(name, quiet, monkeypatch):
    plant, sequence = FAULTS[name]
    plant(monkeypatch)
    found, most = cost_of_canary(*SEQUENCES[sequence])
    assert found > 1.2 * most


def test_who_is_left_out_changes_nothing_for_the_others(quiet):
    """Not even where parts of a batch are cut, or in which order they are added."""
    step, other = make_step(n=5), make_step(n=4)
    gradients = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    step.physical_batch_size = other.physical_batch_size = 2
    step.accounts.set_shares(torch.tensor([0.5, 0.0, 0.5, 1.0, 0.3]))
    other.accounts.set_shares(torch.tensor([0.5, 0.5, 1.0, 0.3]))
    assert torch.equal(moved(step, gradients), moved(other, gradients[[0, 2, 3, 4]]))


def test_who_is_left_out_is_not_measured_and_moves_no_part_of_the_batch():
    step, seen = make_step(n=5), []
    gradients, engine = torch.eye(5, 3) + 1.0, step.engine
    step.engine = lambda inputs, targets: seen.append(inputs) or engine(inputs, targets)
    step.physical_batch_size = 2
    step.accounts.set_shares(torch.tensor([0.5, 0.0, 0.5, 1.0, 0.3]))
    moved(step, gradients)
    assert [part.tolist() for part in seen] == [gradients[[0, 2]].tolist(), gradients[[3, 4]].tolist()]


def test_a_loop_draws_nobody_whose_account_is_full(quiet):
    step = make_step()
    step.accounts.set_shares(torch.tensor([1.0, 0.5, 0.25, 0.0]))
    loop = loop_over(step, torch.eye(3)[[0, 1, 2, 2]] * 2.0, torch.zeros(4, dtype=torch.int64), 40)
    sums = []
    for batch in loop.batches():
        loop.take(batch)
        sums.append(step.parameters[0].grad.tolist())
    drawn = np.array(sums) > 0
    assert drawn.sum(axis=0).tolist() == [2, 7, 31]
    assert step.ledger.count_of(SMALL) == 40


def test_a_step_without_its_accounts_is_refused():
    for accounts in (None, ExampleAccounts(EVENTS["sampled"], 4)):
        with raises_field(SettingError, "accounts"):
            make_step(accounts=accounts)
    with raises_field(SettingError, "accounts"):
        make_step(StepEvent(1.0, 2.0), accounts=ExampleAccounts(SMALL, 4))


def test_nothing_is_spent_before_shares_are_known():
    step = make_step()
    with raises_field(SettingError, "callbacks"):
        moved(step, torch.zeros(4, 3))
    assert step.ledger.steps == 0
    with raises_field(SettingError, "shares"):
        step.accounts.set_shares(torch.zeros(5))


def test_a_ledger_that_cannot_record_charges_no_account(monkeypatch):
    step = make_step()
    step.accounts.set_shares(torch.ones(4))
    refuse = BudgetError("full.", field="budget")
    monkeypatch.setattr(MemoryLedger, "spend", lambda *_: (_ for _ in ()).throw(refuse))
    with pytest.raises(BudgetError):
        moved(step, torch.zeros(4, 3))
    assert step.accounts.sensitive_spent.tolist() == [0] * 4


def test_two_steps_with_one_ledger_share_what_it_holds(quiet):
    """Both were made before either was taken; together they move no more than one account holds."""
    ledger = MemoryLedger()
    first, second = make_step(ledger=ledger), make_step(ledger=ledger)
    for step in (first, second):
        step.accounts.set_shares(torch.tensor([1.0, 0.5, 0.5, 0.5]))
    gradients = torch.eye(3)[[0, 1, 1, 2]] * 2.0
    moves = [float(moved(step, gradients)[0]) for step in (first, second, first, second, second)]
    assert np.count_nonzero(moves) == SMALL.full_steps
    assert second.accounts.sensitive_spent.tolist() == [SMALL.full_steps * WHOLE] * 4


@pytest.mark.parametrize("restored", [False, True])
def test_own_and_lost_steps_are_charged_once(restored):
    ledger, event = MemoryLedger(), FilteredStepEvent(1.0, 2.0, order=4.0, full_steps=9)
    step = make_step(event, ledger=ledger)
    step.accounts.set_shares(torch.ones(4))
    for _ in range(2):
        step.pay()
    if restored:
        state = step.accounts.state()
        ledger.spend(event)
        step = make_step(event, ledger=ledger, accounts=ExampleAccounts(event, 4, steps_before=3))
        step.accounts.restore(**state, lost=1)
        assert step.accounts.sensitive_spent.tolist() == [3 * WHOLE] * 4
    step.pay()
    assert step.accounts.sensitive_spent.tolist() == [ledger.steps * WHOLE] * 4
    ledger.spend(event)
    step.pay()
    assert step.accounts.sensitive_spent.tolist() == [ledger.steps * WHOLE] * 4


WRONG_INDICES = {
    "none": None,
    "too few": torch.arange(3),
    "not whole": torch.arange(4.0),
    "beyond the last": torch.arange(1, 5),
    "below the first": torch.arange(-1, 3),
    "one twice": torch.tensor([0, 1, 1, 2]),
}


@pytest.mark.parametrize("name", WRONG_INDICES)
def test_a_step_that_cannot_tell_whose_accounts_are_meant_is_refused(name):
    step = make_step()
    step.accounts.set_shares(torch.ones(4))
    with raises_field(SettingError, "indices"):
        step(torch.zeros(4, 3), torch.zeros(4), torch.zeros(4, dtype=torch.int64), WRONG_INDICES[name])
    assert step.ledger.steps == 0


RUNS, DELTA = 400, 1e-3
AUDITED = FilteredStepEvent(1.0, 1.0, order=3.0, full_steps=2)


def lower_bound(steps: int) -> float:
    """Lower bound on epsilon, at 95%, from runs with and without an example of known gradient."""
    scores = []
    for inside in (True, False):
        own = []
        for run in range(RUNS):
            step = make_step(AUDITED, n=1, seed=2 * run + inside)
            step.accounts.set_shares(torch.ones(1))
            gradient = torch.tensor([[2.0 * inside, 0.0, 0.0]])
            own.append(sum(float(moved(step, gradient)[0]) for _ in range(steps)))
        scores.append(np.array(own))
    middle = (scores[0][: RUNS // 2].mean() + scores[1][: RUNS // 2].mean()) / 2
    inside, outside = (each[RUNS // 2 :] for each in scores)
    rates = Rates(int((inside > middle).sum()), len(inside), int((outside > middle).sum()), len(outside))
    return noise_from_rates(rates, NoiseFamily([(StepEvent(1.0, 1.0), 1)]), DELTA)


@pytest.mark.soak
def test_an_audit_of_an_example_stays_below_epsilon_and_sees_an_account_that_never_ends(monkeypatch):
    """Seeds are fixed; a sound step exceeds its claim in one of 20 audits at most."""
    claimed = filtered_epsilon([(AUDITED, 2)], DELTA)
    assert filtered_epsilon([(AUDITED, 8)], DELTA) == claimed
    found = lower_bound(2)
    assert claimed / 2 < found <= claimed
    assert lower_bound(8) <= claimed
    _never_full(monkeypatch)
    assert lower_bound(8) > claimed


# Epsilon.


def composed(event: FilteredStepEvent, steps: int, delta: float, *others: tuple[float, int]) -> float:
    """Epsilon of so many whole steps, and of Gaussian mechanisms, at the order, by dp_accounting alone."""
    one = PoissonSampledDpEvent(event.sample_rate, GaussianDpEvent(event.noise_multiplier))
    events = [SelfComposedDpEvent(one, steps)]
    events += [SelfComposedDpEvent(GaussianDpEvent(noise), count) for noise, count in others]
    return float(RdpAccountant([event.order]).compose(ComposedDpEvent(events)).get_epsilon(delta))


@pytest.mark.parametrize("name", EVENTS)
def test_epsilon_is_that_of_the_steps_that_fill_an_account(name):
    event = EVENTS[name]
    full = event.full_steps
    for steps in (1, full, 10 * full):
        expected = composed(event, min(steps, full), 1e-5)
        assert filtered_epsilon([(event, steps)], 1e-5) == pytest.approx(expected, rel=1e-9)
    release = ReleaseEvent(1.0, 30.0, name="counts")
    mixed = [(event, full), (release, 2), (event, 3 * full)]
    assert filtered_epsilon(mixed, 1e-5) == pytest.approx(composed(event, full, 1e-5, (30.0, 2)), rel=1e-9)


def test_steps_count_in_full_without_one_ledger_of_one_run():
    plain = StepEvent(SMALL.sample_rate, SMALL.noise_multiplier)
    other = FilteredStepEvent(1.0, 2.0, order=4.0, full_steps=2, run="other")
    assert epsilon([(SMALL, 40)], 1e-5) == epsilon([(plain, 40)], 1e-5)
    assert filtered_epsilon([(SMALL, 40), (other, 40)], 1e-5) == math.inf
    assert filtered_epsilon([(plain, 40)], 1e-5) == filtered_epsilon([], 1e-5) == math.inf


def test_other_steps_by_group_count_at_their_largest():
    groups = GroupedStepEvent(0.5, 2.0, by_group=(GroupShare("a", 0.5), GroupShare("b", 0.1)))
    found = filtered_epsilon([(SMALL, 9), (groups, 3)], 1e-5)
    assert found == pytest.approx(filtered_epsilon([(SMALL, 9), (StepEvent(0.5, 2.0), 3)], 1e-5))


def test_epsilon_while_a_run_goes_on_ends_with_the_account():
    meter = EpsilonMeter(SMALL, 50, 1e-5)
    found = [meter(steps) for steps in range(51)]
    assert found[0] == 0
    assert found == sorted(found)
    assert found[2] < found[10] == found[50] == filtered_epsilon([(SMALL, 50)], 1e-5)


@pytest.mark.parametrize("steps", [1, 30])
def test_an_auditor_finds_the_same_epsilon_without_equidp(steps):
    event = EVENTS["all in each step"]
    written = {"filtered": {**vars(event)}}
    release = {"release": {"sample_rate": 1.0, "noise_multiplier": 20.0, "statistics_noise": None}}
    entries = [(event, steps), (ReleaseEvent(1.0, 20.0, name="counts"), 1)]
    expected = min(filtered_epsilon(entries, 1e-5), epsilon(entries, 1e-5))
    assert recompute_epsilon([(written, steps), (release, 1)], 1e-5) == pytest.approx(expected, rel=1e-6)
    other = {"filtered": {**vars(event), "run": "other"}}
    twice = recompute_epsilon([(written, steps), (other, steps)], 1e-5)
    assert twice == pytest.approx(epsilon([(StepEvent(1.0, 2.0), 2 * steps)], 1e-5), rel=1e-6)
