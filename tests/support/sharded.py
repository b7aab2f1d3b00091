"""What tests of accounting, predictions and diagnosis run in each of several processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import equidp
from equidp.distributed.group import processes_here
from equidp.errors import EquidpError
from equidp.evaluation.predictions import predict
from support.toy import make_trainer, toy

ACCOUNTANTS: dict[str, Callable[[], Any]] = {
    "exact": lambda: equidp.IndividualAccountant(interval=1, grid=0.05),
    "held": lambda: equidp.IndividualAccountant(interval=4, grid=0.05),
    "clipping": lambda: equidp.IndividualClipping(interval=4, grid=0.05),
}
STEPS = 15


class _Stop(equidp.Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def after_step(self, trainer: equidp.Trainer) -> None:
        if trainer.steps_done == self.steps:
            trainer.stop(equidp.errors.TrainingStopped("stopped.", 15))


def _trainer(*callbacks: equidp.Callback, **settings: Any) -> equidp.Trainer:
    given = {"policy": equidp.DPSGDF(0.5), "secure": False, "seed": 2, "steps": STEPS, "epochs": None}
    return make_trainer(callbacks=callbacks, **{**given, **settings})


def accounted() -> dict[str, tuple[Any, ...]]:
    """Accountant -> (steps by example and cell, by group and cell, weights) in the first process."""
    found = {}
    for name, make in ACCOUNTANTS.items():
        accountant = make()
        trainer = _trainer(accountant)
        trainer.fit()
        if processes_here().first:
            weights = torch.cat([each.detach().flatten() for each in trainer.model.parameters()])
            found[name] = _counts(accountant), accountant._counts.group_histories.counts, weights
    return found


def resumed(folder: Path, until: int) -> dict[str, tuple[int, Any]]:
    """Accountant -> (steps lost, steps by example and cell as restored) of runs that go on to a step, and
    stop."""
    return {name: _resumed(folder / name, name, until) for name in ("exact", "held")}


def _resumed(folder: Path, name: str, until: int) -> tuple[int, Any]:
    folder.mkdir(exist_ok=True)
    first = processes_here().first
    accountant, checkpoints = ACCOUNTANTS[name](), equidp.Checkpoints(folder)
    ledger = equidp.LedgerFile(folder / "ledger") if first else None
    trainer = _trainer(accountant, _Stop(until), checkpoints, ledger=ledger)
    lost, counts = 0, None
    if trainer.steps_done:
        lost = checkpoints.restore(trainer)
        if first:
            counts = _counts(accountant)
    with suppress(equidp.errors.TrainingStopped, EquidpError):
        trainer.fit()
    if ledger is not None:
        ledger.close()
    return lost, counts


def _counts(accountant: Any) -> Any:
    accountant._counts.settle()
    return accountant._counts.histories.counts.astype(np.int64)


def refused() -> tuple[str, str]:
    """Return the error of sampled norms, after which the group is left, and the field of that of a report."""
    accountant = ACCOUNTANTS["held"]()
    trainer = _trainer(accountant)
    trainer.fit()
    try:
        accountant.report(trainer, accountant="rdp")
        report = ""
    except EquidpError as error:
        report = error.field
    try:
        _trainer(equidp.IndividualAccountant("sampled")).fit()
        sampled = ""
    except EquidpError as error:
        sampled = str(error)
    return sampled, report


def everything() -> tuple[Any, ...]:
    """What the functions here find of one run each."""
    found, seen = accounted(), watched()
    return found, refused(), seen


def watched() -> tuple[Any, Any, Any]:
    """Outputs for seven examples, and what a recorder and a diagnosis wrote of a run."""
    record = equidp.RunRecord()
    little = equidp.Effort(batches=3, trace_vectors=4, eigenvalue_products=6, curvature_examples=50)
    diagnosis = equidp.Diagnostics(every=10, effort=little, announce=lambda text: None)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    data = toy(61)
    recorder = equidp.EpochRecorder(record, toy(33, seed=1))
    _trainer(diagnosis, recorder, model=model, train=data, batch_size=10, delta=1e-3).fit()
    outputs = predict(model, data.inputs[:7], processes_here())
    one = predict(model, data.inputs[:1], processes_here())
    tables = diagnosis.diagnosis
    figures = [each.select_dtypes("number") for each in (tables.sensitive_groups, tables.sensitive_pairs)]
    return torch.cat([outputs, one]), record.table().select_dtypes("number"), figures
