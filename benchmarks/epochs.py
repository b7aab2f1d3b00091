"""Whole epochs, sampling and loading included: logistic regression on Adult's 36,177 training rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from contenders import OPACUS, POLICIES, Batches, opacus_parts, trainer_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from equidp.data import open_source
from equidp.data.origins import DATA_VARIABLE
from equidp.models import MODELS
from equidp.training.device import CPU

ROWS, COLUMNS, BATCH = 36_177, 40, 256
Epoch = Callable[[], object]


def data() -> tuple[Batches, str]:
    """Return Adult's training split, or random numbers of its shape without EQUIDP_DATA, and which it is."""
    if os.environ.get(DATA_VARIABLE):
        train = open_source("adult").split(0).train
        return (train.inputs, train.targets, train.groups), "Adult"
    inputs, targets = torch.rand(ROWS, COLUMNS), torch.randint(0, 2, (ROWS,))
    return (inputs, targets, torch.randint(0, 2, (ROWS,))), "random numbers of Adult's shape"


def _model() -> nn.Module:
    return MODELS["logistic"]((COLUMNS,), 2)


def _plain(batch: Batches, device: torch.device, *, by_loader: bool) -> Epoch:
    inputs, targets, _ = batch
    model = _model().to(device)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=BATCH, shuffle=True)

    def epoch() -> None:
        order = torch.randperm(len(inputs)).split(BATCH)
        chosen = loader if by_loader else ((inputs[rows], targets[rows]) for rows in order)
        for x, y in chosen:
            optimizer.zero_grad()
            loss(model(x.to(device)), y.to(device)).backward()
            optimizer.step()

    return epoch


def _ours(batch: Batches, policy: str, device: torch.device, *, secure: bool) -> Epoch:
    def epoch() -> None:
        trainer_of(_model().to(device), batch, policy, secure=secure, batch_size=BATCH, epochs=1).fit()

    return epoch


def _opacus(batch: Batches, mode: str, device: torch.device) -> Epoch:
    loader = DataLoader(TensorDataset(*batch[:2]), batch_size=BATCH)
    module, optimizer, criterion, private = opacus_parts(_model().to(device), loader, mode, poisson=True)

    def epoch() -> None:
        for x, y in private:
            optimizer.zero_grad()
            criterion(module(x.to(device)), y.to(device)).backward()
            optimizer.step()

    return epoch


def epochs(device: torch.device = CPU) -> tuple[dict[str, Epoch], str]:
    """Return an epoch of each contender, of rows in the CPU's memory, and whose they are."""
    batch, source = data()
    contenders = {
        "plain SGD, rows by index": _plain(batch, device, by_loader=False),
        "plain SGD, DataLoader": _plain(batch, device, by_loader=True),
        **{f"equidp Trainer, {policy}": _ours(batch, policy, device, secure=False) for policy in POLICIES},
        "equidp Trainer, dpsgd, noise from the OS": _ours(batch, "dpsgd", device, secure=True),
        **{f"Opacus {mode}, DPDataLoader": _opacus(batch, mode, device) for mode in OPACUS},
    }
    return contenders, source


def main() -> None:
    for name, epoch in epochs()[0].items():
        start = time.perf_counter()
        epoch()
        print(f"{name:45s} {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
