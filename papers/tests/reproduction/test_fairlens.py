"""FairLens trains like any other method: resumed, accounted for one by one, and refused where it cannot."""

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


def factors(trained: equidp.Trainer) -> torch.Tensor:
    """Factors of the terms in losses of both groups, [2, 2]."""
    return example_context(trained.policy, trained.policy_state, torch.arange(2))[0]


@pytest.mark.soak
def test_it_evens_out_what_it_penalises():
    """Without noise, and with penalties that dwarf the loss, groups end as close to the boundary as each
    other; without penalties they do not."""
    data = toy()
    harder = torch.where(data.groups[:, None] == 0, data.inputs, 0.05 * data.inputs)
    data = replace(data, inputs=harder)

    def gap(penalty: float) -> float:
        policy = FairLens(1e3, smoothing=0.0, slope_penalty=0.0, boundary_penalty=penalty)
        trained = trainer(nn.Linear(5, 2), policy, train=data, steps=60, noise_multiplier=0.0)
        trained.fit()
        counts, _, near = trained.policy_state.sums
        return float((near / counts).diff().abs())

    without = gap(0.0)
    assert without > 0.1
    assert gap(20.0) < 0.5 * without


class _Stops(equidp.Callback):
    def after_step(self, trainer):
        if trainer.steps_done == 5:
            trainer.stop(KeyboardInterrupt())


@pytest.mark.soak
def test_a_resumed_run_goes_on_with_the_same_factors_and_direction(tmp_path):
    ledger = Ledger()
    stopped = trainer(ledger=ledger, callbacks=[_Stops(), equidp.Checkpoints(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        stopped.fit()
    before = stopped.policy_state
    assert before.direction.norm() == pytest.approx(1.0)
    resumed = trainer(ledger=ledger)
    assert equidp.Checkpoints(tmp_path).restore(resumed) == 0
    for there, now in zip(before, resumed.policy_state, strict=True):
        assert torch.equal(there, now)
    assert torch.equal(factors(stopped), factors(resumed))
    assert resumed.fit().facts.steps == 12


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
