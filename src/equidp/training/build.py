"""From a plan to a Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from equidp.accounting.schedule import checked_schedule
from equidp.data.dataset import DataSplit
from equidp.models import MODELS
from equidp.policies.methods import METHODS
from equidp.training.plan import Plan
from equidp.training.trainer import Callback, Trainer

if TYPE_CHECKING:
    from equidp.comparison.grid import RunSpec


def build_model(plan: Plan, data: DataSplit, seed: int) -> nn.Module:
    """The plan's model with the initial weights of `seed`; the caller's random state is left as it was.

    Convolutions have their channels last, which makes training of LeNet on a CPU a third faster.
    """
    factory = MODELS[plan.model] if isinstance(plan.model, str) else plan.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = factory(tuple(data.train.inputs.shape[1:]), data.train.num_classes)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def make_optimizer(plan: Plan, model: nn.Module, steps: int) -> torch.optim.Optimizer:
    """The plan's optimizer for a run of so many steps."""
    return torch.optim.SGD(
        model.parameters(),
        lr=steps**-0.5 if plan.learning_rate is None else plan.learning_rate,
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
    )


def make_trainer(spec: RunSpec, data: DataSplit, callbacks: tuple[Callback, ...] = ()) -> Trainer:
    """The trainer of a run, checked and ready; nothing is spent yet."""
    plan, model = spec.plan, build_model(spec.plan, data, spec.seed)
    _, steps = checked_schedule(len(data.train), plan.batch_size, epochs=plan.epochs)
    optimizer = make_optimizer(plan, model, steps)
    assert plan.delta is not None
    return Trainer(
        model,
        optimizer,
        data.train,
        policy=METHODS[spec.method].make(plan, data.train.num_groups),
        batch_size=plan.batch_size,
        steps=steps,
        delta=plan.delta,
        noise_multiplier=0.0 if spec.method == "sgd" else plan.noise_multiplier,
        engine=spec.engine,
        secure=False,
        seed=spec.seed,
        callbacks=callbacks,
    )
