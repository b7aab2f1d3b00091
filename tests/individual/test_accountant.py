"""The accountant sees what the step did to each example, for every policy; releases are noisy and charged."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

import equidp
from equidp.display import shown_epsilon
from equidp.engines import MeasuredBatch, dataset_norms, make_engine
from equidp.errors import BudgetError, DataError, SettingError
from equidp.individual import step_counts
from equidp.individual.accountant import chunk_size_for
from equidp.individual.histories import Histories
from equidp.individual.report import IndividualReport
from equidp.individual.step_counts import StepCounts, current_shares
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.noise import SeededRandomness
from support.errors import raises_field
from support.toy import make_trainer, toy

POLICIES = {
    "dpsgd": lambda: equidp.DPSGD(0.5),
    "dpsgd-f": lambda: equidp.DPSGDF(0.5),
    "dpsgd-f-code": lambda: equidp.DPSGDFCode(0.5),
    "naive": lambda: equidp.Naive(0.5),
    "global": lambda: equidp.Global(0.5, 2.0),
    "global-adapt": lambda: equidp.GlobalAdapt(0.5, initial_bound=2.0),
    "quantile": lambda: equidp.Quantile(0.5),
    "quantile-bounded": lambda: equidp.QuantileBounded(0.5, lowest_bound=0.4),
    "softadaclip": lambda: equidp.SoftAdaClip(0.5),
    "automatic": lambda: equidp.Automatic(0.5),
    "psac": lambda: equidp.PSAC(0.5),
}


def watched(policy=None, *, model=None, accountant=None, **settings):
    accountant = accountant or equidp.IndividualAccountant(interval=1, grid=0.1)
    trainer = make_trainer(
        policy=policy, model=model, secure=False, seed=1, callbacks=[accountant], **settings
    )
    return trainer, accountant


class Bounds(NamedTuple):
    bounds: torch.Tensor


@dataclass(frozen=True)
class Fixed(equidp.Policy):
    """Clips group a at 0.1 and group b at 0.4."""

    def init(self, setting):
        return Bounds(torch.tensor([0.1, 0.4]))

    def weight(self, state, norm, group):
        return (state.bounds[group] / norm).clamp(max=1.0)

    def sensitivity(self, state):
        return float(state.bounds.max())

    def released(self, state):
        return {"clipping_bound": state.bounds}


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


@dataclass(frozen=True)
class Doubling(equidp.Policy):
    """Clips at twice the bound of the step before, once it saw the gradient of that step."""

    first_bound: float
    loss_terms = 1

    def init(self, setting):
        return Bounds(torch.tensor(self.first_bound))

    def context(self, state, group):
        return (torch.zeros(()),)

    def objective(self, loss, parameters, context):
        own, _ = loss(parameters)
        return own, torch.zeros(1)

    def after_gradient(self, state, gradient):
        return Bounds(2 * state.bounds)

    def weight(self, state, norm, group):
        return (state.bounds / norm).clamp(max=1.0)

    def sensitivity(self, state):
        return float(state.bounds)


@pytest.mark.soak
@pytest.mark.parametrize("name", POLICIES)
def test_no_example_has_a_larger_epsilon_than_the_run(name):
    trainer, accountant = watched(POLICIES[name](), epochs=3)
    run = trainer.fit()
    for how in ("pld", "rdp") if name == "dpsgd-f" else ("rdp",):
        report = accountant.report(trainer, accountant=how)
        assert report.sensitive_epsilons.shape == (300,)
        assert report.largest == run.epsilon(accountant=how)
        assert (report.sensitive_epsilons <= report.largest).all()
        assert report.guaranteed
        # Global drops gradients above its strict bound: those examples contribute nothing.
        assert (report.sensitive_epsilons > 0).mean() > (0.3 if name == "global" else 0.999)


@pytest.mark.soak
def test_each_step_counts_under_the_state_it_was_taken_with():
    """The bound shrinks to a thousandth: shares of an earlier state would be far too small."""
    trainer, accountant = watched(Shrinking())
    run = trainer.fit()
    epsilons = accountant.report(trainer, accountant="rdp").sensitive_epsilons
    assert np.median(epsilons) > 0.9 * run.epsilon(accountant="rdp")


@pytest.mark.soak
def test_shares_are_computed_again_only_where_the_state_differs(monkeypatch):
    computed = []

    def counted(policy, state, norms, groups, device):
        computed.append(state)
        return current_shares(policy, state, norms, groups, device)

    monkeypatch.setattr(step_counts, "current_shares", counted)
    for policy, times in ((equidp.DPSGD(0.5), 1), (Shrinking(), 3)):
        computed.clear()
        trainer, accountant = watched(
            policy, accountant=equidp.IndividualAccountant(interval=100, grid=0.5), steps=12, epochs=None
        )
        trainer.fit()
        accountant.report(trainer, accountant="rdp")
        assert len(computed) == times


def test_a_bound_that_grows_after_a_gradient_grows_for_the_next_step_alone():
    trainer, accountant = watched(Doubling(0.5), steps=1, epochs=None)
    engine = make_engine("functional", trainer.model, trainer.loss)
    norms = dataset_norms(engine, trainer.train.inputs, trainer.train.targets).numpy()
    at_bound = norms > 0.5
    assert (norms[at_bound] < 0.9).sum() > 20  # within the next bound
    run = trainer.fit()
    epsilons = accountant.report(trainer, accountant="rdp").sensitive_epsilons
    assert_allclose(epsilons[at_bound], run.epsilon(accountant="rdp"), rtol=1e-9)


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

    accountant = equidp.IndividualAccountant(interval=1)
    trainer = make_trainer(
        policy=equidp.DPSGD(0.5), secure=False, seed=1, steps=6, epochs=None, callbacks=[accountant, Watch()]
    )
    trainer.fit()
    accountant._counts.settle()
    counted = accountant._counts.histories.counts.astype(float) @ accountant._counts.histories.shares
    exact = np.sum(seen[:6], axis=0)
    assert (counted >= exact - 1e-5).all()
    assert (counted <= exact + 6 * 0.01 + 1e-5).all()


def test_group_bounds_count_against_the_largest_bound():
    """The sensitivity is the largest bound of all groups: a group with a smaller one uses less of it."""
    trainer, accountant = watched(Fixed(), steps=4, epochs=None)
    trainer.fit()
    accountant._counts.settle()
    used = accountant._counts.histories.counts.astype(float) @ accountant._counts.histories.shares / 4
    assert used[trainer.train.groups == 0].max() <= 0.31
    assert used[trainer.train.groups == 1].max() > 0.5


@pytest.mark.soak
def test_rare_norms_are_close_to_exact_ones():
    exact_trainer, exact = watched(epochs=10, accountant=equidp.IndividualAccountant(interval=1, grid=0.05))
    exact_trainer.fit()
    held_trainer, held = watched(epochs=10, accountant=equidp.IndividualAccountant(per_epoch=3, grid=0.05))
    held_trainer.fit()
    reports = exact.report(exact_trainer, accountant="rdp"), held.report(held_trainer, accountant="rdp")
    correlation = np.corrcoef(*(report.sensitive_epsilons for report in reports))[0, 1]
    assert correlation > 0.99
    assert not reports[1].guaranteed


def test_watching_does_not_change_training():
    models = []
    for callbacks in ([], [equidp.IndividualAccountant(interval=2)]):
        trainer = make_trainer(secure=False, seed=1, callbacks=callbacks)
        models.append(trainer.fit().model.state_dict())
    torch.testing.assert_close(models[0], models[1], rtol=0, atol=0)


@pytest.mark.soak
def test_dropout_makes_estimates_and_is_left_alone():
    """The step's dropout is not that of the pass that takes norms; watching must not shift it either."""
    states, reports = [], []
    for watch in (False, True):
        accountant = equidp.IndividualAccountant(interval=1, grid=0.1)
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        trainer = make_trainer(
            model=model, secure=False, seed=1, steps=6, epochs=None, callbacks=[accountant] if watch else []
        )
        torch.manual_seed(6)
        states.append(trainer.fit().model.state_dict())
        if watch:
            reports.append(accountant.report(trainer, accountant="rdp"))
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert not reports[0].guaranteed
    assert "an estimated epsilon" in reports[0].for_owner(0)


def report_of(epsilons, groups, names=("a", "b"), largest=2.0):
    bounds = np.full(len(names), largest)
    return IndividualReport(
        np.array(epsilons), bounds, bounds, np.array(groups), names, largest, 1e-5, guaranteed=True,
        ledger=MemoryLedger(), randomness=SeededRandomness(0),
    )  # fmt: skip


def test_no_owner_is_told_less_than_their_epsilon():
    text = report_of([0.12344, 1.5], [0, 1], largest=2.00004).for_owner(0)
    assert [float(number) for number in re.findall(r"\d+\.\d+", text)] == [0.124, 2.001]


def test_a_group_without_examples_has_no_epsilons():
    """As a rare group may have none in the training part of a split."""
    report = report_of([0.5, 1.0], [0, 2], ("a", "b", "c"))
    table = report.sensitive_by_group().set_index("group")
    assert table["count"].tolist() == [1, 0, 1, 2]
    assert table.drop(columns="count").loc["b"].isna().all()
    assert table["over_lowest"].drop("b").tolist() == [1.0, 2.0, 1.5]
    assert report.sensitive_worst_to_best() == 2.0


@pytest.mark.soak
def test_what_an_owner_is_told():
    trainer, accountant = watched()
    trainer.fit()
    report = accountant.report(trainer, accountant="rdp")
    text = report.for_owner(5)
    assert f"at most epsilon {shown_epsilon(report.sensitive_epsilons[5]):g}" in text
    assert f"guaranteed {shown_epsilon(report.largest):g}" in text
    with raises_field(SettingError, "index", "300"):
        report.for_owner(300)


def test_groups():
    trainer, accountant = watched()
    trainer.fit()
    report = accountant.report(trainer, accountant="rdp")
    table = report.sensitive_by_group().set_index("group")
    assert table.loc["a", "mean"] == pytest.approx(report.sensitive_epsilons[::2].mean())
    assert table.loc["all", "count"] == 300
    means = table["mean"].drop("all")
    assert report.sensitive_worst_to_best() == pytest.approx(means.max() / means.min())


@pytest.mark.soak
def test_epsilon_goes_with_the_log_of_the_loss():
    trainer, accountant = watched(equidp.GlobalAdapt(0.5, initial_bound=2.0), epochs=5)
    trainer.fit()
    report = accountant.report(trainer, accountant="rdp")
    losses = trainer.loss(trainer.model(trainer.train.inputs), trainer.train.targets).detach()
    found = report.sensitive_loss_correlation(losses)
    assert found == pytest.approx(
        np.corrcoef(report.sensitive_epsilons, losses.log().numpy())[0, 1], abs=1e-6
    )
    assert found > 0.5
    assert np.isnan(report.sensitive_loss_correlation(torch.ones(300)))
    least = losses.clone()
    least[0] = torch.finfo(torch.float32).eps
    rounded = losses.clone()
    rounded[0] = 0.0  # as single precision rounds the loss of an example that is known by heart
    assert report.sensitive_loss_correlation(rounded) == report.sensitive_loss_correlation(least)
    with raises_field(DataError, "losses"):
        report.sensitive_loss_correlation(losses[:3])


@pytest.mark.soak
def test_releases_are_near_the_truth_and_are_charged():
    """2,000 examples at (1, 1e-6): 20 releases of each; the median error is small, and every release is in
    the ledger."""
    trainer, accountant = watched(train=toy(2000), batch_size=100, epochs=2)
    run = trainer.fit()
    before = run.epsilon()
    steps = trainer.steps_done
    report = accountant.report(trainer, accountant="rdp")
    truth = report.sensitive_epsilons
    means = [report.release_mean(1.0, 1e-6) for _ in range(20)]
    assert np.median(np.abs(np.array(means) / truth.mean() - 1)) < 0.02
    medians = [report.release_quantiles([0.5], 1.0, 1e-6)[0] for _ in range(20)]
    assert np.median(np.abs(np.array(medians) / np.quantile(truth, 0.5) - 1)) < 0.05
    assert trainer.run().epsilon() > before + 1
    assert trainer.steps_done == steps


@pytest.mark.soak
def test_one_release_costs_what_it_says():
    trainer, accountant = watched()
    trainer.fit()
    spent = len(trainer.ledger.entries)
    accountant.report(trainer, accountant="rdp").release_quantiles([0.9], 0.5, 1e-5)
    released = trainer.ledger.entries[spent:]
    assert epsilon(released, 1e-5) == pytest.approx(0.5, rel=1e-3)
    assert epsilon(released, 1e-5) <= 0.5


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({}, "interval"),
        ({"interval": 1, "per_epoch": 2}, "interval"),
        ({"interval": 0}, "interval"),
        ({"interval": 1.5}, "interval"),
        ({"interval": math.inf}, "interval"),
        ({"per_epoch": 0}, "per_epoch"),
        ({"interval": 1, "chunk_size": -4}, "chunk_size"),
    ],
)
def test_intervals_that_make_no_sense_are_refused(settings, field):
    with raises_field(SettingError, field):
        equidp.IndividualAccountant(**settings)


def test_what_cannot_be_accounted_for_is_refused_before_it_costs():
    with raises_field(SettingError, "grid"):
        equidp.IndividualAccountant(interval=1, grid=2.0)
    trainer, _ = watched(equidp.SGD(), noise_multiplier=None)
    with raises_field(SettingError, "noise_multiplier"):
        trainer.fit()
    assert trainer.steps_done == 0


def test_data_whose_order_changes_between_passes_is_refused():
    trainer, _ = watched(epochs=2)
    batches = trainer.batches()
    for callback in trainer.callbacks:
        callback.before_training(trainer)
    trainer.step(next(batches))
    data = trainer.train
    order = torch.randperm(len(data))
    for column in (data.inputs, data.targets, data.groups):
        column.copy_(column[order])
    with raises_field(DataError, "train"):
        trainer.fit()


def test_a_report_by_groups_that_changed_since_is_refused():
    trainer, accountant = watched()
    trainer.fit()
    trainer.train.groups.zero_()
    with raises_field(DataError, "train"):
        accountant.report(trainer, accountant="rdp")


def test_an_accountant_that_missed_steps_is_refused():
    trainer = make_trainer()
    batches = trainer.batches()
    trainer.step(next(batches))
    trainer.callbacks = (equidp.IndividualAccountant(interval=1),)
    with raises_field(SettingError, "callbacks"):
        trainer.fit()


@pytest.mark.parametrize("missed_at_worst", [False, True])
def test_an_accountant_is_of_one_run(missed_at_worst):
    accountant = equidp.IndividualAccountant(interval=1, grid=0.1, missed_at_worst=missed_at_worst)
    trainer, _ = watched(accountant=accountant)
    trainer.fit()
    found = accountant.report(trainer).sensitive_epsilons
    for other in (watched(accountant=accountant), watched(accountant=accountant, noise_multiplier=9.0)):
        with raises_field(SettingError, "trainer"):
            accountant.report(other[0])
        with raises_field(SettingError, "trainer"):
            other[0].fit()
        assert other[0].steps_done == 0
    assert_allclose(accountant.report(trainer).sensitive_epsilons, found)


def test_steps_that_were_missed_count_in_full_for_every_example_and_group():
    """A kill loses such steps. An example that no step clipped before counts in full for them as well."""
    counts = StepCounts(toy(4), equidp.DPSGD(), torch.device("cpu"), Histories(4, 0.5), exact=True)
    counts.take(torch.zeros(4))
    counts.step(equidp.NoState())
    counts.add_worst_steps(3)
    counts.settle()
    assert counts.histories.counts.tolist() == [[1, 0, 3]] * 4
    assert counts.group_histories.counts.tolist() == [[0, 0, 4]] * 2
    assert counts.group_shares.tolist() == [4.0, 4.0]


@pytest.mark.soak
def test_missed_steps_can_count_at_the_worst_case():
    accountant = equidp.IndividualAccountant(interval=1, grid=0.1, missed_at_worst=True)
    trainer = make_trainer(steps=6, epochs=None, policy=equidp.DPSGD(50.0))
    batches = trainer.batches()
    for _ in range(4):
        trainer.step(next(batches))
    trainer.callbacks = (accountant,)
    trainer.fit()
    report = accountant.report(trainer, accountant="rdp")
    at_least = epsilon([(trainer.event, 4)], trainer.delta, "rdp")
    assert (report.sensitive_epsilons >= at_least).all()
    assert (report.sensitive_epsilons < report.largest).all()
    assert report.largest == pytest.approx(epsilon([(trainer.event, 6)], trainer.delta, "rdp"), rel=1e-12)
    assert_allclose(
        report.linear_group_epsilons, report.largest, rtol=1e-12
    )  # one bound for everyone: all of it in all 6 steps


@pytest.mark.soak
def test_an_interrupted_run_goes_on():
    trainer, accountant = watched(steps=8, epochs=None)

    class Stop(equidp.Callback):
        def after_step(self, trainer):
            if trainer.steps_done == 3:
                raise KeyboardInterrupt

    trainer.callbacks = (accountant, Stop())
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    trainer.callbacks = (accountant,)
    trainer.fit()
    report = accountant.report(trainer, accountant="rdp")
    assert accountant._counts.histories.counts.sum() == 8 * 300
    assert (report.sensitive_epsilons > 0).all()


@pytest.mark.soak
def test_an_example_whose_gradient_is_not_finite_uses_nothing():
    class Explodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, values):
            return self.layer(values) * torch.where(values[:, :1] > 2.0, torch.inf, 1.0)

    data = toy()
    trainer, accountant = watched(train=data, model=Explodes(), steps=5, epochs=None)
    trainer.fit()
    bad = (data.inputs[:, 0] > 2.0).numpy()
    assert bad.any()
    epsilons = accountant.report(trainer, accountant="rdp").sensitive_epsilons
    assert (epsilons[bad] == 0).all()
    assert (epsilons[~bad] > 0).all()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["dpsgd", "dpsgd-f", "global-adapt"])
def test_sampled_norms_are_those_of_the_last_draw(name):
    """A twin that sees every batch: an example never drawn counts in full, others by their norm when last
    drawn.

    Norms are rounded up to 9 significant bits.
    """
    accountant = equidp.IndividualAccountant("sampled", grid=0.05)
    held = np.full(300, np.nan)
    expected = np.zeros(300)

    class Twin(equidp.Callback):
        def after_step(self, trainer):
            mantissa, exponent = np.frexp(drawn["norms"])
            held[drawn["indices"]] = np.ldexp(np.ceil(mantissa * 512) / 512, exponent)
            shares = current_shares(trainer.policy, trainer.policy_state, held, trainer.train.groups.numpy())
            grid = accountant._counts.histories
            expected[:] += grid.shares[grid.cells(shares)]

    trainer = make_trainer(
        policy=POLICIES[name](), secure=False, seed=1, epochs=3, callbacks=[accountant, Twin()]
    )
    draw, drawn = StepCounts.draw, {}

    def watch(counts, indices, norms):
        drawn.update(indices=indices.numpy(), norms=norms.numpy())
        draw(counts, indices, norms)

    with mock.patch.object(StepCounts, "draw", watch):
        trainer.fit()
    assert not accountant.report(trainer, accountant="rdp").guaranteed
    counted = accountant._counts.histories.counts.astype(float) @ accountant._counts.histories.shares
    np.testing.assert_allclose(counted, expected, rtol=1e-12)
    assert np.isnan(held).any()
    assert (counted[np.isnan(held)] == trainer.steps).all()


def test_sampled_norms_cost_no_pass(monkeypatch):
    monkeypatch.setattr("equidp.individual.accountant.dataset_norms", None)
    trainer, accountant = watched(accountant=equidp.IndividualAccountant("sampled", grid=0.1))
    trainer.fit()
    assert (accountant.report(trainer, accountant="rdp").sensitive_epsilons > 0).all()


def histories_of(accountant, **settings):
    trainer, _ = watched(accountant=accountant, **settings)
    trainer.fit()
    counts = accountant._counts
    counts.settle()
    return counts.histories.counts @ counts.histories.shares, trainer


@pytest.mark.soak
def test_norms_of_draws_between_passes_are_those_of_passes_in_every_step():
    """The norm that a draw shows is the one that a pass before the step takes."""
    alone, trainer = histories_of(equidp.IndividualAccountant(per_epoch=1000, grid=0.05))
    both, _ = histories_of(equidp.IndividualAccountant("sampled", per_epoch=1000, grid=0.05))
    assert trainer.steps > 10
    np.testing.assert_array_equal(both, alone)


@pytest.mark.soak
def test_an_example_that_is_never_drawn_has_the_norm_of_the_pass():
    settings = {"steps": 6, "epochs": None}
    drawn_only, trainer = histories_of(equidp.IndividualAccountant("sampled", grid=0.05), **settings)
    with_pass, _ = histories_of(equidp.IndividualAccountant("sampled", per_epoch=0.01, grid=0.05), **settings)
    passes, _ = histories_of(equidp.IndividualAccountant(per_epoch=0.01, grid=0.05), **settings)
    never = drawn_only == trainer.steps
    assert never.any()
    np.testing.assert_array_equal(with_pass[never], passes[never])
    assert (with_pass[~never] != passes[~never]).any()


class SeenByTheEngine:
    """An engine that notes what each weighted gradient's norm was."""

    def __init__(self, engine):
        self._engine = engine
        self.used = []

    def __call__(self, inputs, targets):
        measured = self._engine(inputs, targets)

        def sums(weights):
            self.used.append((weights * measured.norms).double().numpy())
            return measured.sum_gradients(weights)

        return MeasuredBatch(measured.norms, sums)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["dpsgd", "dpsgd-f", "naive", "global", "global-adapt"])
@pytest.mark.parametrize("physical", [None, 7])
def test_individual_clipping_holds_everyone_to_what_is_accounted(name, physical):
    """What each drawn example adds is at most its share of the sensitivity, as the history then counts it."""
    accountant = equidp.IndividualClipping(interval=9, grid=0.05)
    held, limited = [], 0

    class Check(equidp.Callback):
        def after_step(self, trainer):
            nonlocal limited
            used = np.concatenate(engine.used) if engine.used else np.empty(0)
            engine.used.clear()
            indices = held.pop(0)
            shares = accountant._counts.shares(trainer.policy_state, torch.from_numpy(indices)).numpy()
            bounds = shares * trainer.policy.sensitivity(trainer.policy_state)
            assert used.shape == bounds.shape
            assert (used <= bounds * (1 + 1e-5)).all()
            limited += (used >= bounds * (1 - 1e-5)).sum()

    trainer = make_trainer(
        policy=POLICIES[name](), secure=False, seed=1, steps=30, epochs=None,
        callbacks=[Check(), accountant], physical_batch_size=physical,
    )  # fmt: skip
    engine = trainer._step.engine = SeenByTheEngine(trainer.engine)
    step = trainer.step
    trainer.step = lambda batch: (held.append(batch.indices.numpy()), step(batch))
    trainer.fit()
    assert limited > 0
    report = accountant.report(trainer, accountant="rdp")
    assert report.guaranteed
    assert "at most epsilon" in report.for_owner(0)
    assert trainer._step.share_limits is None


def test_individual_clipping_needs_norms_from_before_the_draw():
    trainer, _ = watched(accountant=equidp.IndividualClipping("sampled"))
    with raises_field(SettingError, "interval"):
        trainer.fit()
    assert trainer.steps_done == 0


def test_two_that_would_limit_shares_are_refused():
    trainer, _ = watched()
    trainer.callbacks = (equidp.IndividualAccountant("sampled"), equidp.IndividualClipping(interval=3))
    with raises_field(SettingError, "callbacks"):
        trainer.fit()
    assert trainer.steps_done == 0


def test_steps_after_fit_without_its_limits_are_refused():
    """They end with fit, and what is counted would no longer bound what is used."""
    trainer, accountant = watched(accountant=equidp.IndividualClipping(interval=100))
    batches = trainer.batches()
    accountant.before_training(trainer)
    trainer.step(next(batches))
    trainer.limit_shares(None)
    with raises_field(SettingError, "callbacks"):
        trainer.step(next(batches))


@pytest.mark.parametrize("kind", [equidp.IndividualAccountant, equidp.IndividualClipping])
def test_a_loop_that_is_not_opened_is_refused_before_its_first_step(kind):
    trainer, accountant = watched(accountant=kind(interval=1))
    with raises_field(SettingError, "callbacks"):
        next(trainer.batches())
    assert trainer.ledger.entries == ()
    other, _ = watched(accountant=accountant)
    with trainer.open_loop():
        trainer.step(next(trainer.batches()))
    with raises_field(SettingError, "trainer"):
        next(other.batches())
    assert other.ledger.entries == ()


@pytest.mark.soak
def test_a_loop_of_ones_own_says_how_to_begin():
    trainer, accountant = watched()
    accountant.before_training(trainer)
    for batch in trainer.batches():
        trainer.step(batch)
    assert (accountant.report(trainer, accountant="rdp").sensitive_epsilons > 0).all()


def test_nearest_rounding_is_no_guarantee():
    trainer, accountant = watched(
        accountant=equidp.IndividualAccountant(interval=1, grid=0.1, rounding="nearest")
    )
    trainer.fit()
    assert not accountant.report(trainer, accountant="rdp").guaranteed


@pytest.mark.soak
def test_groups_with_bounds_of_their_own_have_epsilons_of_their_own():
    """What DPSGD-F's released bounds say of each group holds for each member; the papers' linear reading is
    another figure."""

    trainer, accountant = watched(Fixed(), steps=12, epochs=None)
    trainer.fit()
    report = accountant.report(trainer, accountant="rdp")
    for group in (0, 1):
        members = report.sensitive_epsilons[report.groups == group]
        assert members.max() <= report.group_epsilons[group]
    assert report.group_epsilons[0] < report.group_epsilons[1] == report.largest
    np.testing.assert_allclose(report.linear_group_epsilons, [report.largest / 4, report.largest])
    trainer, accountant = watched(equidp.GlobalAdapt(0.5, initial_bound=2.0))
    trainer.fit()
    report = accountant.report(trainer, accountant="rdp")
    np.testing.assert_allclose(report.group_epsilons, report.largest)


@pytest.mark.soak
def test_groups_with_bounds_of_their_own_have_risks_of_their_own():
    """Group a's bound is a quarter of the sensitivity: its risk is that of steps with four times the noise,
    up to the smoothing of few steps; a release, which everyone pays for in full, is in both."""
    trainer, accountant = watched(Fixed(), steps=12, epochs=None)
    trainer.fit()
    alone = accountant.report(trainer, accountant="rdp").group_risks()
    event = trainer.event
    lower = StepEvent(event.sample_rate, 4 * event.noise_multiplier, event.statistics_noise)
    for name, same in (("a", lower), ("b", event)):
        expected = equidp.Risk.of([(same, 12)])
        found = alone[name].values_by_name()
        assert all(found[key] >= value * (1 - 1e-3) for key, value in expected.values_by_name().items())
        assert found == pytest.approx(expected.values_by_name(), rel=0.25)
    trainer.ledger.spend(StepEvent(1.0, 5.0))
    after = accountant.report(trainer, accountant="rdp").group_risks()
    with_release = equidp.Risk.of([(lower, 12), (StepEvent(1.0, 5.0), 1)])
    assert after["a"].values_by_name() == pytest.approx(with_release.values_by_name(), rel=0.25)
    assert after["a"].advantage > alone["a"].advantage
    run = equidp.Risk.of([(event, 12), (StepEvent(1.0, 5.0), 1)]).values_by_name()
    assert all(after["b"].values_by_name()[key] <= value for key, value in run.items())


@pytest.mark.soak
def test_means_of_groups_are_released_together():
    trainer, accountant = watched(train=toy(3000), batch_size=100, epochs=2)
    trainer.fit()
    spent = len(trainer.ledger.entries)
    report = accountant.report(trainer, accountant="rdp")
    truth = report.sensitive_by_group().set_index("group")["mean"]
    tables = [report.release_by_group(1.0, 1e-6).set_index("group") for _ in range(40)]
    assert epsilon(trainer.ledger.entries[spent:], 1e-6) > 1
    for name in ("a", "b"):
        errors = np.array([table.loc[name, "mean"] - truth[name] for table in tables])
        stated = np.mean([table.loc[name, "standard_error"] for table in tables])
        # Clipping at the largest epsilon only lowers the spread. 40 draws: false alarm below 1e-5.
        assert 0 < np.sqrt((errors**2).mean()) < 1.7 * stated
    trainer, accountant = watched()
    trainer.fit()
    before = len(trainer.ledger.entries)
    accountant.report(trainer, accountant="rdp").release_by_group(0.5, 1e-5)
    assert epsilon(trainer.ledger.entries[before:], 1e-5) == pytest.approx(0.5, rel=1e-3)


def test_means_are_released_by_a_payment_of_the_runs_own_ledger():
    trainer, accountant = watched()
    trainer.fit()
    report = accountant.report(trainer, accountant="rdp")
    with raises_field(SettingError, "payment"):
        report.means_by_group(MemoryLedger().pay("individual epsilons", 5.0))
    payment = trainer.ledger.pay("individual epsilons", 5.0)
    assert list(report.means_by_group(payment)["group"]) == ["a", "b"]
    with raises_field(BudgetError, "payment"):
        report.means_by_group(payment)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["pld", "rdp"])
def test_all_else_in_the_ledger_counts_in_full_for_everyone(how):
    """Group a uses a quarter of the sensitivity in each step, and all of the release; up to the smoothing of
    few steps."""
    release = StepEvent(1.0, 4.0)
    trainer, accountant = watched(Fixed(), steps=12, epochs=None)
    trainer.fit()
    alone = accountant.report(trainer, accountant=how)
    trainer.ledger.spend(release)
    report = accountant.report(trainer, accountant=how)
    assert report.largest == trainer.run().epsilon(accountant=how) > alone.largest
    assert f"guaranteed {shown_epsilon(report.largest):g}" in report.for_owner(0)
    event = trainer.event
    lower = StepEvent(event.sample_rate, 4 * event.noise_multiplier)
    expected = epsilon([(lower, 12), (release, 1)], trainer.delta, how)
    assert expected * (1 - 1e-3) <= report.group_epsilons[0] <= expected * 1.05
    assert report.group_epsilons[1] == report.largest
    assert (report.sensitive_epsilons >= epsilon([(release, 1)], trainer.delta, how) * (1 - 1e-3)).all()
    assert (report.sensitive_epsilons <= report.group_epsilons[report.groups]).all()
    assert_allclose(
        report.linear_group_epsilons, alone.linear_group_epsilons + report.largest - alone.largest
    )


@pytest.mark.parametrize(
    ("shape", "device", "expected"),
    [((5, 3), "cpu", 4096), ((5, 1, 2, 2), "cpu", 128), ((5, 1, 2, 2), "cuda", 256), ((5, 3, 2), "cpu", 256)],
)
def test_more_rows_than_images_are_measured_at_a_time(shape, device, expected):
    assert chunk_size_for(torch.zeros(shape), torch.device(device)) == expected
