"""Folder of a run before its first step: settings, ledger, and releases that were paid for and drawn."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from equidp._files import check_folder, sync_folder, write_whole
from equidp.data import DataSplit
from equidp.errors import SettingError
from equidp.evaluation.predictions import Decision
from equidp.ledger.ledger import Ledger
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.folder import CONFIG, DRAFT, ENCODER, RunFolder, keep_release
from equidp.runs.prepare import Loaded, PreparedRun, open_ledger, prepare
from equidp.tables.encode import TableEncoder
from equidp.training.device import CPU
from equidp.training.release import Release
from equidp.training.resolved import ResolvedPlan

T = TypeVar("T")


@dataclass(frozen=True)
class Beginning:
    """Parts of a run that releases before the Trainer read, and return changed.

    Attributes:
        data: with its source, and the seed of its split.
        split: the data as it is trained on.
        encoder: of its columns, if the run keeps one.
        plan: to train by.
        decision: of two classes, see `TrainConfig.decision`.
        ledger, run: that releases are charged to, and the name of the run.
        folder: that keeps what was drawn.
    """

    data: RunData
    split: DataSplit
    encoder: TableEncoder | None
    plan: ResolvedPlan
    decision: Decision
    ledger: Ledger
    run: str
    folder: Path

    def release(self, release: Release, draw: Callable[[float], T]) -> T:
        """Pay for a release, draw it by its noise multiplier, and keep it; return what was drawn."""
        drawn = self.ledger.release(self.run, release.name, self.plan.noise_of(release), draw)
        keep_release(self.folder, release, drawn)
        return drawn


def begin_or_continue(
    config: TrainConfig,
    folder: str | os.PathLike[str],
    device: torch.device = CPU,
    loaded: Loaded | None = None,
) -> PreparedRun | None:
    """Begin a run, unless the folder holds it already and it was stopped: `train` then goes on.

    Args:
        config: of the run.
        folder: new, empty, or of the same run.
        device, loaded: see `prepare`.

    Returns:
        What `begin` returns; None for a run that goes on.

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
    """Make the folder with all files that training in it needs; whole or not at all.

    An empty folder is filled by one rename. Drafts that a killed process left in it are ignored.

    Releases before the first step, such as class counts, are paid for and drawn here, and kept in the folder;
    copies of the folder reuse them. A run that is stopped before its folder is complete leaves none: what a
    ledger of the dataset was charged stays.

    Returns:
        The run as it was written, for `train`.

    Raises:
        SettingError: the folder is not empty, or cannot be made.
        BudgetError: the run does not fit the limit of its ledger; nothing was drawn.
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
    """Return the run with the releases that its data or plan follow from, paid for and drawn."""
    config, plan, unit = prepared.config, prepared.plan, prepared.split.train.unit
    releases = [each for each in config.plan.releases if each.prepares()]
    if config.ledger is None and not releases:
        return prepared
    trainer = prepared.trainer
    assert trainer is not None  # no release has changed data or plan yet
    with open_ledger(config, folder, unit) as ledger:
        ledger.check(trainer.event, trainer.steps, beside=plan.releases, delta=plan.delta)
        begun = whole = Beginning(
            config.data,
            prepared.split,
            prepared.encoder,
            plan,
            config.decision,
            ledger,
            prepared.run,
            folder,
        )
        for each in releases:
            begun = each.prepare(begun)
    same = begun.split is whole.split and begun.plan is whole.plan
    return replace(
        prepared,
        config=config if begun.decision == whole.decision else config.with_decision(begun.decision),
        plan=begun.plan,
        split=begun.split,
        encoder=begun.encoder,
        trainer=trainer if same else None,
    )


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
