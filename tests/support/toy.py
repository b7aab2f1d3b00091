"""A task that trains in no time, and a trainer for it."""

from __future__ import annotations

import torch
from torch import nn

import equidp


def toy(n: int = 300, seed: int = 0) -> equidp.GroupedDataset:
    """Two classes that a line separates, two groups."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 5, generator=generator)
    targets = (inputs[:, 0] > 0).to(torch.int64)
    return equidp.GroupedDataset(inputs, targets, torch.arange(n) % 2, ("a", "b"), ("no", "yes"))


def make_trainer(train=None, policy=None, model=None, optimizer=None, **settings) -> equidp.Trainer:
    torch.manual_seed(0)
    model = nn.Linear(5, 2) if model is None else model
    given = {"batch_size": 30, "epochs": 2, "noise_multiplier": 1.0, "delta": 1e-5, **settings}
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5)
    return equidp.Trainer(
        model, optimizer, toy() if train is None else train, policy=policy or equidp.DPSGD(1.0), **given
    )


class DropsInEvaluation(nn.Module):
    """Leaves out half of the rows where no gradient is asked for, so that trials do not see it draw."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() or self.training:
            return inputs
        return inputs * (torch.rand(len(inputs), 1) < 0.5)
