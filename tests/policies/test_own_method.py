"""A method with settings of its own is one file and one line in METHODS, and everything else knows it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import equidp
from equidp.comparison.cells import Cell, renew_processes
from equidp.data.dataset import DataSplit
from equidp.errors import SettingError
from equidp.policies.table import METHODS, Method
from equidp.store import FIGURES
from equidp.training.build import build
from equidp.training.plan import Plan
from equidp.training.resolved import ResolvedPlan
from support.errors import raises_field
from support.toy import toy

SOURCE = '''
"""Clips harder where gradients are long, more so from step to step."""
from __future__ import annotations
from dataclasses import dataclass
from typing import NamedTuple
import torch
from torch import Tensor, nn
from equidp.kernel.policy import Policy, Setting
from equidp.policies.setting import setting


class Bound(NamedTuple):
    bound: Tensor


@dataclass(frozen=True)
class Own(Policy):
    """Weight bound / (norm + softness); the bound shrinks by a factor at each release."""

    softness: float = setting(0.5, "Added to norms.")
    shrinkage: float = setting(0.9, "Factor of the bound after each release, in (0, 1].")
    statistics_ratio: float = setting(10.0, "sigma_s / sigma.")
    _START = 1.0

    def init(self, setting: Setting) -> Bound:
        return Bound(torch.tensor(self._START))

    def statistics(self, state: Bound, norm: Tensor, group: Tensor) -> Tensor:
        return torch.ones(1)

    def update(self, state: Bound, released: Tensor) -> Bound:
        return Bound(state.bound * self.shrinkage)

    def weight(self, state: Bound, norm: Tensor, group: Tensor) -> Tensor:
        return state.bound / (norm + self.softness)

    def sensitivity(self, state: Bound) -> float:
        return float(state.bound)


def own_model(shape, classes):
    return nn.Linear(shape[0], classes)
'''


class Toys:
    """Splits of the toy data."""

    name = "toys"
    notes = ()
    highlighted_groups = None

    def split(self, seed: int) -> DataSplit:
        return DataSplit(train=toy(120, seed=seed), test=toy(60, seed=seed + 1))


def imported(folder: Path, source: str = SOURCE):
    """The module, anew from this source."""
    (folder / "own_method.py").write_text(source)
    sys.modules.pop("own_method", None)
    importlib.invalidate_caches()
    return importlib.import_module("own_method")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The method in a file on disk, and its line in the table."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = imported(folder)
    monkeypatch.setitem(METHODS, "mine", Method(module.Own, "clips harder where gradients are long"))
    yield module
    sys.modules.pop("own_method", None)


def plan(**settings) -> Plan:
    return Plan(batch_size=30, epochs=1, method_settings={"softness": 0.25, "shrinkage": 0.5, **settings})


def test_a_plan_gives_it_its_settings_and_a_trainer_trains_with_them(own):
    resolved = plan(clipping_bound=7.0).for_method("mine").with_usual_noise().resolve(120)
    assert resolved.policy == own.Own(softness=0.25, shrinkage=0.5)
    assert ResolvedPlan.from_plain(resolved.to_plain()) == resolved
    trainer = build(resolved, toy(120), weights_seed=0, seed=0)
    run = trainer.fit()
    assert float(trainer.policy_state.bound) == 0.5**trainer.steps == 0.5**4
    assert run.facts.method == {"method": "Own", "softness": 0.25, "shrinkage": 0.5, "statistics_ratio": 10.0}
    assert run.entries[0][0].statistics_noise == 10.0
    with raises_field(SettingError, "method setting", "'softness'"):
        plan(sofness=1.0)


@pytest.mark.soak
def test_a_comparison_trains_it_also_in_other_processes(own, tmp_path):
    renew_processes()  # those of earlier tests do not have its folder on their path
    comparison = equidp.compare(
        Toys(),
        methods=["mine"],
        seeds=1,
        plan=plan(),
        directory=tmp_path / "runs",
        jobs=2,
    )
    epochs = comparison.epochs[comparison.epochs["method"] == "mine"]
    assert len(comparison.results[comparison.results["method"] == "mine"]) == 3
    assert set(epochs["clipping_bound"]) == {0.5**4}
    assert len(list((tmp_path / "runs").glob("*/facts.json"))) == 1 + 5 + 1  # rates, trees


def cell(method: str = "mine", **changes) -> Cell:
    return Cell(
        SOURCE_OF_DATA,
        plan().with_changes(changes).for_method(method).with_usual_noise().resolve(120),
        0,
        "ghost",
    )


SOURCE_OF_DATA = Toys()


def changed(own, old: str, new: str) -> None:
    """Take the module anew with another source."""
    assert old in SOURCE
    module = imported(Path(own.__file__).parent, SOURCE.replace(old, new))
    METHODS["mine"] = METHODS["mine"]._replace(source=module.Own)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("state.bound / (norm", "0.5 * state.bound / (norm"),
        ("return torch.ones(1)", "return torch.zeros(1)"),
        ("torch.tensor(self._START)", "2 * torch.tensor(self._START)"),
        ("_START = 1.0", "_START = 2.0"),
    ],
)
def test_a_kept_run_is_not_that_of_another_method_of_the_same_name(own, old, new):
    before = cell().key
    assert cell().key == before
    changed(own, old, new)
    assert cell().key != before
    changed(own, old, old)
    assert cell().key == before


def test_kept_runs_outlive_changes_of_equidp_until_its_figures_change(own, monkeypatch):
    before = cell().key
    assert cell().key == before
    monkeypatch.setattr("equidp.comparison.cells.FIGURES", FIGURES + 1)
    assert cell().key != before
