"""A run before it spends anything: loaded, checked and timed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from equidp._provenance import kernel_digest, versions
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.limit import EventCounts
from equidp.data.dataset import DataSplit
from equidp.distributed.group import alone
from equidp.kernel.ledger import Ledger, MemoryLedger
from equidp.runs import layout
from equidp.runs.config import TrainConfig
from equidp.tables.encode import TableEncoder
from equidp.training.build import build
from equidp.training.device import CPU
from equidp.training.plan import ResolvedPlan
from equidp.training.trainer import Callback, Trainer


@dataclass(frozen=True)
class PreparedRun:
    """A run that was checked and has spent nothing.

    Attributes:
        config: its settings.
        plan: worked out for its method and data.
        split: its data.
        encoder: of columns; None for data without any. Where preprocessing is private, one that no rows were
            read for stands for it before `begin`.
        trainer: of the run, with a ledger in memory; None once a release has changed its data or its plan.
        device: where it is to train.
        stated: all that it will spend: steps and releases.
        budget_id: of the budget that it began with; "" without one.
    """

    config: TrainConfig
    plan: ResolvedPlan
    split: DataSplit
    encoder: TableEncoder | None
    trainer: Trainer | None
    device: torch.device
    stated: EventCounts
    budget_id: str = ""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Facts that follow from the configuration and the data, as plain values; hashes the data once."""
        train = self.split.train
        return {
            "num_train": len(train),
            "input_shape": list(train.input_shape),
            "group_names": list(train.group_names),
            "class_names": list(train.class_names),
            "notes": list(self.split.notes),
            "name": self.config.data.source().name,
            "versions": versions(),
            "kernel_sha256": kernel_digest(),
            "own_code": layout.own_code(self.plan),
            "sensitive_data_sha256": self.split.digest(),
            **({"budget_id": self.budget_id} if self.budget_id else {}),
        }


Loaded = tuple[DataSplit, TableEncoder | None]
"""Result of `TrainConfig.load`."""


def prepare(config: TrainConfig, device: torch.device = CPU, loaded: Loaded | None = None) -> PreparedRun:
    """Load the data and check everything that can go wrong before budget is spent; write nothing.

    Args:
        config: of the run.
        device: where to train.
        loaded: its data; None: it is loaded now.

    Raises:
        EquidpError: says what is wrong.
    """
    split, encoder = loaded or config.load()
    for each in config.releases:
        each.check_data(split.train)
    config.check_measures(split.test.class_names)
    plan = config.resolve(len(split.train), split.train.group_names)
    with ExitStack() as stack, alone():
        budget = None
        if config.budget is not None:
            budget = stack.enter_context(config.budget.rehearse(config.name))
            budget.for_data(split.train.source, split.train.unit)
        ledger: Ledger = MemoryLedger() if budget is None else budget.ledger(MemoryLedger())
        releases = tuple((event, 1) for event in config.release_events(plan.delta).values())
        ledger.promise(releases)
        trainer = make_trainer(config, plan, split, ledger, budget, device=device)
        stated: EventCounts = (*releases, (trainer.event, trainer.steps))
        return PreparedRun(config, plan, split, encoder, trainer, device, stated)


def make_trainer(
    config: TrainConfig,
    plan: ResolvedPlan,
    split: DataSplit,
    ledger: Ledger | None,
    budget: PrivacyBudget | None,
    callbacks: Sequence[Callback] = (),
    device: torch.device = CPU,
) -> Trainer:
    """The trainer of a configuration and its plan; samples and noise come from the operating system."""
    return build(
        plan,
        split.train,
        seed=config.data.seed,
        secure=True,
        device=device,
        engine=config.execution.engine,
        accountant=config.target.accountant,
        callbacks=callbacks,
        ledger=ledger,
        budget=budget,
        beyond_budget=config.execution.beyond_budget,
    )
