"""Accounts see what the step did to each example, for every policy; releases are noisy and charged."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import equidp
from equidp.display import shown_epsilon
from equidp.engines import dataset_norms, make_engine
from equidp.errors import SettingError
from equidp.individual.report import IndividualReport
from equidp.kernel.engine import Measured
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.ledger.ledger import Ledger
from equidp.policies.weights import sensitivity_of
from support.errors import raises_field
from support.toy import make_trainer, toy

POLICIES = {
    "dpsgd": lambda: equidp.DPSGD(0.5),
    "dpsgd-f": lambda: equidp.DPSGDF(0.5),
    "naive": lambda: equidp.Naive(0.5),
    "global": lambda: equidp.Global(0.5, 2.0),
    "quantile-bounded": lambda: equidp.QuantileBounded(0.5, lowest_bound=0.4),
    "automatic": lambda: equidp.Automatic(0.5),
    "softadaclip": lambda: equidp.SoftAdaClip(0.5),
}


def watched(method=None, individual=None, **settings):
    """A trainer that accounts for each example: exactly, on a coarse grid, unless told otherwise."""
    individual = individual or equidp.Individual(1, grid=0.1)
    return make_trainer(method=method, individual=individual, seed=1, **settings)


def counted(trainer):
    """Steps of each example in each cell of the grid."""
    trainer.individual.settle()
    return trainer.individual.counts


class Bounds(NamedTuple):
    bounds: torch.Tensor


@dataclass(frozen=True)
class Fixed(equidp.Policy):
    """Clips group a at 0.1 and group b at 0.4."""

    def init(self, setting):
        return Bounds(torch.tensor([0.1, 0.4]))

    def bound(self, state, group):
        return state.bounds[group]


@dataclass(frozen=True)
class Shrinking(equidp.Policy):
    """Clips at a tenth of the bound before, from 100 down to 0.1."""

    statistics_ratio: float = 10.0

    def init(self, setting):
        return Bounds(torch.tensor(100.0))

    def statistics(self, state, norm, group):
        return torch.ones(1)

    def update(self, state, released):
        return Bounds((state.bounds / 10).clamp(min=0.1))

    def weight(self, state, norm, group):
        return (state.bounds / norm).clamp(max=1.0)

    def sensitivity(self, state):
        return float(state.bounds)


@pytest.mark.soak
@pytest.mark.parametrize("name", POLICIES)
def test_no_example_has_a_larger_epsilon_than_the_run(name):
    trainer = watched(POLICIES[name](), epochs=3)
    run = trainer.fit()
    for how in ("pld", "rdp") if name == "dpsgd-f" else ("rdp",):
        report = trainer.individual_report(accountant=how)
        assert report.sensitive_epsilons.shape == (300,)
        assert report.largest == run.epsilon(accountant=how)
        assert (report.sensitive_epsilons <= report.largest).all()
        assert report.guaranteed
        # Global drops gradients above its strict bound: those examples contribute nothing.
        assert (report.sensitive_epsilons > 0).mean() > (0.3 if name == "global" else 0.999)


@pytest.mark.soak
def test_each_step_counts_under_the_state_it_was_taken_with():
    """The bound shrinks to a thousandth: shares of an earlier state would be far too small."""
    trainer = watched(Shrinking(), equidp.Individual(100, grid=0.1))
    run = trainer.fit()
    epsilons = trainer.individual_report(accountant="rdp").sensitive_epsilons
    assert np.median(epsilons) > 0.9 * run.epsilon(accountant="rdp")


def test_shares_are_those_of_the_model_before_each_step():
    """DPSGD: z = min(1, norm / C), with norms at the parameters that the step's gradient was taken at."""
    seen = []

    class Watch(equidp.Callback):
        def before_training(self, trainer):
            self._look(trainer)

        def after_step(self, trainer):
            self._look(trainer)

        def _look(self, trainer):
            engine = make_engine("functional", trainer.model, trainer.loss)
            norms = dataset_norms(engine, trainer.train.inputs, trainer.train.targets)
            seen.append(np.minimum(norms.double().numpy() / 0.5, 1.0))

    trainer = watched(equidp.DPSGD(0.5), equidp.Individual(1), steps=6, epochs=None, callbacks=[Watch()])
    trainer.fit()
    used = counted(trainer) @ trainer.individual.grid
    exact = np.sum(seen[:6], axis=0)
    assert (used >= exact - 1e-5).all()
    assert (used <= exact + 6 * 0.01 + 1e-5).all()


@pytest.mark.soak
def test_dropout_makes_estimates_and_is_left_alone():
    """The step's dropout is not that of the pass that takes norms; watching must not shift it either."""
    states = []
    for individual in (None, equidp.Individual(1, grid=0.1)):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        trainer = make_trainer(model=model, seed=1, steps=6, epochs=None, individual=individual)
        torch.manual_seed(6)
        states.append(trainer.fit().model.state_dict())
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    report = trainer.individual_report(accountant="rdp")
    assert not report.guaranteed
    assert "an estimated epsilon" in report.for_owner(0)


def report_of(epsilons, groups, names=("a", "b"), largest=2.0):
    bounds = np.full(len(names), largest)
    return IndividualReport(
        np.array(epsilons), bounds, np.array(groups), names, largest, 1e-5, guaranteed=True,
        ledger=Ledger(), run_id="a", randomness=SeededRandomness(0), group_profiles=np.ones((2, 401)),
        spent=(),
    )  # fmt: skip


def test_no_owner_is_told_less_than_their_epsilon():
    text = report_of([0.12344, 1.5], [0, 1], largest=2.00004).for_owner(0)
    assert [float(number) for number in re.findall(r"\d+\.\d+", text)] == [0.124, 2.001]


@pytest.mark.soak
def test_releases_are_near_the_truth_and_are_charged():
    """2,000 examples at (1, 1e-6): 20 releases of each; the median error is small, and every release is in
    the ledger."""
    trainer = watched(train=toy(2000), batch_size=100, epochs=2)
    run = trainer.fit()
    before = run.epsilon()
    steps = trainer.steps_done
    report = trainer.individual_report(accountant="rdp")
    truth = report.sensitive_epsilons
    means = [report.release_mean(1.0, 1e-6) for _ in range(20)]
    assert np.median(np.abs(np.array(means) / truth.mean() - 1)) < 0.02
    medians = [report.release_quantiles([0.5], 1.0, 1e-6)[0] for _ in range(20)]
    assert np.median(np.abs(np.array(medians) / np.quantile(truth, 0.5) - 1)) < 0.05
    assert trainer.run().epsilon() > before + 1
    assert trainer.steps_done == steps
    spent = len(trainer.entries)
    report.release_quantiles([0.9], 0.5, 1e-5)
    released = trainer.entries[spent:]
    assert epsilon(released, 1e-5) == pytest.approx(0.5, rel=1e-3)
    assert epsilon(released, 1e-5) <= 0.5


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({}, "interval"),
        ({"interval": 1, "per_epoch": 2}, "interval"),
        ({"interval": 1.5}, "interval"),
        ({"interval": 1, "grid": math.nan}, "grid"),
    ],
)
def test_intervals_that_make_no_sense_are_refused(settings, field):
    with raises_field(SettingError, field):
        equidp.Individual(**settings)


def test_what_cannot_be_accounted_for_is_refused_before_it_costs():
    with raises_field(SettingError, "noise_multiplier"):
        watched(equidp.SGD(), noise_multiplier=None)
    rows = torch.utils.data.TensorDataset(toy().inputs, toy().targets)
    with raises_field(SettingError, "train"):
        watched(train=rows)


def test_steps_from_before_count_in_full_for_every_example_and_group():
    """A kill loses such steps. An example that no step clipped counts in full for them as well."""
    event = watched(equidp.DPSGD(50.0), steps=6, epochs=None).event
    ledger = Ledger()
    for _ in range(4):
        ledger.charge("a", event)
    trainer = watched(equidp.DPSGD(50.0), steps=6, epochs=None, ledger=(ledger, "a"))
    while trainer.step():
        pass
    assert trainer.individual.in_full == 4
    assert (counted(trainer)[:, -1] == 4).all()
    assert (counted(trainer).sum(axis=1) == 6).all()
    report = trainer.individual_report(accountant="rdp")
    at_least = epsilon([(trainer.event, 4)], trainer.delta, "rdp")
    assert (report.sensitive_epsilons >= at_least).all()
    assert (report.sensitive_epsilons < report.largest).all()
    assert report.largest == pytest.approx(epsilon([(trainer.event, 6)], trainer.delta, "rdp"), rel=1e-12)


def test_a_step_that_failed_counts_in_full():
    class Fails(nn.Linear):
        fail = False

        def forward(self, values):
            if self.fail:
                raise RuntimeError("this pass fails")
            return super().forward(values)

    trainer = watched(
        equidp.DPSGD(50.0), model=Fails(5, 2), individual=equidp.Individual(100), steps=5, epochs=None
    )
    trainer.step()
    trainer.model.fail = True
    with pytest.raises(Exception, match="this pass fails"):
        trainer.step()
    trainer.model.fail = False
    trainer.fit()
    assert trainer.individual.in_full == 1
    assert (counted(trainer)[:, -1] == 1).all()
    assert (counted(trainer).sum(axis=1) == 5).all()


@pytest.mark.soak
def test_a_run_that_was_stopped_guarantees_its_plan():
    """Results may have decided when to stop: groups and everyone have what all planned steps cost."""
    trainer = watched(Fixed(), steps=12, epochs=None)
    for _ in range(3):
        trainer.step()
    report = trainer.individual_report(accountant="rdp")
    assert report.largest == pytest.approx(epsilon([(trainer.event, 12)], trainer.delta, "rdp"), rel=1e-12)
    assert f"guaranteed {shown_epsilon(report.largest):g}" in report.for_owner(0)
    taken = epsilon([(trainer.event, 3)], trainer.delta, "rdp")
    assert (report.sensitive_epsilons <= taken).all()
    for label, found in zip(trainer.event.labels, report.group_epsilons, strict=True):
        assert found == pytest.approx(epsilon([(trainer.event, 12)], trainer.delta, "rdp", label), rel=1e-12)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "physical"), [("dpsgd-f", 7), ("global", None)])
def test_individual_clipping_holds_everyone_to_what_is_accounted(name, physical):
    """What each drawn example adds is at most its limit, and all that it adds what its history counts."""
    trainer = watched(
        POLICIES[name](), equidp.Individual(9, clipping=True, grid=0.05), steps=30, epochs=None,
        physical_batch_size=physical,
    )  # fmt: skip
    step, used, limited = trainer._step, np.zeros(300), 0
    limits, inner = step.limits, step.engine
    asked = []

    def noted(indices, norms):
        shares = limits(indices, norms)
        assert torch.equal(limits(indices.flip(0), norms.flip(0)).flip(0), shares)
        asked.append((indices.numpy(), shares.double().numpy()))
        return shares

    def engine(inputs, targets):
        measured = inner(inputs, targets)

        def sums(weights):
            nonlocal limited
            indices, shares = asked.pop()
            bound = sensitivity_of(trainer.policy, step.weights_state, trainer.num_groups)
            own = (weights * measured.norms).double().numpy() / bound
            assert (own <= shares * (1 + 1e-5)).all()
            limited += ((own >= shares * (1 - 1e-5)) & (own < 1 - 1e-5)).sum()
            used[indices] += own
            return measured.sums(weights)

        return Measured(measured.norms, None, sums)

    step.limits, step.engine = noted, engine
    trainer.fit()
    assert limited > 0
    assert (used <= counted(trainer) @ trainer.individual.grid + 1e-5).all()
    report = trainer.individual_report(accountant="rdp")
    assert report.guaranteed
    assert "at most epsilon" in report.for_owner(0)


@pytest.mark.soak
def test_groups_with_bounds_of_their_own_have_risks_of_their_own():
    """Group a's bound is a quarter of the sensitivity: its risk is that of steps with four times the noise,
    up to the smoothing of few steps; a release, which everyone pays for in full, is in both."""
    trainer = watched(Fixed(), steps=12, epochs=None)
    trainer.fit()
    release = Event(1.0, 5.0)
    trainer.ledger.charge(trainer.run_id, release)
    found = trainer.individual_report(accountant="rdp").group_risks()
    event = trainer.event
    for name, same in (("a", Event(event.rate, 4 * event.noise)), ("b", event)):
        expected = equidp.Risk.of([(same, 12), (release, 1)]).values_by_name()
        assert found[name].values_by_name() == pytest.approx(expected, rel=0.25)
        assert all(found[name].values_by_name()[key] >= value * (1 - 1e-3) for key, value in expected.items())


@pytest.mark.soak
def test_means_of_groups_are_released_together():
    """Errors are those that are stated, and all means cost what is paid for; 40 draws, false alarm below
    1e-5."""
    trainer = watched(train=toy(3000), batch_size=100, epochs=1)
    trainer.fit()
    spent = len(trainer.entries)
    report = trainer.individual_report(accountant="rdp")
    truth = report.sensitive_by_group().set_index("group")["mean"]
    tables = [report.release_by_group(1.0, 1e-6).set_index("group") for _ in range(40)]
    ((release, count),) = trainer.entries[spent:]
    assert (count, epsilon([(release, 1)], 1e-6)) == (40, pytest.approx(1.0, rel=1e-3))
    for name in ("a", "b"):
        errors = np.array([table.loc[name, "mean"] - truth[name] for table in tables])
        stated = np.mean([table.loc[name, "standard_error"] for table in tables])
        # Clipping at the largest epsilon only lowers the spread.
        assert 0 < np.sqrt((errors**2).mean()) < 1.7 * stated


@pytest.mark.soak
def test_all_else_in_the_ledger_counts_in_full_for_everyone():
    """Group a uses a quarter of the sensitivity in each step, and all of the release; up to the smoothing of
    few steps."""
    release = Event(1.0, 4.0)
    trainer = watched(Fixed(), steps=12, epochs=None)
    trainer.fit()
    alone = trainer.individual_report(accountant="pld")
    trainer.ledger.charge(trainer.run_id, release)
    report = trainer.individual_report(accountant="pld")
    assert report.largest == trainer.run().epsilon(accountant="pld") > alone.largest
    assert f"guaranteed {shown_epsilon(report.largest):g}" in report.for_owner(0)
    event = trainer.event
    lower = Event(event.rate, 4 * event.noise)
    expected = epsilon([(lower, 12), (release, 1)], trainer.delta)
    assert expected * (1 - 1e-3) <= report.group_epsilons[0] <= expected * 1.05
    assert report.group_epsilons[1] == report.largest
    assert (report.sensitive_epsilons >= epsilon([(release, 1)], trainer.delta) * (1 - 1e-3)).all()
    assert (report.sensitive_epsilons <= report.group_epsilons[report.groups]).all()
