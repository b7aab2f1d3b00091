"""Contenders. Each makes a function that takes one whole step on one batch, noise and optimizer included."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.validators import ModuleValidator
from subjects import Subject
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import equidp
from equidp.engines import dataset_norms
from equidp.kernel.run import Batch

Step = Callable[[], object]
Batches = tuple[Tensor, Tensor, Tensor]

POLICIES: dict[str, Callable[[], equidp.Policy]] = {
    "dpsgd": lambda: equidp.DPSGD(clipping_bound=1.0),
    "dpsgd-f": lambda: equidp.DPSGDF(clipping_bound=1.0),
    "global-adapt": lambda: equidp.GlobalAdapt(clipping_bound=1.0, initial_bound=10.0),
}


def sgd(model: nn.Module, batch: Batches) -> Step:
    inputs, targets, _ = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()

    return step


def trainer_of(
    model: nn.Module,
    batch: Batches,
    policy: str,
    *,
    engine: str = "ghost",
    secure: bool = False,
    batch_size: int | None = None,
    epochs: float | None = None,
) -> equidp.Trainer:
    inputs, targets, groups = batch
    names = tuple(str(value) for value in range(int(targets.max()) + 1))
    return equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        equidp.GroupedDataset(inputs, targets, groups, group_names=("a", "b"), class_names=names),
        method=POLICIES[policy](),
        batch_size=batch_size or len(inputs),
        delta=1e-6,
        epochs=epochs,
        steps=None if epochs else 10**6,
        noise_multiplier=1.0,
        engine=engine,
        seed=None if secure else 0,
    )


def ours(
    model: nn.Module, batch: Batches, policy: str, *, engine: str = "ghost", secure: bool = False
) -> Step:
    trainer = trainer_of(model, batch, policy, engine=engine, secure=secure)
    return repeated(trainer, Batch(*batch, torch.arange(len(batch[0]), device=batch[0].device)))


def repeated(trainer: equidp.Trainer, batch: Batch) -> Step:
    """Return a step on the same batch each time, which protects nobody.

    It leaves out the check of eight rows in steps 1, 2, 4, ..., which a few hundred steps would count at more
    than its share of a training.
    """
    trainer._run._samples, trainer._run._check = itertools.repeat(batch), None
    return trainer.step


def norms_alone(model: nn.Module, batch: Batches) -> Step:
    """Return a pass over norms alone, as accounting and diagnostics take it."""
    trainer = trainer_of(model, batch, "dpsgd")
    return lambda: dataset_norms(trainer.engine, *batch[:2])


def opacus(model: nn.Module, batch: Batches, mode: str) -> Step:
    inputs, targets, _ = batch
    loader = DataLoader(TensorDataset(inputs.cpu(), targets.cpu()), batch_size=len(inputs))
    module, optimizer, criterion, _ = opacus_parts(model, loader, mode, poisson=False)

    def step() -> None:
        optimizer.zero_grad()
        criterion(module(inputs), targets).backward()
        optimizer.step()

    return step


def opacus_parts(
    model: nn.Module, loader: DataLoader, mode: str, *, poisson: bool
) -> tuple[nn.Module, torch.optim.Optimizer, Callable, DataLoader]:
    """Set up Opacus as its guides do, in one of the modes of `OPACUS`."""
    device = next(model.parameters()).device
    fixed = ModuleValidator.fix(model).to(device)
    loss = nn.CrossEntropyLoss()
    if mode in ("hooks", "functorch"):
        module = GradSampleModule(fixed, force_functorch=mode == "functorch")
        kind = mode
    else:
        module = GradSampleModuleFastGradientClipping(
            fixed, max_grad_norm=1.0, use_ghost_clipping=mode == "ghost"
        )
        kind = "ghost"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.01),
            criterion=loss,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
            grad_sample_mode=kind,
        )
    if kind == "ghost":
        module, optimizer, criterion, loader = made
    else:
        (module, optimizer, loader), criterion = made, loss
    return module, optimizer, criterion, loader


OPACUS = ("hooks", "functorch", "fast gradient clipping", "ghost")

CONTENDERS: dict[str, Callable[[nn.Module, Batches], Step]] = {
    "plain SGD": sgd,
    **{f"equidp ghost, {policy}": partial(ours, policy=policy) for policy in POLICIES},
    "equidp ghost, dpsgd, noise from the OS": partial(ours, policy="dpsgd", secure=True),
    "equidp ghost, norms alone": norms_alone,
    "equidp functional, dpsgd": partial(ours, policy="dpsgd", engine="functional"),
    **{f"Opacus {mode}": partial(opacus, mode=mode) for mode in OPACUS},
}


def steps_for(
    subject: Subject, device: torch.device, names: Sequence[str] = tuple(CONTENDERS)
) -> tuple[dict[str, Step], dict[str, str]]:
    """Return a step of each contender named that can train the subject, and why the others cannot."""
    batch = tuple(tensor.to(device) for tensor in subject.batch())
    steps, refused = {}, {}
    for name in names:
        torch.manual_seed(0)
        try:
            step = CONTENDERS[name](subject.make().to(device), batch)
            step()
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        else:
            steps[name] = step
    return steps, refused
