"""The accountant sees what the private step did to each example, for every policy, and releases nothing raw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import equidp
from equidp.accounting import epsilon
from equidp.engines import dataset_norms, make_engine
from equidp.errors import DataError, SettingError
from toy import make_trainer, toy

POLICIES = {
    "dpsgd": lambda: equidp.DPSGD(0.5),
    "dpsgd-f": lambda: equidp.DPSGDF(0.5, 2),
    "dpsgd-f-code": lambda: equidp.DPSGDFCode(0.5, 2),
    "naive": lambda: equidp.Naive(0.5, 2),
    "global": lambda: equidp.Global(0.5, 2.0),
    "global-adapt": lambda: equidp.GlobalAdapt(0.5, initial_bound=2.0),
    "quantile": lambda: equidp.Quantile(0.5),
    "automatic": lambda: equidp.Automatic(0.5),
    "psac": lambda: equidp.PSAC(0.5),
}


def watched(policy=None, *, model=None, accountant=None, **settings):
    accountant = accountant or equidp.IndividualAccountant(interval=1)
    trainer = make_trainer(
        policy=policy, model=model, secure=False, seed=1, callbacks=[accountant], **settings
    )
    return trainer, accountant


@pytest.mark.parametrize("name", POLICIES)
def test_nobodys_epsilon_is_above_the_runs(name):
    trainer, accountant = watched(POLICIES[name](), epochs=3)
    run = trainer.fit()
    report = accountant.report(trainer)
    assert report.sensitive_epsilons.shape == (300,)
    assert report.largest == pytest.approx(run.epsilon(accountant="rdp"), rel=1e-12)
    assert (report.sensitive_epsilons <= report.largest * (1 + 1e-12)).all()
    assert report.exact
    # Global drops gradients that are too long: those examples are told nothing of.
    assert (report.sensitive_epsilons > 0).mean() > (0.3 if name == "global" else 0.999)


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
    accountant.report(trainer)
    counted = accountant._histories.counts.astype(float) @ accountant._histories.shares
    exact = np.sum(seen[:6], axis=0)
    assert (counted >= exact - 1e-5).all()
    assert (counted <= exact + 6 * 0.01 + 1e-5).all()


def test_group_bounds_count_against_the_largest_bound():
    """DPSGD-F's sensitivity is the largest bound of all groups: a group with a smaller one uses less of it."""

    class Fixed(equidp.DPSGDF):
        def observe(self, released):
            self.bounds = torch.tensor([0.1, 0.4])

    trainer, accountant = watched(Fixed(0.1, 2), steps=4, epochs=None)
    trainer.fit()
    accountant.report(trainer)
    used = accountant._histories.counts.astype(float) @ accountant._histories.shares / 4
    assert used[trainer.train.groups == 0].max() <= 0.26
    assert used[trainer.train.groups == 1].max() > 0.5


def test_rare_norms_are_close_to_exact_ones():
    exact_trainer, exact = watched(epochs=10)
    exact_trainer.fit()
    held_trainer, held = watched(epochs=10, accountant=equidp.IndividualAccountant(per_epoch=3))
    held_trainer.fit()
    reports = exact.report(exact_trainer), held.report(held_trainer)
    correlation = np.corrcoef(*(report.sensitive_epsilons for report in reports))[0, 1]
    assert correlation > 0.99
    assert not reports[1].exact


def test_watching_does_not_change_training():
    models = []
    for callbacks in ([], [equidp.IndividualAccountant(interval=2)]):
        trainer = make_trainer(secure=False, seed=1, callbacks=callbacks)
        models.append(trainer.fit().model.state_dict())
    torch.testing.assert_close(models[0], models[1], rtol=0, atol=0)


def test_dropout_makes_estimates_and_is_left_alone():
    """The step's dropout is not that of the pass that takes norms; watching must not shift it either."""
    states, reports = [], []
    for watch in (False, True):
        accountant = equidp.IndividualAccountant(interval=1)
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        trainer = make_trainer(
            model=model, secure=False, seed=1, steps=6, epochs=None, callbacks=[accountant] if watch else []
        )
        torch.manual_seed(6)
        states.append(trainer.fit().model.state_dict())
        if watch:
            reports.append(accountant.report(trainer))
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert not reports[0].exact
    assert "an estimated epsilon" in reports[0].for_owner(0)


def test_what_an_owner_is_told():
    trainer, accountant = watched()
    trainer.fit()
    report = accountant.report(trainer)
    text = report.for_owner(5)
    assert f"at most epsilon {report.sensitive_epsilons[5]:.4g}" in text
    assert f"guaranteed {report.largest:.4g}" in text
    with pytest.raises(SettingError, match="index=300"):
        report.for_owner(300)


def test_groups():
    trainer, accountant = watched()
    trainer.fit()
    report = accountant.report(trainer)
    table = report.sensitive_by_group().set_index("group")
    assert table.loc["a", "mean"] == pytest.approx(report.sensitive_epsilons[::2].mean())
    assert table.loc["all", "count"] == 300
    means = table["mean"].drop("all")
    assert report.sensitive_worst_to_best() == pytest.approx(means.max() / means.min())


def test_releases_are_near_the_truth_and_are_charged():
    """2,000 examples at (1, 1e-6): 20 releases of each; the median error is small, and every release is in the ledger."""
    trainer, accountant = watched(train=toy(2000), batch_size=100, epochs=2)
    run = trainer.fit()
    before = run.epsilon()
    steps = trainer.steps_done
    report = accountant.report(trainer)
    truth = report.sensitive_epsilons
    means = [report.release_mean(1.0, 1e-6) for _ in range(20)]
    assert np.median(np.abs(np.array(means) / truth.mean() - 1)) < 0.02
    medians = [report.release_quantiles([0.5], 1.0, 1e-6)[0] for _ in range(20)]
    assert np.median(np.abs(np.array(medians) / np.quantile(truth, 0.5) - 1)) < 0.05
    assert trainer.run().epsilon() > before + 1
    assert trainer.steps_done == steps


def test_one_release_costs_what_it_says():
    trainer, accountant = watched()
    trainer.fit()
    spent = len(trainer.ledger.entries)
    accountant.report(trainer).release_quantiles([0.9], 0.5, 1e-5)
    released = trainer.ledger.entries[spent:]
    assert epsilon(released, 1e-5) == pytest.approx(0.5, rel=1e-3)
    assert epsilon(released, 1e-5) <= 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "interval=None and per_epoch=None"),
        ({"interval": 1, "per_epoch": 2}, "exactly one"),
        ({"interval": 0}, "interval=0; expected a whole number of steps >= 1"),
        ({"interval": 1.5}, "interval=1.5"),
        ({"per_epoch": 0}, "per_epoch=0"),
    ],
)
def test_intervals_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        equidp.IndividualAccountant(**settings)


def test_what_cannot_be_accounted_for_is_refused_before_it_costs():
    trainer, _ = watched(accountant=equidp.IndividualAccountant(interval=1, grid=2.0))
    with pytest.raises(SettingError, match="grid=2"):
        trainer.fit()
    assert trainer.steps_done == 0
    trainer, _ = watched(equidp.SGD(), noise_multiplier=None)
    with pytest.raises(SettingError, match="without noise"):
        trainer.fit()


def test_data_whose_order_changes_between_passes_is_refused():
    trainer, _ = watched(epochs=2)
    batches = trainer.batches()
    for callback in trainer.callbacks:
        callback.before_training(trainer)
    trainer.step(next(batches))
    data = trainer.train
    order = torch.randperm(len(data))
    trainer.train = equidp.GroupedDataset(
        data.inputs[order], data.targets[order], data.groups[order], data.group_names, data.class_names
    )
    with pytest.raises(DataError, match="changed between two passes"):
        trainer.fit()


def test_an_accountant_that_missed_steps_is_refused():
    trainer = make_trainer()
    batches = trainer.batches()
    trainer.step(next(batches))
    trainer.callbacks = (equidp.IndividualAccountant(interval=1),)
    with pytest.raises(SettingError, match="1 steps were taken, and this accountant saw 0"):
        trainer.fit()


def test_missed_steps_can_count_at_the_worst_case():
    accountant = equidp.IndividualAccountant(interval=1, missed_at_worst=True)
    trainer = make_trainer(steps=6, epochs=None, policy=equidp.DPSGD(50.0))
    batches = trainer.batches()
    for _ in range(4):
        trainer.step(next(batches))
    trainer.callbacks = (accountant,)
    trainer.fit()
    report = accountant.report(trainer)
    at_least = epsilon([(trainer.event, 4)], trainer.delta, "rdp")
    assert (report.sensitive_epsilons >= at_least).all()
    assert (report.sensitive_epsilons < report.largest).all()
    assert report.largest == pytest.approx(epsilon([(trainer.event, 6)], trainer.delta, "rdp"), rel=1e-12)


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
    report = accountant.report(trainer)
    assert accountant._histories.counts.sum() == 8 * 300
    assert (report.sensitive_epsilons > 0).all()


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
    epsilons = accountant.report(trainer).sensitive_epsilons
    assert (epsilons[bad] == 0).all()
    assert (epsilons[~bad] > 0).all()
