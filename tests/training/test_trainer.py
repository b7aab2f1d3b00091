"""Trainer: plans that cannot be are refused before anything is spent; what is spent is accounted for."""

from __future__ import annotations

import math
import signal

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

import equidp
from equidp.engines.functional import FunctionalEngine
from equidp.errors import DataError, ModelError, PrivacyWarning, SettingError
from equidp.kernel.event import Event
from equidp.ledger.ledger import Ledger
from support.errors import raises_field
from support.toy import make_trainer, note_samples, toy


@pytest.mark.soak
def test_a_run_spends_what_its_ledger_says_and_learns():
    trainer = make_trainer(epochs=20, method=equidp.DPSGDF(1.0), noise_multiplier=1.0)
    run = trainer.fit()
    assert run.entries == ((Event(0.1, 1.0, 10.0), 200),)
    assert 0 < run.epsilon() < math.inf
    assert run.epsilon(accountant="rdp") > run.epsilon()
    metrics = run.metrics(toy(seed=1)).set_index("group")
    assert metrics.loc["all", "accuracy"] > 0.85
    assert metrics.loc["a", "count"] == 150


def test_plain_sgd_has_infinite_epsilon_and_equals_torch():
    """With every example in each batch, plain SGD is torch's full-batch gradient descent."""
    data = toy(40)
    trainer = make_trainer(data, equidp.SGD(), batch_size=40, steps=7, epochs=None, noise_multiplier=None)
    torch.manual_seed(0)
    reference = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    for _ in range(7):
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(data.inputs), data.targets).backward()
        optimizer.step()
    run = trainer.fit()
    assert run.epsilon() == math.inf
    torch.testing.assert_close(run.model.weight, reference.weight)


@pytest.mark.soak
def test_your_own_loop_does_what_fit_does():
    fitted, looped, by_epoch = (make_trainer(seed=3) for _ in range(3))
    fitted.fit()
    while looped.step():
        pass
    steps = [[(step.number, step.epoch) for step in epoch] for epoch in by_epoch.epochs()]
    assert steps == [[(step, 1 + (step > 10)) for step in each] for each in (range(1, 11), range(11, 21))]
    for other in (looped, by_epoch):
        assert torch.equal(other.model.weight, fitted.model.weight)
        assert not other.step()
        assert other.run().entries == fitted.run().entries


def test_leaving_a_loop_spends_nothing_more_and_ends_callbacks():
    """The inner loop is left, the outer one, or both."""
    trainer = make_trainer(callbacks=[noting := Noting()])
    for epoch in trainer.epochs():
        for step in epoch:
            if step.number == 3:
                break
        break
    assert trainer.steps_done == 3
    assert noting.called == ["before", "step", "step", "step", "after"]
    for number, epoch in enumerate(trainer.epochs()):
        if not number:
            assert next(epoch).number == 4
    assert trainer.steps_done == 4
    assert [step.number for epoch in trainer.epochs() for step in epoch] == [*range(5, 21)]


def test_a_step_that_was_taken_says_what_was_spent():
    trainer = make_trainer(accountant="rdp")
    steps = [step for epoch in trainer.epochs() for step in epoch]
    assert steps[-1].epsilon == trainer.run().epsilon()
    assert 0 < steps[0].epsilon < steps[9].epsilon < steps[-1].epsilon
    with pytest.raises(AttributeError):
        steps[0].number = 7


def test_a_callback_that_fails_at_the_end_ends_the_others_too(tmp_path):
    """Checkpoints, the last one, saves and puts the handlers of signals back."""

    class Fails(equidp.Callback):
        def after_training(self, trainer):
            raise KeyError

    handler = signal.getsignal(signal.SIGTERM)
    first, second, checkpoints = Fails(), Fails(), equidp.Checkpoints(tmp_path)
    trainer = make_trainer(steps=2, epochs=None, callbacks=[first, second, checkpoints])
    try:
        with pytest.raises(KeyError):
            trainer.fit()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert checkpoints.steps_kept() == 2


def test_a_sample_rate_of_its_own_is_paid_for_and_drawn_at():
    trainer = make_trainer(batch_size=400, epochs=None, steps=50, sample_rate=0.2)
    seen = note_samples(trainer)
    trainer.fit()
    sizes = [len(batch.indices) for batch in seen]
    assert trainer.event.rate == 0.2
    assert trainer.expected_batch_size == 400
    assert abs(sum(sizes) / 50 - 60) < 6 * (300 * 0.2 * 0.8 / 50) ** 0.5  # six standard errors


class Noting(equidp.Callback):
    """Notes when it is called."""

    def __init__(self):
        self.called = []

    def before_training(self, trainer):
        self.called.append("before")

    def after_step(self, trainer):
        self.called.append("step")

    def after_training(self, trainer):
        self.called.append("after")


@pytest.mark.soak
def test_phases_of_noise_under_one_name_are_one_run():
    ledger, model, name = Ledger(), nn.Linear(5, 2), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for noise in (3.0, 2.0):
        trainer = make_trainer(
            model=model, optimizer=optimizer, noise_multiplier=noise, steps=4, epochs=None,
            ledger=(ledger, name) if name else ledger,
        )  # fmt: skip
        run, name = trainer.fit(), trainer.run_id
    assert run.entries == ((Event(0.1, 3.0), 4), (Event(0.1, 2.0), 4))
    assert run.epsilon() == pytest.approx(trainer.epsilon_so_far(4), rel=1e-4)
    assert not run.facts.start.optimizer_state


class FailsOn(nn.Module):
    """A layer that fails on a row of this number, on the way forward or back."""

    def __init__(self, number: float, where: str) -> None:
        super().__init__()
        self.layer, self.number, self.where = nn.Linear(5, 2), number, where

    def forward(self, values):
        outputs = self.layer(values)
        if self.where == "forward":
            self.check(values)
        elif self.where == "backward" and outputs.requires_grad:
            outputs.register_hook(lambda _: self.check(values))
        return outputs

    def check(self, values):
        if (values == self.number).all(dim=1).any():
            raise RuntimeError("this row cannot be read")


@pytest.mark.parametrize("where", ["forward", "backward", "loss"])
def test_a_row_that_fails_ends_the_run_with_its_error_and_is_a_step_spent(where):
    def loss(outputs, targets):
        if where == "loss" and torch.isclose(outputs, failing).all(dim=1).any():
            raise RuntimeError("this row cannot be read")
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    data, model = toy(40), FailsOn(0.123, where)
    data.inputs[17] = 0.123
    before = model.layer.weight.detach().clone()
    failing = model.layer(data.inputs[17]).detach()
    trainer = make_trainer(data, model=model, loss=loss, batch_size=40, epochs=9)  # which draws everyone
    for spent in (1, 2):
        with pytest.raises(RuntimeError, match="this row cannot be read"):
            trainer.fit()
        assert trainer.steps_done == trainer.ledger.count(trainer.run_id, trainer.event) == spent
        assert model.layer.weight.grad is None
    assert torch.equal(model.layer.weight, before)


@pytest.mark.soak
def test_the_epoch_recorder_measures_test_data_by_group():
    record, test = equidp.RunRecord(), toy(seed=2)
    trainer = make_trainer(method=equidp.DPSGDF(0.1), callbacks=[equidp.EpochRecorder(record, test)])
    run = trainer.fit()
    table = record.table()
    assert table["epoch"].tolist() == [1, 1, 2, 2]
    assert table["step"].tolist() == [10, 10, 20, 20]
    last = table[table["epoch"] == 2].set_index("group")
    metrics = run.metrics(test).set_index("group")
    for group, index in (("a", 0), ("b", 1)):
        assert last.loc[group, "accuracy"] == pytest.approx(metrics.loc[group, "accuracy"])
        assert last.loc[group, "clipping_bound"] == pytest.approx(float(trainer.policy_state.bounds[index]))
    model = trainer.model
    norms = []
    for x, y in zip(test.inputs[test.groups == 0], test.targets[test.groups == 0], strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[None]), y[None]).backward()
        norms.append(math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters())))
    assert last.loc["a", "mean_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-4)
    clipped = sum(norm > float(trainer.policy_state.bounds[0]) for norm in norms) / len(norms)
    assert last.loc["a", "share_clipped"] == pytest.approx(clipped)


@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        ({"batch_size": 301}, SettingError, "batch_size"),
        ({"batch_size": True}, SettingError, "batch_size"),
        ({"epochs": 0.01}, SettingError, "epochs"),
        ({"steps": 5}, SettingError, "epochs"),
        ({"epsilon": 1.0}, SettingError, "epsilon"),
        ({"noise_multiplier": None}, SettingError, "epsilon"),
        ({"noise_multiplier": -1.0}, SettingError, "noise_multiplier"),
        ({"delta": 1.0}, SettingError, "delta"),
        ({"method": equidp.SGD()}, SettingError, "method"),
        ({"seed": 1.5}, SettingError, "seed"),
        ({"engine": "gost"}, SettingError, "engine"),
        ({"engine": nn.Linear}, SettingError, "engine"),
        ({"accountant": "pdl"}, SettingError, "accountant"),
        ({"schedule": "cosin"}, SettingError, "schedule"),
        ({"physical_batch_size": 2.5}, SettingError, "physical_batch_size"),
        ({"workers": -1}, SettingError, "workers"),
        ({"callbacks": [print]}, SettingError, "callbacks"),
        ({"optimizer": torch.optim.SGD}, SettingError, "optimizer"),
        ({"augment": 3}, DataError, "augment"),
        ({"ledger": "run.ledger"}, SettingError, "ledger"),
        ({"loss": nn.CrossEntropyLoss()}, ModelError, "loss"),
        ({"loss": nn.CrossEntropyLoss}, SettingError, "loss"),
        ({"model": nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))}, ModelError, "1"),
        ({"model": nn.Linear(5, 2, device="meta")}, ModelError, "weight"),
        ({"train": DataLoader(toy())}, DataError, "data"),
        ({"train": Subset(toy(), range(40))}, DataError, "data"),
        ({"train": pd.DataFrame({"a": range(64), "b": 1})}, DataError, "data"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_refused_before_anything_is_spent(given, error, field):
    ledger = Ledger()
    with raises_field(error, field):
        make_trainer(**{"ledger": ledger, **given})
    assert ledger.entries() == ()


def test_a_delta_of_one_over_n_or_more_is_warned_of():
    with pytest.warns(equidp.errors.PrivacyWarning, match="delta"):
        make_trainer(toy(300), delta=1 / 300)


def test_where_examples_change_places_each_is_measured_alone():

    class SortedByLength(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 2)

        def forward(self, values):
            order = values[:, 0].argsort(stable=True)
            return self.last(torch.tanh(self.first(values[order]))[order.argsort()])

    data = toy()
    with raises_field(ModelError, "gradients"):
        make_trainer(train=data, model=SortedByLength(), engine="ghost")
    assert isinstance(make_trainer(train=data, model=SortedByLength()).engine, FunctionalEngine)


def test_a_finished_run_and_a_fresh_model_are_no_run():
    """The weights would be untrained, and the card say otherwise. In the same ledger, a new run begins."""
    ledger = Ledger()
    trainer = make_trainer(ledger=ledger)
    trainer.fit()
    assert trainer.fit().model is trainer.model  # that is done
    with raises_field(SettingError, "ledger", "all 20"):
        make_trainer(ledger=(ledger, trainer.run_id)).fit()
    again = make_trainer(ledger=ledger).fit()
    assert [steps for _, steps in again.entries] == [20]
    assert ledger.entries() == ((trainer.event, 40),)


def test_training_on_nothing_but_nan_is_refused():
    """Each contributes nothing, so that epsilon would be spent on noise."""

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none") * float("nan")

    with raises_field(ModelError, "loss"):
        make_trainer(loss=loss)


def test_metrics_need_the_models_classes_in_their_order():
    data = toy()
    run = make_trainer().fit()
    turned = equidp.GroupedDataset(
        data.inputs, 1 - data.targets, data.groups, data.group_names, ("yes", "no")
    )
    for measure in (run.metrics, run.check_test):
        with raises_field(DataError, "class_names", "'yes'", "'no'", "'no'", "'yes'"):
            measure(turned)


def test_augmentation_sees_one_example_at_a_time_and_draws_afresh_for_each():
    seen = []

    def noisy(inputs):
        seen.append(tuple(inputs.shape))
        return torch.cat([inputs, torch.rand(2)])

    trainer = make_trainer(model=nn.Linear(7, 2), augment=noisy, steps=3, epochs=None)
    batches = note_samples(trainer)
    trainer.fit()
    assert set(seen) == {(5,)}
    rows = toy().inputs
    for batch in batches:
        torch.testing.assert_close(batch.inputs[:, :5], rows[batch.indices])
    drawn = torch.cat([batch.inputs[:, 5] for batch in batches])
    assert len(drawn.unique()) == len(drawn)


ROWS = TensorDataset(torch.randn(64, 5), torch.arange(64) % 2)


@pytest.mark.parametrize(
    "train",
    [
        lambda: Subset(ROWS, [*range(64), 3]),
        lambda: Subset(ConcatDataset([ROWS, ROWS]), [0, *range(10, 60), 64]),
        lambda: toy().subset(torch.tensor([*range(60), 3])),
        lambda: [*ROWS] + 2 * [ROWS[3]],
    ],
)
def test_rows_that_stand_several_times_in_the_data_are_warned_of(train):
    with pytest.warns(PrivacyWarning, match="several times"):
        make_trainer(train())
