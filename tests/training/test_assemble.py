"""Parts that do not fit together are refused while nothing is spent."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import equidp
from equidp.errors import PolicyError, SettingError
from equidp.kernel.policy import NoState
from equidp.ledger.ledger import Ledger
from support.errors import raises_field
from support.toy import make_trainer


def of(model, kind=torch.optim.SGD, **settings):
    return kind(model.parameters(), lr=0.1, **settings)


OPTIMIZERS = [
    each
    for each in vars(torch.optim).values()
    if isinstance(each, type) and issubclass(each, torch.optim.Optimizer)
    if each is not torch.optim.Optimizer
]


@pytest.mark.parametrize("kind", [*OPTIMIZERS, equidp.PrivateAdam])
def test_every_optimizer_of_torch_trains_or_is_refused_before_a_step(kind):
    """Also one with a step behind it, whose state stays as it was."""
    model = nn.Linear(5, 2, bias=False)
    optimizer, ledger = kind(model.parameters(), lr=0.1), Ledger()
    refused = kind in (torch.optim.SparseAdam, torch.optim.LBFGS)
    if not refused:
        model.weight.grad = torch.ones(2, 5)
        optimizer.step()
    before = str(optimizer.state_dict()), model.weight.tolist()
    try:
        with pytest.warns(equidp.errors.PrivacyWarning) if optimizer.state else nullcontext():
            trainer = make_trainer(model=model, optimizer=optimizer, ledger=ledger, epochs=None, steps=1)
    except SettingError:
        assert refused
        assert not sum(count for _, count in ledger.entries())
        return
    assert not refused
    assert (str(optimizer.state_dict()), model.weight.tolist()) == before
    trainer.fit()


@pytest.mark.soak
def test_optimizers_that_would_not_train_the_model():
    """As after make_compatible or a new head: nothing, or not all, would be trained, and all spent."""
    with raises_field(SettingError, "optimizer", "weight, bias"):
        make_trainer(optimizer=of(nn.Linear(5, 2)))
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = of(model)
    model[2] = nn.Linear(4, 2)
    with raises_field(SettingError, "optimizer", "2.weight, 2.bias"):
        make_trainer(model=model, optimizer=optimizer)
    model[2].requires_grad_(False)
    make_trainer(model=model, optimizer=optimizer).fit()
    model = nn.Linear(5, 2)
    with raises_field(SettingError, "optimizer"):
        make_trainer(model=model, optimizer=[of(model)])


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer), "ReduceLROnPlateau"),
        (lambda optimizer: lr_scheduler.StepLR(of(nn.Linear(5, 2)), 3), "another optimizer"),
        (
            lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=5),
            "5 more steps",
        ),
    ],
)  # fmt: skip
def test_schedulers_that_would_stop_training_or_do_nothing(make, given):
    model = nn.Linear(5, 2)
    optimizer = of(model)
    with raises_field(SettingError, "scheduler", given):
        make_trainer(model=model, optimizer=optimizer, scheduler=make(optimizer))


class TooHeavy(equidp.DPSGD):
    """Gives weights whose contributions exceed the sensitivity: a mistake that the kernel caps silently."""

    def weight(self, state: NoState, norm: Tensor, group: Tensor) -> Tensor:
        return torch.ones_like(norm)


def test_a_policy_of_ones_own_is_tried_before_the_first_step():
    """The kernel would cap its weights and train on, with accuracy nobody can explain."""
    ledger = Ledger()
    with raises_field(PolicyError, "weight", "TooHeavy"):
        make_trainer(method=TooHeavy(), ledger=ledger)
    assert sum(count for _, count in ledger.entries()) == 0
