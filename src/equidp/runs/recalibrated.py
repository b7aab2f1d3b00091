"""The recalibration of a run on disk: drawn once, and kept beside the model."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from equidp._files import write_whole
from equidp.errors import DataError
from equidp.kernel.ledger import ReleaseEvent
from equidp.runs import layout
from equidp.training.recalibrated import Recalibration
from equidp.training.recalibration import fit_recalibration
from equidp.training.run import Run
from equidp.training.trainer import Trainer


def recalibrate_run(place: Path, run: Run, trainer: Trainer, noise_multiplier: float | None) -> Run:
    """Return the run with its recalibration: the one that the folder keeps, or one drawn and paid for now.

    A run that was stopped after the draw takes the recalibration that the folder keeps. One that was paid for
    but not kept, drawn or not, stays paid, and another one is drawn and paid for.

    Args:
        place: the run's folder.
        run, trainer: the finished training.
        noise_multiplier: of the fit; None: the run stays as it is.

    Raises:
        DataError: the kept recalibration is damaged or of another run; or missing beside a finished model.
        BudgetError: the fit does not fit into the budget any more.
    """
    if noise_multiplier is None:
        return run
    kept: Recalibration | None = trainer.processes.broadcast_from_first(lambda: _read(place, trainer))
    if kept is not None:
        return _apply_recalibration(kept, run, trainer)
    by = fit_recalibration(run.model, trainer, noise_multiplier)
    if trainer.processes.first:
        content = {**asdict(by), "noise_multiplier": noise_multiplier}
        write_whole(place / layout.RECALIBRATION, (json.dumps(content, indent=2) + "\n").encode())
    return _apply_recalibration(by, run, trainer)


def _apply_recalibration(by: Recalibration, run: Run, trainer: Trainer) -> Run:
    facts = replace(run.facts, recalibrated=True)
    return replace(run, model=by.apply_to(run.model), entries=trainer.ledger.entries, facts=facts)


def kept_in(place: Path) -> bool:
    """Return True if the folder keeps a recalibration."""
    return (place / layout.RECALIBRATION).exists()


def _read(place: Path, trainer: Trainer) -> Recalibration | None:
    path = place / layout.RECALIBRATION
    try:
        content = json.loads(path.read_text())
        kept = Recalibration(
            float(content["scale"]), tuple(map(float, content["shift"])), str(content["payment"])
        )
    except FileNotFoundError as error:
        if not (place / layout.MODEL).exists():
            return None
        raise DataError(
            f"{os.fspath(path)!r} is gone. What it held was released, and paid for, once; bring it back."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{os.fspath(path)!r} is not as equidp wrote it; bring it back.") from error
    spent = (event for each in trainer.ledger.by_session.values() for event in each)
    if kept.payment not in ["", *(event.id for event in spent if isinstance(event, ReleaseEvent))]:
        raise DataError(f"{os.fspath(path)!r} is not what this run's ledger paid for; bring back its own.")
    return kept
