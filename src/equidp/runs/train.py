"""A run's folder: everything that `equidp train` keeps; `layout.FILES` lists it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equidp._extras import require_extra
from equidp._files import write_whole
from equidp.data.dataset import DataSplit
from equidp.distributed.group import processes_here
from equidp.errors import BudgetError
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.kernel.ledger import Ledger, ReleaseEvent, is_step
from equidp.ledger.file import LedgerFile
from equidp.ledger.format import read_ledger
from equidp.runs import layout
from equidp.runs.cards import write_cards
from equidp.runs.config import TrainConfig
from equidp.runs.prepare import PreparedRun, make_trainer
from equidp.runs.releases.release import RunRelease, Training
from equidp.tables.encode import TableEncoder
from equidp.training.checkpoint import Checkpoints
from equidp.training.device import CPU
from equidp.training.plan import ResolvedPlan
from equidp.training.record import EpochRecorder, RunRecord
from equidp.training.run import Run
from equidp.training.trainer import Callback, Trainer

with require_extra("tables"):
    import safetensors.torch


def train(
    folder: str | os.PathLike[str],
    *,
    previous: bool = False,
    callbacks: Sequence[Callback] = (),
    prepared: PreparedRun | None = None,
    on_resume: Callable[[int, int], None] | None = None,
    device: torch.device = CPU,
    trust_code: bool = False,
) -> tuple[Run, Evaluation]:
    """Take the remaining steps of a folder's run, and write model and card.

    Several processes take them together; the first has the folder, and the others need none.

    Args:
        folder: made by `begin`.
        previous: resume from the checkpoint before the last.
        callbacks: watch the run.
        prepared: what `begin` returned; None: the run is read from its folder, and its data loaded.
        on_resume: called with (steps spent, steps lost) when a run is resumed.
        device: to train on; a run may be resumed on another one.
        trust_code: see `equidp.runs.saved.open_run`.

    Returns:
        The run, and the evaluation that its card shows, in full.

    Raises:
        TrainingStopped: by Ctrl-C or SIGTERM; the run can be resumed.
        EquidpError: the folder, its data, code or budget does not allow training; the message says why.
    """
    place, processes = Path(folder), processes_here()
    config, plan, facts, encoder = processes.broadcast_from_first(
        lambda: _read_settings(place, prepared, trust_code)
    )
    if prepared is not None:
        split = prepared.split
    else:
        layout.check_code(plan, facts, place)
        split = layout.load_same(config, encoder, facts, place)
    if not processes.first:
        return _train_beside_first(config, plan, split, place, previous, device)
    with ExitStack() as stack:
        ledger = stack.enter_context(LedgerFile(place / layout.LEDGER, run=config.name))
        for stale in place.glob(".*.tmp"):  # of a killed process: the ledger's lock keeps running ones out
            stale.unlink(missing_ok=True)
        budget = None
        if config.budget is not None:
            # Before the budget is opened, which would make an empty one in the place of one that is gone.
            check_budget_of_run(config.budget.path, facts.get("budget_id", ""), place)
            budget = stack.enter_context(config.budget.open(config.name))
        checkpoints = _checkpoints(config, place, lambda _: record.save(place / layout.RECORD))
        account: Ledger = ledger if budget is None else budget.ledger(ledger)
        if budget is not None:
            budget.for_data(split.train.source, split.train.unit)
        spent = sum(count for event, count in ledger.entries if is_step(event))
        resumed = processes.broadcast_from_first(lambda: spent > 0)
        record = _read_record(place, checkpoints.steps_kept(previous=previous)) if resumed else _new_record()
        releases, events = _releases_after_training(config), config.release_events(plan.delta)
        watchers = [
            *_callbacks_of(releases, place),
            EpochRecorder(record, split.test),
            *callbacks,
            checkpoints,
        ]
        owed = [each.name for each in releases if each.name in events and not each.is_kept_in(place)]
        account.promise([(events[name], 1) for name in owed])
        trainer = None if prepared is None else prepared.trainer
        alone = processes.count == 1 and prepared is not None and prepared.device == device
        if alone and trainer is not None and not trainer.steps_done:
            beyond = config.execution.beyond_budget
            trainer.attach(account, budget, beyond_budget=beyond, callbacks=watchers)
        else:
            trainer = make_trainer(config, plan, split, account, budget, watchers, device)
        if resumed:
            lost = checkpoints.restore(trainer, previous=previous)
            if on_resume is not None:
                on_resume(trainer.steps_done, lost)
        run = _finish(trainer, releases, events, place)
        evaluation = evaluate_run(run, split, config)
        record.save(place / layout.RECORD)
        account.settle()  # the card names the ledger's last line
        run = replace(run, entries=ledger.entries)
        write_weights(run.model, place)
        run.model.to(device)
        for name in (layout.MANIFEST, layout.GIVEN):  # until the cards match the files beside them
            (place / name).unlink(missing_ok=True)
        write_cards(place, run, evaluation, config, facts, ledger.check, budget)
        checkpoints.delete_sensitive(trainer)
        layout.write_last(place, config, plan, facts, run.entries)
    return run, evaluation


def _read_settings(
    place: Path, prepared: PreparedRun | None, trust_code: bool
) -> tuple[TrainConfig, ResolvedPlan, dict[str, Any], TableEncoder | None]:
    """Return settings and encoder of a run, read from its folder unless the caller has them.

    The files of a finished run are checked.
    """
    if prepared is not None:
        return prepared.config, prepared.plan, prepared.facts, prepared.encoder
    config, plan, facts = layout.read_config(place, trust_code=trust_code)
    if (place / layout.MANIFEST).exists():
        layout.check_files(place, config)
    return config, plan, facts, layout.read_encoder(place, config)


def _releases_after_training(config: TrainConfig) -> list[RunRelease]:
    return [each for each in config.all_releases if each.after_training]


def _callbacks_of(releases: Sequence[RunRelease], folder: Path | None) -> list[Callback]:
    return [callback for each in releases for callback in each.callbacks(folder)]


def _finish(
    trainer: Trainer, releases: Sequence[RunRelease], events: Mapping[str, ReleaseEvent], place: Path
) -> Run:
    """Take the steps that are left and draw the releases after them."""
    run, finished = trainer.fit(), (place / layout.MODEL).exists()
    for each in releases:
        noise = events[each.name].noise_multiplier if each.name in events else None
        run = each.finish(Training(place, run, trainer, noise, finished))
    return run


def _train_beside_first(
    config: TrainConfig,
    plan: ResolvedPlan,
    split: DataSplit,
    place: Path,
    previous: bool,
    device: torch.device,
) -> tuple[Run, Evaluation]:
    """Take a run's steps in a process other than the first, which alone has ledger, budget and files."""
    resumed = processes_here().broadcast_from_first(lambda: False)
    releases, checkpoints = _releases_after_training(config), _checkpoints(config, place)
    watchers = [*_callbacks_of(releases, None), EpochRecorder(_new_record(), split.test), checkpoints]
    trainer = make_trainer(config, plan, split, None, None, watchers, device)
    if resumed:
        checkpoints.restore(trainer, previous=previous)
    run = _finish(trainer, releases, config.release_events(plan.delta), place)
    return run, evaluate_run(run, split, config)


def evaluate_run(run: Run, split: DataSplit, config: TrainConfig) -> Evaluation:
    """Evaluate the run's model on the test examples; each process predicts a part of them."""
    here = processes_here()
    metric, decision = config.measures.metric, config.decision
    return evaluate(run.model, split.test, metric=metric, decision=decision, processes=here)


def write_weights(model: nn.Module, place: Path) -> None:
    """Write the weights of a run's model into its folder; move the model to the CPU."""
    state = {name: value.contiguous().clone() for name, value in model.cpu().state_dict().items()}
    write_whole(place / layout.MODEL, safetensors.torch.save(state))


def _checkpoints(
    config: TrainConfig, place: Path, after_saving: Callable[[Trainer], None] | None = None
) -> Checkpoints:
    how = layout.resume_command(place)
    seconds = config.execution.checkpoint_seconds
    return Checkpoints(place, seconds=seconds, how_to_resume=how, after_saving=after_saving)


def check_budget_of_run(budget: Path, began_with: str, place: Path) -> None:
    """Raise a BudgetError unless the file is the budget that the run began with, or a copy of it."""
    if not os.path.exists(budget) or read_ledger(budget).facts["id"] != began_with:
        raise BudgetError(
            f"{os.fspath(budget)!r} is not the budget that the run in {os.fspath(place)!r} began with; bring "
            "back that file. An older copy of it will do: it is charged what the run spent since.",
            field="budget",
        )


def _new_record() -> RunRecord:
    """Empty record with a salt, so that its checksum confirms no guess of the exact values in it."""
    return RunRecord({"salt": layout.new_salt()})


def _read_record(place: Path, steps: int) -> RunRecord:
    """Record up to a checkpoint; later steps are taken again."""
    path = place / layout.RECORD
    if not path.exists():
        return _new_record()
    record = RunRecord.load(path)
    rows = [row for row in record.table().to_dict("records") if row["step"] <= steps]
    return RunRecord(record.settings, rows)
