"""What tests of accounting, predictions and diagnosis run in each of several processes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import equidp
from equidp.errors import EquidpError
from equidp.evaluation.predictions import predict
from equidp.training.processes import processes_here
from support.toy import make_trainer, toy

SETTINGS = {
    "exact": equidp.Individual(1, grid=0.05),
    "held": equidp.Individual(4, grid=0.05),
    "clipping": equidp.Individual(4, clipping=True, grid=0.05),
}
STEPS = 15


class _Stop(equidp.Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def after_step(self, trainer: equidp.Trainer) -> None:
        if trainer.steps_done == self.steps:
            trainer.stop(equidp.errors.TrainingStopped("stopped.", 15))


def _trainer(*callbacks: equidp.Callback, **settings: Any) -> equidp.Trainer:
    given = {"method": equidp.DPSGDF(0.5), "seed": 2, "steps": STEPS, "epochs": None}
    return make_trainer(callbacks=callbacks, **{**given, **settings})


def accounted() -> dict[str, tuple[Any, ...]]:
    """Setting -> (steps by example and cell, by group and cell, weights) in the first process."""
    found = {}
    for name, individual in SETTINGS.items():
        trainer = _trainer(individual=individual)
        trainer.fit()
        if processes_here().first:
            weights = torch.cat([each.detach().flatten() for each in trainer.model.parameters()])
            found[name] = _counts(trainer), trainer.individual.group_counts, weights
    return found


def resumed(folder: Path, until: int) -> dict[str, tuple[int, Any]]:
    """Setting -> (steps lost, steps by example and cell as restored) of runs that go on to a step, and
    stop."""
    return {name: _resumed(folder / name, name, until) for name in ("exact", "held")}


def _resumed(folder: Path, name: str, until: int) -> tuple[int, Any]:
    folder.mkdir(exist_ok=True)
    first, resumes = processes_here().first, any(folder.glob("checkpoint-*"))
    checkpoints = equidp.Checkpoints(folder)
    ledger = equidp.Ledger(folder / "ledger") if first else None
    trainer = _trainer(_Stop(until), checkpoints, ledger=ledger, individual=SETTINGS[name])
    lost, counts = 0, None
    if resumes:
        lost = checkpoints.restore(trainer)
        if first:
            counts = _counts(trainer)
    with suppress(equidp.errors.TrainingStopped, EquidpError):
        trainer.fit()
    if ledger is not None:
        ledger.close()
    return lost, counts


def _counts(trainer: equidp.Trainer) -> Any:
    assert trainer.individual is not None
    trainer.individual.settle()
    return trainer.individual.counts.astype(np.int64)


def refused() -> str:
    """Return the field of the error of a report, which the first process alone makes."""
    trainer = _trainer(individual=SETTINGS["held"])
    trainer.fit()
    try:
        trainer.individual_report(accountant="rdp")
    except EquidpError as error:
        return error.field
    return ""


def everything() -> tuple[Any, ...]:
    """What the functions here find of one run each."""
    found, seen = accounted(), watched()
    return found, refused(), seen


def watched() -> tuple[Any, Any, Any]:
    """Outputs for seven examples, and what a recorder and a diagnosis wrote of a run."""
    record = equidp.RunRecord()
    little = equidp.Effort(batches=3, trace_vectors=4, eigenvalue_products=6, curvature_examples=50)
    diagnosis = equidp.Diagnostics(every=10, effort=little)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    data = toy(61)
    recorder = equidp.EpochRecorder(record, toy(33, seed=1))
    _trainer(diagnosis, recorder, model=model, train=data, batch_size=10, delta=1e-3).fit()
    outputs = predict(model, data.inputs[:7])
    one = predict(model, data.inputs[:1])
    tables = diagnosis.diagnosis
    figures = [each.select_dtypes("number") for each in (tables.sensitive_groups, tables.sensitive_pairs)]
    return torch.cat([outputs, one]), record.table().select_dtypes("number"), figures
