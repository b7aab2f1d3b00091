"""A run by code of the user's own is read with that code, and with no other."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from equidp.errors import DataError
from equidp.evaluation.predictions import predict
from equidp.runs.begin import begin, prepare
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.saved import open_run
from equidp.runs.train import train
from equidp.training.plan import Plan
from support.errors import raises_field

MODULE = '''
from dataclasses import dataclass
import torch
from torch import nn
import equidp


@dataclass(frozen=True)
class Soft(equidp.Policy):
    """Weighs by bound / (norm + 1)."""

    longest: float = 1.0

    def weight(self, state, norm, group):
        return self.longest / (norm + 1)

    def sensitivity(self, state):
        return self.longest


def make_model(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 3), nn.Tanh(), nn.Linear(3, classes))


class Source:
    def split(self, seed):
        inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(seed))
        groups = torch.arange(200) % 2
        data = equidp.GroupedDataset(inputs, (inputs[:, 0] > 0).long(), groups, ("a", "b"), ("no", "yes"))
        return equidp.DataSplit(data.subset(torch.arange(150)), data.subset(torch.arange(150, 200)))
'''


def write(folder: Path, source: str = MODULE) -> None:
    """The module, anew."""
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    (folder / "own_run_parts.py").write_text(source)
    sys.modules.pop("own_run_parts", None)
    importlib.invalidate_caches()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished run by the module's parts."""
    place = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.syspath_prepend(place)
        patch.setattr(sys, "dont_write_bytecode", True)
        write(place)
        plan = Plan(model="own_run_parts:make_model", batch_size=50, epochs=2, noise_multiplier=2.0)
        config = TrainConfig(
            RunData("own_run_parts:Source"),
            plan.with_changes(method="own_run_parts:Soft", accountant="rdp"),
        )
        begin(prepare(config), place / "run")
        train(place / "run", trust_code=True)
        yield place / "run"
    sys.modules.pop("own_run_parts", None)


@pytest.fixture
def run(trained):
    write(trained.parent)
    return trained


@pytest.mark.soak
def test_it_is_read_predicts_and_names_its_parts(run):
    kept = open_run(run, trust_code=True)
    assert predict(kept.run.model, kept.test().inputs).shape == (50, 2)
    card = (run / "share" / "card.md").read_text()
    assert all(f"own_run_parts:{name}" in card for name in ("Soft", "make_model", "Source"))


@pytest.mark.soak
def test_a_changed_model_is_refused(run):
    write(run.parent, MODULE.replace("nn.Tanh()", "nn.ReLU()"))
    with raises_field(DataError, "model", "'own_run_parts:"):
        open_run(run, trust_code=True)
    write(run.parent)
    open_run(run, trust_code=True)


@pytest.mark.soak
def test_a_changed_method_is_refused_where_the_run_goes_on(run):
    write(run.parent, MODULE.replace("(norm + 1)", "(norm + 2)"))
    open_run(run, trust_code=True)
    with raises_field(DataError, "method", "'own_run_parts:Soft'"):
        train(run, trust_code=True)
