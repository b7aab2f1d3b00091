"""FairLens accounts for examples one by one like any other method, and is refused where it cannot train."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import equidp
from equidp.engines import dataset_norms
from equidp.errors import SettingError
from equidp.kernel.bounding import example_context
from equidp.ledger.ledger import Ledger
from papers.reproduction.fairlens import FairLens
from support.errors import raises_field
from support.toy import make_trainer, toy


def network(inputs: int = 5, outputs: int = 2) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


def trainer(model=None, method=None, **settings) -> equidp.Trainer:
    given = {"seed": 3, "steps": 12, "epochs": None, **settings}
    model = network() if model is None else model
    return make_trainer(method=FairLens(0.5) if method is None else method, model=model, **given)


class _Norms(equidp.Callback):
    """The exact shares of the sensitivity, from norms that are taken apart."""

    def __init__(self):
        self.total = 0.0

    def before_training(self, trainer):
        self._take(trainer)

    def after_step(self, trainer):
        self.total = self.total + (self._norms / 0.5).clamp(max=1.0)
        self._take(trainer)

    def _take(self, trainer):
        data = trainer.train
        context = example_context(trainer.policy, trainer.policy_state, data.groups)
        self._norms = dataset_norms(trainer.engine, data.inputs, data.targets, context=context)


@pytest.mark.soak
def test_individual_accounts_are_of_penalised_gradients():
    """Shares are those of norms that are taken before each step, up to the grid of 0.01."""
    norms = _Norms()
    trained = trainer(steps=8, callbacks=[norms], individual=equidp.Individual(1), accountant="rdp")
    trained.fit()
    report = trained.individual_report(accountant="rdp")
    found = torch.from_numpy(trained.individual.counts @ trained.individual.grid)
    assert ((found - norms.total) > -1e-4).all()
    assert ((found - norms.total) < 8 * 0.0101).all()
    assert float(report.sensitive_epsilons.max()) <= trained.run().epsilon()


def three_groups() -> equidp.GroupedDataset:
    return replace(toy(), groups=torch.arange(300) % 3, group_names=("a", "b", "c"))


@pytest.mark.parametrize(
    ("settings", "error", "field"),
    [
        ({"train": three_groups()}, SettingError, "num_groups"),
        ({"train": replace(toy(), weights=torch.ones(300))}, SettingError, "policy"),
        (
            {"train": equidp.by_person(toy(), [number // 3 for number in range(300)], most_rows=4)},
            SettingError,
            "policy",
        ),
        ({"engine": "gost"}, SettingError, "engine"),
    ],
)
def test_what_it_cannot_train_is_refused_before_anything_is_spent(settings, error, field):
    ledger = Ledger(unit=getattr(settings.get("train"), "unit", "rows"))
    with raises_field(error, field):
        trainer(ledger=ledger, **settings)
    assert sum(count for _, count in ledger.entries()) == 0
