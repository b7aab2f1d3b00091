"""Tasks that train in no time, and a trainer for one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import equidp
from equidp.kernel.run import Batch


def toy(n: int = 300, seed: int = 0) -> equidp.GroupedDataset:
    """Two classes that a line separates, two groups."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 5, generator=generator)
    targets = (inputs[:, 0] > 0).to(torch.int64)
    return equidp.GroupedDataset(inputs, targets, torch.arange(n) % 2, ("a", "b"), ("no", "yes"))


class StopAt(equidp.Callback):
    """Ends training after a number of steps, as on the strength of a result."""

    def __init__(self, steps):
        self.steps = steps

    def after_step(self, trainer):
        if trainer.steps_done == self.steps:
            trainer.stop()


def make_trainer(train=None, method=None, model=None, optimizer=None, **settings) -> equidp.Trainer:
    torch.manual_seed(0)
    model = nn.Linear(5, 2) if model is None else model
    given = {"batch_size": 30, "epochs": 2, "noise_multiplier": 1.0, "delta": 1e-5, **settings}
    given["method"] = method or equidp.DPSGD(1.0)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5)
    return equidp.Trainer(model, optimizer, toy() if train is None else train, **given)


def note_samples(trainer: equidp.Trainer) -> list[Batch]:
    """Return a list that gets each sample that the trainer reads from now on."""
    seen: list[Batch] = []
    load = trainer._run._load

    def noting(samples):
        for batch in load(samples):
            seen.append(batch)
            yield batch

    trainer._run._load = noting
    return seen


@dataclass(frozen=True)
class RandomImages:
    """A source of images of random pixels; each seed has its own."""

    name: str = "images"
    highlighted_groups: tuple[str, str] | None = None

    def split(self, seed: int) -> equidp.DataSplit:
        draw = torch.Generator().manual_seed(seed)
        inputs, targets = torch.rand(12, 1, 8, 8, generator=draw), torch.arange(12) % 2
        data = equidp.GroupedDataset(inputs, targets, targets.clone(), ("a", "b"), ("no", "yes"), self.name)
        return equidp.DataSplit(data.subset(torch.arange(8)), data.subset(torch.arange(8, 12)), ("as it is",))
