"""A run releases the average of its weights that was asked for; training goes on as without."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import equidp
from equidp.errors import ModelError, SettingError
from support.errors import raises_field
from support.toy import make_trainer

SEEDED = {"seed": 3}


class Weights(equidp.Callback):
    """The weights after each step."""

    def __init__(self):
        self.seen = []

    def after_step(self, trainer):
        self.seen.append(torch.cat([each.detach().flatten().clone() for each in trainer.model.parameters()]))


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.parametrize(("share", "last"), [(0.26, 6), (0.001, 1)])
def test_a_tail_is_the_mean_of_the_last_weights(share, last):
    watch = Weights()
    run = make_trainer(average="tail", average_share=share, callbacks=[watch], **SEEDED).fit()
    torch.testing.assert_close(flat(run.model), torch.stack(watch.seen[-last:]).mean(0))


@pytest.mark.parametrize("share", [0.01, 0.25])
def test_an_exponential_average_has_no_weight_on_the_start(share):
    watch = Weights()
    run = make_trainer(average="ema", average_share=share, callbacks=[watch], **SEEDED).fit()
    kept = 1 - 1 / max(1, 20 * share)
    factors = kept ** torch.arange(19, -1, -1, dtype=torch.float64)
    expected = (factors / factors.sum()).float() @ torch.stack(watch.seen)
    torch.testing.assert_close(flat(run.model), expected)


@pytest.mark.soak
def test_training_is_the_same_as_without():
    plain, averaged = make_trainer(**SEEDED), make_trainer(average="ema", **SEEDED)
    first, second = plain.fit(), averaged.fit()
    assert torch.equal(flat(plain.model), flat(averaged.model))
    assert first.entries == second.entries
    assert second.model is averaged.released_model


def test_frozen_parameters_and_buffers_are_those_of_the_model():
    model = nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.Tanh(), nn.Linear(4, 2))
    model.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    model[0].requires_grad_(False)
    before = copy.deepcopy(model[0])

    class Count(equidp.Callback):
        def after_step(self, trainer):
            trainer.model.seen.add_(1)

    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5)
    run = make_trainer(
        model=model, optimizer=optimizer, average="tail", average_share=0.5, callbacks=[Count()]
    ).fit()
    assert torch.equal(flat(run.model[0]), flat(before))
    assert not any(each.requires_grad for each in run.model[0].parameters())
    assert run.model.seen == 19  # as it was when the last weights were averaged


def test_bad_input_is_refused_before_anything_is_spent():
    with raises_field(SettingError, "average", "'tial'", "'tail'"):
        equidp.Plan(average="tial")
    for share in (0, -1, 1.5, None, "half"):
        with raises_field(SettingError, "average_share"):
            equidp.Plan(average="tail", average_share=share)

    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("no copies")

    with raises_field(ModelError, "model", "no copies"):
        make_trainer(model=Stubborn(5, 2), average="ema")
