"""A run releases the average of its weights that was asked for; training goes on as without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import equidp
from equidp.errors import SettingError
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


def test_bad_input_is_refused_before_anything_is_spent():
    with raises_field(SettingError, "average", "'tial'", "'tail'"):
        equidp.Plan(average="tial")
    for share in (0, -1, 1.5, None, "half"):
        with raises_field(SettingError, "average_share"):
            equidp.Plan(average="tail", average_share=share)
