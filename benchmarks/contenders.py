"""Steps in PyTorch that run.py compares: whole ones on a given sample, noise and optimizer included."""

from __future__ import annotations

import gc
import math
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.validators import ModuleValidator
from subjects import ALL
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

import equidp
from equidp.cli.messages import keep_freed_memory
from equidp.kernel.run import Batch
from equidp.training.device import wait_for

Columns = tuple[Tensor, Tensor, Tensor, Tensor]
"""Inputs, targets, groups and indices of a sample."""
Step = Callable[[Columns], object]
LEARNING_RATE = 0.01

POLICIES: dict[str, Callable[[], equidp.Policy]] = {
    "dpsgd": lambda: equidp.DPSGD(clipping_bound=1.0),
    "dpsgd-f": lambda: equidp.DPSGDF(clipping_bound=1.0),
    "global-adapt": lambda: equidp.GlobalAdapt(clipping_bound=1.0, initial_bound=10.0),
}


def _sgd(model: nn.Module, rows: Columns, batch_size: int, *, compiled: bool = False) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    loss = nn.CrossEntropyLoss()
    forward = torch.compile(model, dynamic=True) if compiled else model

    def step(sample: Columns) -> None:
        optimizer.zero_grad()
        loss(forward(sample[0]), sample[1]).backward()
        optimizer.step()

    return step


def _equidp(
    model: nn.Module,
    rows: Columns,
    batch_size: int,
    *,
    policy: str,
    engine: str = "ghost",
    secure: bool = False,
) -> Step:
    """A step of `Trainer` on the given samples, which protects nobody.

    It leaves out the check of eight rows in steps 1, 2, 4, ..., which a few hundred steps would count at more
    than its share of a training.
    """
    names = tuple(str(value) for value in range(int(rows[1].max()) + 1))
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        equidp.GroupedDataset(*rows[:3], group_names=("a", "b"), class_names=names),
        method=POLICIES[policy](),
        batch_size=batch_size,
        delta=1e-6,
        steps=10**6,
        noise_multiplier=1.0,
        engine=engine,
        seed=None if secure else 0,
    )
    samples: deque[Batch] = deque()
    trainer._run._samples, trainer._run._check = iter(samples.popleft, None), None

    def step(sample: Columns) -> None:
        samples.append(Batch(*sample))
        trainer.step()

    return step


def _opacus(model: nn.Module, rows: Columns, batch_size: int, *, mode: str) -> Step:
    """Opacus as its guides set it up."""
    fixed = ModuleValidator.fix(model).to(rows[0].device)
    per_example = mode in ("hooks", "functorch")
    if per_example:
        module = GradSampleModule(fixed, force_functorch=mode == "functorch")
    else:
        module = GradSampleModuleFastGradientClipping(
            fixed, max_grad_norm=1.0, use_ghost_clipping=mode == "ghost"
        )
    parts = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(rows[0].cpu(), rows[1].cpu()), batch_size=batch_size),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,  # samples are given
        grad_sample_mode=mode if per_example else "ghost",
    )
    private, optimizer = parts[:2]
    loss = nn.CrossEntropyLoss() if per_example else parts[2]

    def step(sample: Columns) -> None:
        optimizer.zero_grad()
        loss(private(sample[0]), sample[1]).backward()
        optimizer.step()

    return step


OPACUS = ("hooks", "functorch", "fast gradient clipping", "ghost")
CONTENDERS: dict[str, Callable[[nn.Module, Columns, int], Step]] = {
    "plain SGD": _sgd,
    "plain SGD, compiled": partial(_sgd, compiled=True),
    **{f"equidp ghost, {policy}": partial(_equidp, policy=policy) for policy in POLICIES},
    "equidp ghost, dpsgd, noise from the OS": partial(_equidp, policy="dpsgd", secure=True),
    "equidp functional, dpsgd": partial(_equidp, policy="dpsgd", engine="functional"),
    **{f"Opacus {mode}": partial(_opacus, mode=mode) for mode in OPACUS},
}


class Stepper:
    """A contender on a subject, as `serve` asks for it."""

    def __init__(self, asked: dict[str, Any], rows: Sequence[np.ndarray]) -> None:
        torch.set_num_threads(asked["threads"])
        keep_freed_memory()
        warnings.simplefilter("ignore")
        self.device = torch.device(asked["device"])
        self.subject = ALL[asked["subject"]]
        self.model = self.subject.model(self.device)
        make = CONTENDERS[asked["contender"]]
        with self.subject.precision(self.device):
            self.step = make(self.model, self.ready(rows), asked["batch_size"])

    def ready(self, sample: Sequence[np.ndarray]) -> Columns:
        inputs, targets, groups, indices = (torch.from_numpy(column).to(self.device) for column in sample)
        return inputs, targets, groups, indices

    def take(self, samples: list[Columns]) -> None:
        """Take a step on each sample, and wait until the device has done them."""
        wait_for(self.device)
        with self.subject.precision(self.device):
            for sample in samples:
                self.step(sample)
        wait_for(self.device)

    def peak_bytes(self, sample: Sequence[np.ndarray]) -> float:
        """Return the most bytes that tensors take during a step, model and sample included.

        By the allocators' own events; NaN on a device that is neither the CPU nor CUDA.
        """
        ready = [self.ready(sample)]
        tensors = [*self.model.parameters(), *ready[0]]
        resting = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        gc.collect()
        if self.device.type == "cuda":
            before = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self.take(ready)
            return resting + torch.cuda.max_memory_allocated(self.device) - before
        if self.device.type != "cpu":
            return math.nan
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            self.take(ready)
        events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
        live = most = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            live += event.nbytes()
            most = max(most, live)
        return resting + most
