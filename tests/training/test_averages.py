"""A run releases the average of its weights that was asked for; training goes on as without."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import equidp
from equidp.errors import ModelError, SettingError
from equidp.evaluation.groups import metrics_of
from equidp.evaluation.predictions import predict
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent
from support.errors import raises_field
from support.toy import make_trainer, toy

SEEDED = {"secure": False, "seed": 3}


class Weights(equidp.Callback):
    """The weights after each step."""

    def __init__(self):
        self.seen = []

    def after_step(self, trainer):
        self.seen.append(torch.cat([each.detach().flatten().clone() for each in trainer.model.parameters()]))


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.parametrize(("share", "last"), [(0.25, 5), (0.26, 6), (0.001, 1), (1, 20), (0.3, 6)])
def test_a_tail_is_the_mean_of_the_last_weights(share, last):
    watch = Weights()
    run = make_trainer(average=equidp.WeightAverage("tail", share), callbacks=[watch], **SEEDED).fit()
    torch.testing.assert_close(flat(run.model), torch.stack(watch.seen[-last:]).mean(0))


@pytest.mark.parametrize("share", [0.01, 0.25, 1])
def test_an_exponential_average_has_no_weight_on_the_start(share):
    watch = Weights()
    run = make_trainer(average=equidp.WeightAverage("ema", share), callbacks=[watch], **SEEDED).fit()
    kept = 1 - 1 / max(1, 20 * share)
    factors = kept ** torch.arange(19, -1, -1, dtype=torch.float64)
    expected = (factors / factors.sum()).float() @ torch.stack(watch.seen)
    torch.testing.assert_close(flat(run.model), expected)


@pytest.mark.soak
def test_training_is_the_same_as_without():
    plain = make_trainer(**SEEDED)
    averaged = make_trainer(average=equidp.WeightAverage("ema"), **SEEDED)
    first, second = plain.fit(), averaged.fit()
    assert torch.equal(flat(plain.model), flat(averaged.model))
    assert first.entries == second.entries
    assert first.model is plain.model
    assert second.model is averaged.released_model
    assert not torch.equal(flat(second.model), flat(averaged.model))


def test_frozen_parameters_and_buffers_are_those_of_the_model():
    model = nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.Tanh(), nn.Linear(4, 2))
    model.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    model[0].requires_grad_(False)
    before = copy.deepcopy(model[0])

    class Count(equidp.Callback):
        def after_step(self, trainer):
            trainer.model.seen.add_(1)

    average = equidp.WeightAverage("tail", 0.5)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5)
    run = make_trainer(model=model, optimizer=optimizer, average=average, callbacks=[Count()]).fit()
    assert torch.equal(flat(run.model[0]), flat(before))
    assert not any(each.requires_grad for each in run.model[0].parameters())
    assert run.model.seen == 19  # as it was when the last weights were averaged


@pytest.mark.soak
def test_figures_of_an_epoch_are_those_of_the_average():
    record, test = equidp.RunRecord(), toy(seed=1)
    recorder = equidp.EpochRecorder(record, test)
    trainer = make_trainer(average=equidp.WeightAverage("tail", 0.4), callbacks=[recorder], epochs=3)
    run = trainer.fit()
    last = record.table().tail(2)["loss"].tolist()
    assert last == run.metrics(test)["loss"].tolist()[:2]
    raw = metrics_of(predict(trainer.model, test.inputs), test)["loss"].tolist()[:2]
    assert last != raw


def test_before_a_tail_begins_the_last_weights_are_what_a_run_has():
    trainer = make_trainer(average=equidp.WeightAverage("tail", 0.5))
    for step, batch in enumerate(trainer.batches(), 1):
        trainer.step(batch)
        found = trainer.run().model
        assert found is not trainer.model or step == 20
        assert torch.equal(flat(found), flat(trainer.model)) == (step <= 11)


@pytest.mark.soak
def test_a_run_that_a_budget_cuts_short_averages_over_its_own_tail(tmp_path):
    limit = 1.01 * epsilon([(StepEvent(0.1, 1.0), 12)], 1e-5)
    watch = Weights()
    with equidp.PrivacyBudget(tmp_path / "budget", epsilon=limit, delta=1e-5) as budget:
        trainer = make_trainer(
            average=equidp.WeightAverage("tail", 0.25), budget=budget, beyond_budget="stop", callbacks=[watch]
        )
        run = trainer.fit()
    assert 12 <= len(watch.seen) < 16
    tail = torch.stack(watch.seen[-math.ceil(len(watch.seen) / 4) :])
    torch.testing.assert_close(flat(run.model), tail.mean(0))


def test_bad_input_is_refused_before_anything_is_spent():
    with raises_field(SettingError, "average", "'tial'", "'tail'"):
        equidp.WeightAverage("tial")
    for share in (0, -1, 1.5, None, "half"):
        with raises_field(SettingError, "average_share"):
            equidp.WeightAverage("tail", share)
    with raises_field(SettingError, "average", "'ema'"):
        make_trainer(average="ema")

    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("no copies")

    with raises_field(ModelError, "model", "no copies"):
        make_trainer(model=Stubborn(5, 2), average=equidp.WeightAverage("ema"))
