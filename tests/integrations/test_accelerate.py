"""Models and optimizers that accelerate or Lightning's Fabric prepared train to the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import equidp

accelerate = pytest.importorskip("accelerate", reason="needs the extra: pip install '.[hf]'")
fabric = pytest.importorskip("lightning.fabric", reason="needs the extra: pip install '.[lightning]'")
pytestmark = pytest.mark.soak


def by_nobody(model, optimizer):
    return model, optimizer


def by_accelerate(model, optimizer):
    return accelerate.Accelerator(cpu=True).prepare(model, optimizer)


def by_fabric(model, optimizer):
    return fabric.Fabric(accelerator="cpu", devices=1).setup(model, optimizer)


class Stop(equidp.Callback):
    """Ends the process' work after some steps, as a signal does."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def after_step(self, trainer: equidp.Trainer) -> None:
        if trainer.steps_done == self.steps:
            trainer.stop(KeyboardInterrupt())


def trained(prepare, folder: Path, stop: int = 0) -> equidp.Run:
    """Run of six steps, or of those before a stop and, with the same folder, those after it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    inputs = torch.randn(64, 4)
    model, optimizer = prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    folder.mkdir(exist_ok=True)
    checkpoints = equidp.Checkpoints(str(folder), seconds=0)
    with equidp.Ledger(str(folder / "ledger")) as ledger:
        trainer = equidp.Trainer(
            model, optimizer, TensorDataset(inputs, (inputs[:, 0] > 0).long()),
            method=equidp.Quantile(), batch_size=16, steps=6, noise_multiplier=1.0, delta=1e-3,
            seed=1, ledger=ledger, callbacks=[checkpoints, Stop(stop)],
        )  # fmt: skip
        checkpoints.restore(trainer, missing_ok=True)
        return trainer.fit()


def weights(run: equidp.Run) -> list[torch.Tensor]:
    return [each.detach() for each in run.model.parameters()]


@pytest.mark.parametrize("prepare", [by_accelerate, by_fabric])
def test_a_stopped_run_of_a_prepared_model_goes_on_where_it_was(prepare, tmp_path):
    """To the weights of a plain model that was stopped and went on; no step is lost or counted twice."""
    ended = []
    for each, folder in ((prepare, tmp_path / "prepared"), (by_nobody, tmp_path / "plain")):
        with pytest.raises(KeyboardInterrupt):
            trained(each, folder, stop=3)
        assert equidp.Checkpoints(str(folder)).steps_kept() == 3
        ended.append(trained(each, folder))
    torch.testing.assert_close(*map(weights, ended), rtol=0, atol=0)
    assert ended[0].entries == ended[1].entries
    assert ended[0].epsilon() == trained(by_nobody, tmp_path / "at once").epsilon()
