"""Targets that the loss does not take for the model's outputs are found before anything is spent."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import equidp
from equidp.ledger.ledger import Ledger
from support.errors import raises_field

N = 60


class Rows(Dataset):
    """Rows that are loaded one by one."""

    def __init__(self, targets):
        self.targets = targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return torch.ones(5), self.targets[index]


def made(data, outputs=2, **settings):
    model = nn.Linear(5, outputs)
    return equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        method=equidp.DPSGD(),
        batch_size=20,
        steps=2,
        noise_multiplier=1.0,
        delta=1e-3,
        **settings,
    )


def targets(value):
    every = torch.arange(N) % 2
    every[41] = value
    return every


FORMS = {
    "tensors": lambda values: TensorDataset(torch.ones(N, 5), values),
    "list of tensors": lambda values: [(torch.ones(5), each) for each in values],
    "list of numbers": lambda values: [(torch.ones(5), int(each)) for each in values],
}


@pytest.mark.parametrize("value", [2, 7, -1])
@pytest.mark.parametrize("form", FORMS)
def test_a_class_beyond_the_outputs_is_refused_before_a_step_is_spent(form, value):
    ledger = Ledger()
    with raises_field(equidp.DataError, "targets"):
        made(FORMS[form](targets(value)), ledger=ledger)
    assert not ledger.entries()


def test_of_a_dataset_that_loads_rows_those_are_tried_that_are_looked_at():
    with raises_field(equidp.DataError, "targets"):
        made(Rows(torch.arange(N) % 4))


@pytest.mark.parametrize("form", FORMS)
def test_targets_that_the_loss_takes_are_accepted(form):
    assert made(FORMS[form](targets(-100))).fit().facts.steps == 2  # cross entropy ignores it
    assert made(FORMS[form](targets(2)), outputs=3).fit().facts.steps == 2


def test_a_loss_that_takes_whole_numbers_of_any_size_is_left():
    squares = lambda outputs, values: (outputs.squeeze(1) - values).square()  # noqa: E731
    assert made(FORMS["tensors"](targets(900)), outputs=1, loss=squares).fit().facts.steps == 2


def test_targets_of_another_type_than_the_loss_takes_are_refused_as_such():
    ledger = Ledger()
    with raises_field(equidp.ModelError, "targets"):
        made(TensorDataset(torch.ones(N, 5), torch.arange(N) % 2 * 1.0), ledger=ledger)
    assert not ledger.entries()
