"""A method with settings of its own is one file and one line in METHODS, and everything else knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import equidp
from equidp.comparison.cells import Cell
from equidp.data.dataset import DataSplit
from equidp.errors import SettingError
from equidp.kernel.policy import Setting
from equidp.policies.setting import setting
from equidp.policies.table import METHODS, Method
from equidp.store import FIGURES
from equidp.training.build import build
from equidp.training.plan import Plan
from equidp.training.resolved import ResolvedPlan
from support.errors import raises_field
from support.toy import toy


class Bound(NamedTuple):
    bound: Tensor


@dataclass(frozen=True)
class Own(equidp.Policy):
    """Weight bound / (norm + softness); the bound shrinks by a factor at each release."""

    softness: float = setting(0.5, "Added to norms.")
    shrinkage: float = setting(0.9, "Factor of the bound after each release, in (0, 1].")
    statistics_ratio: float = setting(10.0, "sigma_s / sigma.")

    def init(self, setting: Setting) -> Bound:
        return Bound(torch.tensor(1.0))

    def statistics(self, state: Bound, norm: Tensor, group: Tensor) -> Tensor:
        return torch.ones(1)

    def update(self, state: Bound, released: Tensor) -> Bound:
        return Bound(state.bound * self.shrinkage)

    def weight(self, state: Bound, norm: Tensor, group: Tensor) -> Tensor:
        return state.bound / (norm + self.softness)

    def sensitivity(self, state: Bound) -> float:
        return float(state.bound)


class Toys:
    """Splits of the toy data."""

    name = "toys"
    notes = ()
    highlighted_groups = None

    def split(self, seed: int) -> DataSplit:
        return DataSplit(train=toy(120, seed=seed), test=toy(60, seed=seed + 1))


@pytest.fixture(autouse=True)
def _line_in_the_table(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", Method(Own, "clips harder where gradients are long"))


def plan(**settings) -> Plan:
    return Plan(batch_size=30, epochs=1, method_settings={"softness": 0.25, "shrinkage": 0.5, **settings})


def test_a_plan_gives_it_its_settings_and_a_trainer_trains_with_them():
    resolved = plan(clipping_bound=7.0).for_method("mine").with_usual_noise().resolve(120)
    assert resolved.policy == Own(softness=0.25, shrinkage=0.5)
    assert ResolvedPlan.from_plain(resolved.to_plain()) == resolved
    trainer = build(resolved, toy(120), weights_seed=0, seed=0)
    run = trainer.fit()
    assert float(trainer.policy_state.bound) == 0.5**trainer.steps == 0.5**4
    assert run.facts.method == {"method": "Own", "softness": 0.25, "shrinkage": 0.5, "statistics_ratio": 10.0}
    assert run.entries[0][0].statistics_noise == 10.0
    with raises_field(SettingError, "method setting", "'softness'"):
        plan(sofness=1.0)


def test_kept_runs_outlive_changes_of_equidp_until_its_figures_change(monkeypatch):
    kept = Cell(Toys(), plan().for_method("mine").with_usual_noise().resolve(120), 0, "ghost")
    before = kept.key
    assert kept.key == before
    monkeypatch.setattr("equidp.comparison.cells.FIGURES", FIGURES + 1)
    assert kept.key != before
