"""Schedules run over the steps that a run takes, and end at zero."""

from __future__ import annotations

import math

import pytest
import torch

import equidp
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent
from equidp.training.optimizers import SCHEDULES, chosen_scheduler
from support.toy import make_trainer


class Rates(equidp.Callback):
    """The learning rates that steps were taken with."""

    def __init__(self):
        self.seen, self.next = [], 0.5

    def after_step(self, trainer):
        self.seen.append(self.next)
        self.next = trainer.optimizer.param_groups[0]["lr"]


def rates(name: str, **settings) -> list[float]:
    watch = Rates()
    make_trainer(callbacks=[watch], scheduler=name, **settings).fit()
    return [*watch.seen, watch.next]


def test_each_falls_from_the_learning_rate_to_zero_over_all_steps():
    assert rates("constant") == [0.5] * 21
    assert rates("linear") == pytest.approx([0.5 * (1 - t / 20) for t in range(21)])
    assert rates("cosine") == pytest.approx([0.25 * (1 + math.cos(math.pi * t / 20)) for t in range(21)])


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_begins_whole_and_falls(name):
    left = [SCHEDULES[name](share / 8) for share in range(9)]
    assert left[0] == 1.0
    assert left == sorted(left, reverse=True)
    assert left[-1] == (1.0 if name == "constant" else 0.0)


@pytest.mark.soak
def test_a_run_that_a_budget_cuts_short_ends_at_zero_too(tmp_path):
    event = StepEvent(0.1, 1.0)
    limit = 1.01 * epsilon([(event, 12)], 1e-5)
    with equidp.PrivacyBudget(tmp_path / "budget", epsilon=limit, delta=1e-5) as budget:
        seen = rates("linear", budget=budget, beyond_budget="stop")
    assert 13 <= len(seen) < 20
    assert seen == pytest.approx([0.5 * (1 - t / (len(seen) - 1)) for t in range(len(seen))])


def test_facts_name_the_learning_rate_that_the_schedule_began_with():
    assert make_trainer(scheduler="cosine").fit().facts.learning_rate == 0.5


def test_an_optimizer_may_have_had_a_schedule_before():
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.8)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.2
    assert chosen_scheduler("linear", optimizer, 4, 0).get_last_lr() == [0.2]


def test_a_typo_is_named_before_anything_is_spent():
    with pytest.raises(SettingError, match=r"schedule 'cosin'\. Did you mean 'cosine'"):
        make_trainer(scheduler="cosin")
