"""A run before its first step: loaded, checked, and begun in a folder with releases paid for and drawn."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from equidp._files import check_folder, sync_folder, write_whole
from equidp._provenance import kernel_digest, versions
from equidp.data.dataset import DataSplit
from equidp.errors import SettingError
from equidp.evaluation.metrics import metric_for
from equidp.ledger.ledger import Ledger
from equidp.runs.config import TrainConfig
from equidp.runs.folder import CONFIG, DRAFT, ENCODER, LEDGER, RunFolder, keep_release
from equidp.runs.own_code import own_code
from equidp.tables.encode import TableEncoder
from equidp.training.build import build
from equidp.training.device import CPU
from equidp.training.processes import alone
from equidp.training.release import Release
from equidp.training.resolved import ResolvedPlan
from equidp.training.trainer import Callback, Trainer

T = TypeVar("T")
Loaded = tuple[DataSplit, TableEncoder | None]
"""Result of `TrainConfig.load`."""


@dataclass(frozen=True)
class PreparedRun:
    """A run that was checked, and has spent only the cost of releases before its first step.

    Attributes:
        config: settings of the run.
        plan: worked out for its method and data.
        split: its data.
        encoder: encoder of the columns, or None for data without columns. If preprocessing is private, it is
            a placeholder made without reading rows until `begin`.
        trainer: trainer of the run, to try it out; None once a release has changed its data or its plan.
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


def prepare(config: TrainConfig, device: torch.device = CPU, loaded: Loaded | None = None) -> PreparedRun:
    """Load the data and check everything that can go wrong before anything is spent; write nothing.

    Args:
        config: configuration of the run.
        device: device for training.
        loaded: its data. None: it is loaded now.

    Raises:
        EquidpError: the message says what is wrong.
    """
    split, encoder = loaded or config.load()
    for each in config.plan.releases:
        each.check_data(split.train)
    metric_for(config.metric, split.test.class_names)
    config.decision.index(split.test.class_names)
    plan = config.plan.resolve(len(split.train), split.train.group_names)
    with alone():
        unit = split.train.unit
        ledger = Ledger(unit=unit) if config.ledger is None else config.ledger.rehearse(unit)
        trainer = make_trainer(config, plan, split, ledger, device=device)
        return PreparedRun(config, plan, split, encoder, trainer)


def make_trainer(
    config: TrainConfig,
    plan: ResolvedPlan,
    split: DataSplit,
    ledger: Ledger | None,
    run: str | None = None,
    callbacks: Sequence[Callback] = (),
    device: torch.device = CPU,
) -> Trainer:
    """Return the trainer of a run; samples and noise come from the operating system."""
    return build(
        plan,
        split.train,
        weights_seed=config.data.seed,
        device=device,
        engine=config.engine,
        callbacks=callbacks,
        ledger=ledger if ledger is None or run is None else (ledger, run),
    )


def open_ledger(config: TrainConfig, folder: Path, unit: str) -> Ledger:
    """Open the ledger of the dataset, or the run's own, in its folder."""
    if config.ledger is None:
        return Ledger(folder / LEDGER, unit=unit)
    return config.ledger.open(unit)


def begin_or_continue(
    config: TrainConfig,
    folder: str | os.PathLike[str],
    device: torch.device = CPU,
    loaded: Loaded | None = None,
) -> PreparedRun | None:
    """Begin a run, unless the folder has a stopped run already, which `train` then continues.

    Returns:
        What `begin` returns, or None for a run that is continued.

    Raises:
        SettingError: the folder holds a stopped run with other settings, or anything else.
        EquidpError: as `prepare` and `begin`.
    """
    if not is_stopped(folder):
        return begin(prepare(config, device, loaded), folder)
    place = RunFolder(folder)
    if json.loads(place.find(CONFIG).read_text()).get("asked_sha256") != _digest(config):
        raise SettingError(
            f"{place} holds a stopped run with other settings. Choose another place for a new run. "
            f"{place.how_to_continue()}",
            field="folder",
        )
    return None


def begin(prepared: PreparedRun, folder: str | os.PathLike[str]) -> PreparedRun:
    """Create the folder with all files for training in it, completely or not at all.

    An empty folder is filled by one rename. Drafts that a killed process left in it are ignored.

    Releases before the first step, such as class counts, are paid for and drawn here, and kept in the folder.
    Copies of the folder reuse them. If a run is stopped before its folder is complete, no folder is left, but
    what was charged to a dataset's ledger stays charged.

    Returns:
        The written run, for `train`.

    Raises:
        SettingError: the folder is not empty, or cannot be made.
        BudgetError: the run does not fit the limit of its ledger. Nothing was drawn.
    """
    check_new(folder)
    target = Path(os.path.realpath(folder))
    there = target.exists()  # it stays: it may be where one works, or a disk of its own
    draft = (target if there else target.parent) / f"{DRAFT}{secrets.token_hex(8)}"
    private, asked = draft / "private", _digest(prepared.config)
    try:
        private.mkdir(parents=True)
        prepared = _pay_and_draw(prepared, private)
        content = {
            "config": prepared.config.to_plain(),
            "plan": prepared.plan.to_plain(),
            "facts": prepared.facts,
            "asked_sha256": asked,
        }
        if prepared.encoder is not None:
            write_whole(private / ENCODER, prepared.encoder.to_json())
        write_whole(private / CONFIG, json.dumps(content, indent=2))
        made, place = (private, target / "private") if there else (draft, target)
        os.replace(made, place)  # of two runs that begin at once, one does
        sync_folder(place.parent)
    except OSError as error:
        raise SettingError(
            f"the folder {os.fspath(target)!r} cannot be made ({error.strerror}); choose another place.",
            field="folder",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return prepared


def _digest(config: TrainConfig) -> str:
    return hashlib.sha256(json.dumps(config.to_plain(), sort_keys=True).encode()).hexdigest()


def _pay_and_draw(prepared: PreparedRun, folder: Path) -> PreparedRun:
    """Return the run with the releases that its data or plan follow from, paid for, drawn and kept."""
    config, plan, trainer = prepared.config, prepared.plan, prepared.trainer
    releases = [each for each in config.plan.releases if each.prepares()]
    if config.ledger is None and not releases:
        return prepared
    assert trainer is not None  # no release has changed data or plan yet
    with open_ledger(config, folder, prepared.split.train.unit) as ledger:
        ledger.check(trainer.event, trainer.steps, beside=plan.releases, delta=plan.delta)

        def pay(release: Release, draw: Callable[[float], T]) -> T:
            drawn = ledger.release(prepared.run, release.name, plan.noise_of(release), draw)
            keep_release(folder, release, drawn)
            return drawn

        whole = prepared
        for each in releases:
            whole = each.prepare(whole, pay)
    return whole


def check_new(folder: str | os.PathLike[str]) -> None:
    """Raise a SettingError unless the folder is empty or can be made, so that a run may begin there."""
    check_folder(folder)
    place = RunFolder(folder)
    if place.path.exists() and any(not name.startswith(DRAFT) for name in os.listdir(place.path)):
        what = f"{place} exists and is not empty"
        if place.is_finished:
            raise SettingError(f"{what}: it holds a finished run. Choose another place.", field="folder")
        if place.has_begun:
            raise SettingError(
                f"{what}: it holds a run that was stopped. Choose another place for a new run. "
                f"{place.how_to_continue()}",
                field="folder",
            )
        raise SettingError(f"{what}. Choose another place.", field="folder")


def is_stopped(folder: str | os.PathLike[str]) -> bool:
    """Return whether the folder holds a run that was stopped, which the same command continues."""
    place = RunFolder(folder)
    return place.has_begun and not place.is_finished
