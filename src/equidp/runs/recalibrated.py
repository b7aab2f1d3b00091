"""The recalibration of a run on disk: drawn once, and kept beside the model."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from equidp._files import write_whole
from equidp.errors import DataError
from equidp.runs import layout
from equidp.training.recalibrated import Recalibration
from equidp.training.recalibration import fitted
from equidp.training.run import Run
from equidp.training.trainer import Trainer


def recalibrated(place: Path, run: Run, trainer: Trainer, noise_multiplier: float | None) -> Run:
    """Returns the run with its recalibration, which was paid for before the first step; None: it has none.

    A run that was stopped after it was drawn takes what the folder keeps. What was drawn and not kept was
    shown to nobody, and is drawn again.

    Raises:
        DataError: the model is there, and what it was recalibrated by is gone or damaged.
    """
    if noise_multiplier is None:
        return run
    kept: Recalibration | None = trainer.processes.told(lambda: _read(place))
    by = fitted(run.model, trainer, noise_multiplier) if kept is None else kept
    if kept is None and trainer.processes.first:
        content = {**asdict(by), "noise_multiplier": noise_multiplier}
        write_whole(place / layout.RECALIBRATION, (json.dumps(content, indent=2) + "\n").encode())
    return replace(run, model=by.applied(run.model), facts=replace(run.facts, recalibrated=True))


def _read(place: Path) -> Recalibration | None:
    path = place / layout.RECALIBRATION
    try:
        content = json.loads(path.read_text())
        return Recalibration(float(content["scale"]), tuple(map(float, content["shift"])))
    except FileNotFoundError as error:
        if not (place / layout.MODEL).exists():
            return None
        raise DataError(
            f"{os.fspath(path)!r} is gone. What it held was released, and paid for, once; bring it back."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{os.fspath(path)!r} is not as equidp wrote it; bring it back.") from error
