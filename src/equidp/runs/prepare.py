"""A run before it spends anything: loaded, checked and timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from equidp._provenance import kernel_digest, versions
from equidp.data.dataset import DataSplit
from equidp.ledger.ledger import Ledger
from equidp.runs.config import TrainConfig
from equidp.runs.folder import LEDGER
from equidp.runs.own_code import own_code
from equidp.tables.encode import TableEncoder
from equidp.training.build import build
from equidp.training.device import CPU
from equidp.training.processes import alone
from equidp.training.resolved import ResolvedPlan
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
        trainer: of the run, to try it out; None once a release has changed its data or its plan.
        run: its random name on the ledger's lines.
    """

    config: TrainConfig
    plan: ResolvedPlan
    split: DataSplit
    encoder: TableEncoder | None
    trainer: Trainer | None
    run: str = field(default_factory=Ledger.new_run)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Facts that follow from the configuration and the data, as plain values; hashes the data once."""
        train = self.split.train
        return {
            "num_train": len(train),
            "input_shape": list(train.input_shape),
            "group_names": list(train.group_names),
            "groupings": [asdict(each) for each in train.groupings],
            "class_names": list(train.class_names),
            "notes": list(self.split.notes),
            "name": self.config.data.source().name,
            "versions": versions(),
            "kernel_sha256": kernel_digest(),
            "own_code": own_code(self.plan),
            "sensitive_data_sha256": self.split.digest(),
            "run": self.run,
        }


Loaded = tuple[DataSplit, TableEncoder | None]
"""Result of `TrainConfig.load`."""


def prepare(config: TrainConfig, device: torch.device = CPU, loaded: Loaded | None = None) -> PreparedRun:
    """Load the data and check everything that can go wrong before anything is spent; write nothing.

    Args:
        config: of the run.
        device: where to train.
        loaded: its data; None: it is loaded now.

    Raises:
        EquidpError: says what is wrong.
    """
    split, encoder = loaded or config.load()
    for each in config.plan.releases:
        each.check_data(split.train)
    config.check_measures(split.test.class_names)
    plan = config.plan.resolve(len(split.train), split.train.group_names)
    with alone():
        unit = split.train.unit
        ledger = Ledger(unit=unit) if config.ledger is None else config.ledger.rehearse(unit)
        trainer = make_trainer(config, plan, split, ledger, device=device)
        return PreparedRun(config, plan, split, encoder, trainer)


def open_ledger(config: TrainConfig, folder: Path, unit: str) -> Ledger:
    """Open the ledger of the dataset, or the run's own, in its folder."""
    if config.ledger is None:
        return Ledger(folder / LEDGER, unit=unit)
    return config.ledger.open(unit)


def make_trainer(
    config: TrainConfig,
    plan: ResolvedPlan,
    split: DataSplit,
    ledger: Ledger | None,
    run: str | None = None,
    callbacks: Sequence[Callback] = (),
    device: torch.device = CPU,
) -> Trainer:
    """The trainer of a configuration and its plan; samples and noise come from the operating system."""
    return build(
        plan,
        split.train,
        weights_seed=config.data.seed,
        device=device,
        engine=config.execution.engine,
        callbacks=callbacks,
        ledger=ledger if ledger is None or run is None else (ledger, run),
    )
