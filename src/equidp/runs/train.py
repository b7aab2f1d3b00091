"""Training in a run's folder, from the first step or the last checkpoint to the model card."""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equidp._extras import require_extra
from equidp._files import write_whole
from equidp.data.dataset import DataSplit
from equidp.errors import BudgetError, CheckpointError, DataError, TrainingWarning
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.kernel.event import STEP
from equidp.kernel.processes import Processes
from equidp.ledger.ledger import Ledger
from equidp.report.guarantee import Guarantee
from equidp.runs.begin import PreparedRun, make_trainer, open_ledger
from equidp.runs.config import TrainConfig
from equidp.runs.folder import (
    CONFIG,
    ENCODER,
    LEDGER,
    MODEL,
    RECORD,
    RUN,
    RunFolder,
    check_sums,
    keep_release,
    number_columns,
    write_sums,
)
from equidp.runs.own_code import check_code
from equidp.runs.owner import warn_of_leak
from equidp.tables.encode import TableEncoder
from equidp.training.checkpoint import Checkpoints
from equidp.training.device import CPU
from equidp.training.processes import processes_here
from equidp.training.record import EpochRecorder, RunRecord
from equidp.training.release import Release
from equidp.training.resolved import ResolvedPlan
from equidp.training.run import Run
from equidp.training.trainer import Callback, Trainer

with require_extra("tables"):
    import safetensors.torch


def train(
    folder: str | os.PathLike[str],
    *,
    callbacks: Sequence[Callback] = (),
    prepared: PreparedRun | None = None,
    on_resume: Callable[[int, int], None] | None = None,
    device: torch.device = CPU,
    trust_code: bool = False,
) -> tuple[Run, Evaluation]:
    """Take the remaining steps of a folder's run, and write model and card.

    Several processes take them together. The first has the folder, and the others need none.

    Args:
        folder: made by `begin`.
        callbacks: watch the run.
        prepared: what `begin` returned. None: the run is read from its folder, and its data loaded.
        on_resume: called with (steps spent, steps lost) when a run is resumed.
        device: device to train on. A run may be resumed on another one.
        trust_code: see `equidp.runs.saved.open_run`.

    Returns:
        The run, and the evaluation that its card shows, in full.

    Raises:
        TrainingStopped: by Ctrl-C or SIGTERM. The run can be resumed.
        EquidpError: the folder, its data, code or ledger does not allow training. The message says why.
    """
    place, processes = RunFolder(folder), processes_here()
    config, plan, facts, encoder = processes.from_first(lambda: _read_settings(place, prepared, trust_code))
    if prepared is not None:
        split = prepared.split
    else:
        check_code(plan, facts, place.path)
        split = place.load_same(config, encoder, facts)
    if not processes.first:
        return _train_beside_first(processes, config, plan, split, place, device)
    with ExitStack() as stack:
        ledger = stack.enter_context(open_own(config, facts["run"], split.train.unit, place))
        place.drop_drafts()
        checkpoints, record = _checkpoints(config, place), RunRecord()
        spent = sum(count for event, count in ledger.entries(facts["run"]) if event.name == STEP)
        resumed = processes.from_first(lambda: spent > 0)
        watchers = [EpochRecorder(record, split.test), *callbacks, _KeepReleases(place), checkpoints]
        trainer = make_trainer(config, plan, split, ledger, facts["run"], watchers, device)
        trainer.released.update(place.read_drawn(plan.plan.releases))
        if resumed:
            with warnings.catch_warnings():
                if on_resume is not None:  # which says it
                    warnings.simplefilter("ignore", TrainingWarning)
                lost = checkpoints.restore(trainer)
            if trainer.run_id != facts["run"]:
                raise CheckpointError(
                    f"the checkpoints in {place} belong to another run, {trainer.run_id}; restore the "
                    f"checkpoints of {facts['run']}.",
                    field="run",
                )
            if on_resume is not None:
                on_resume(trainer.steps_done, lost)
        run = trainer.fit()
        evaluation = evaluate_run(run, split, config)
        warn_of_leak(place, run, evaluation, split.test, encoder)
        ledger.settle()  # the card names the run's last line
        record.save(place.private / RECORD)
        of_releases = [each.file for each in config.plan.releases]
        write_sums(place.private, dict.fromkeys((CONFIG, ENCODER, RECORD, *of_releases)))
        checkpoints.delete_sensitive()
        _write_results(place, run, evaluation, config, plan, facts, ledger)
        run.model.to(device)
    return run, evaluation


def _read_settings(
    place: RunFolder, prepared: PreparedRun | None, trust_code: bool
) -> tuple[TrainConfig, ResolvedPlan, dict[str, Any], TableEncoder | None]:
    """Return settings and encoder of a run, read from its folder unless the caller has them.

    The files of a finished run are checked.
    """
    if prepared is not None:
        return prepared.config, prepared.plan, prepared.facts, prepared.encoder
    config, plan, facts = place.read_settings(trust_code=trust_code)
    if not place.has_begun:
        raise DataError(
            f"{place} is a copy of a run's share/, which cannot go on; take the run's own folder.",
            field="folder",
        )
    if place.is_finished:
        check_sums(place.private)
    return config, plan, facts, place.read_encoder(config)


class _KeepReleases(Callback):
    """Stores the results of releases in the folder of a run, for a resumed run to read."""

    def __init__(self, place: RunFolder) -> None:
        self._folder = place.private

    def after_release(self, trainer: Trainer, release: Release, drawn: Any) -> None:
        keep_release(self._folder, release, drawn)


def _train_beside_first(
    processes: Processes,
    config: TrainConfig,
    plan: ResolvedPlan,
    split: DataSplit,
    place: RunFolder,
    device: torch.device,
) -> tuple[Run, Evaluation]:
    """Take a run's steps in a process other than the first. Only the first has the ledger and files."""
    resumed = processes.from_first(lambda: False)
    checkpoints = _checkpoints(config, place)
    trainer = make_trainer(config, plan, split, None, None, [checkpoints], device)
    if resumed:
        checkpoints.restore(trainer)
    run = trainer.fit()
    return run, evaluate_run(run, split, config)


def evaluate_run(run: Run, split: DataSplit, config: TrainConfig) -> Evaluation:
    """Evaluate the run's model on the test examples."""
    return evaluate(run.model, split.test, metric=config.metric, decision=config.decision)


def _write_results(
    place: RunFolder,
    run: Run,
    evaluation: Evaluation,
    config: TrainConfig,
    plan: ResolvedPlan,
    facts: dict[str, Any],
    ledger: Ledger,
) -> None:
    """Write weights, cards, `run.json` and what was released, in one step."""
    from equidp.runs.cards import write_cards  # not before: it loads matplotlib

    with place.write_results(shared=math.isfinite(run.epsilon())) as folder:
        for each in config.plan.releases:
            if (place.private / each.file).exists():
                shutil.copyfile(place.private / each.file, folder / each.file)
        write_weights(run.model, folder)
        write_cards(place, folder, run, evaluation, config, facts, ledger)
        content = json.dumps(_run_facts(config, plan, facts, run), indent=2)
        write_whole(folder / RUN, content + "\n")


def write_weights(model: nn.Module, folder: Path) -> None:
    """Write the weights of a model as `model.safetensors` into a folder; move the model to the CPU."""
    state = {name: value.contiguous().clone() for name, value in model.cpu().state_dict().items()}
    write_whole(folder / MODEL, safetensors.torch.save(state))


def _run_facts(config: TrainConfig, plan: ResolvedPlan, facts: dict[str, Any], run: Run) -> dict[str, Any]:
    """Return the content of `run.json`: all of a run but paths and the fingerprint of its data."""
    name = Path(config.data.name)
    data = replace(config.data, name=name.name) if name.is_absolute() else config.data
    records = [[asdict(event), count] for event, count in number_columns((*run.entries, *run.not_taken))]
    return {
        "run": facts["run"],
        **Guarantee.of(run).plain(),
        "target_epsilon": config.plan.run_epsilon,
        "entries": records[: len(run.entries)],
        "not_taken": records[len(run.entries) :],
        "config": replace(config, data=data, ledger=None).to_plain(),
        "plan": plan.to_plain(),
        "facts": {name: value for name, value in facts.items() if name != "sensitive_data_sha256"},
    }


def _checkpoints(config: TrainConfig, place: RunFolder) -> Checkpoints:
    seconds = config.checkpoint_seconds
    return Checkpoints(place.private, seconds=seconds, how_to_resume=place.name_way_on())


def open_own(config: TrainConfig, run: str, unit: str, place: RunFolder) -> Ledger:
    """Open the ledger that a run began with.

    Raises:
        BudgetError: its file is not there, or lacks what the folder holds of the run.
    """
    if config.ledger is not None and not config.ledger.path.exists():
        raise _other_ledger(config.ledger.path, place)
    ledger = open_ledger(config, place.private, unit)
    paid = {event.name for event, _ in ledger.entries(run)}
    drawn = [each.name for each in config.plan.releases if (place.private / each.file).exists()]
    if not paid.issuperset(drawn):
        ledger.close()
        raise _other_ledger(place.private / LEDGER if config.ledger is None else config.ledger.path, place)
    return ledger


def _other_ledger(path: Path, place: RunFolder) -> BudgetError:
    return BudgetError(
        f"{os.fspath(path)!r} does not hold what the run in {place} has spent; bring back the ledger that it "
        "began with.",
        field="ledger",
    )
