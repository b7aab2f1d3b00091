"""RecalibrationRelease: scale and shifts of the logits, fitted after training."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import final

from torch import nn

from equidp._files import write_whole
from equidp.accounting.planned import RECALIBRATION
from equidp.errors import DataError
from equidp.kernel.ledger import ReleaseEvent
from equidp.runs.releases.release import RunRelease, Training
from equidp.training.recalibration import Recalibration, fit_recalibration
from equidp.training.run import Run


@final
@dataclass(frozen=True)
class RecalibrationRelease(RunRelease):
    """Recalibration of a run whose plan has one.

    A run that was stopped after the draw takes the recalibration that the folder keeps. One that was paid for
    but not kept, drawn or not, stays paid, and another one is drawn and paid for.

    Attributes:
        share: share of epsilon, from the plan.
        private: False for a method without privacy, whose fit has no noise.
    """

    name = RECALIBRATION
    file = "recalibration.json"
    contents = (
        "scale and shifts of the logits, fitted with noise and counted in epsilon; the weights hold them "
        "already."
    )
    after_training = True
    audited = ("training/recalibration.py", "runs/releases/recalibration.py")

    share: float
    private: bool = True

    def epsilon(self, target: float | None) -> float | None:
        return None if target is None or not self.private else self.share * target

    def finish(self, training: Training) -> Run:
        """Return the run with the recalibration that the folder keeps, or one drawn and paid for now.

        Raises:
            DataError: the kept recalibration is damaged, of another run, or missing beside a finished model.
            BudgetError: the fit does not fit into the budget any more.
        """
        trainer, noise = training.trainer, training.noise_multiplier or 0.0
        by = trainer.processes.broadcast_from_first(lambda: self._read(training))
        if by is None:
            by = fit_recalibration(training.run.model, trainer, noise)
            if trainer.processes.first:
                content = {**asdict(by), "noise_multiplier": noise}
                write_whole(training.folder / self.file, (json.dumps(content, indent=2) + "\n").encode())
        run, facts = training.run, replace(training.run.facts, recalibrated=True)
        return replace(run, model=by.apply_to(run.model), entries=trainer.ledger.entries, facts=facts)

    def adapt_model(self, model: nn.Module, classes: int) -> nn.Module:
        return Recalibration.identity(classes).apply_to(model)

    def card_entries(self, epsilon: float | None, folder: Path, units: str) -> dict[str, str]:
        paid = self.epsilon(epsilon) is not None
        cost = f"for a share of {self.share:g} of epsilon" if paid else "without noise"
        return {"recalibration": f"logits fitted after training, {cost}"}

    def _read(self, training: Training) -> Recalibration | None:
        path = training.folder / self.file
        try:
            content = json.loads(path.read_text())
            kept = Recalibration(
                float(content["scale"]), tuple(map(float, content["shift"])), str(content["payment"])
            )
        except FileNotFoundError as error:
            if not training.finished:
                return None
            raise self.missing(training.folder) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{os.fspath(path)!r} is not as equidp wrote it; bring it back.", field=path.name
            ) from error
        spent = (event for each in training.trainer.ledger.by_session.values() for event in each)
        paid = [event.id for event in spent if isinstance(event, ReleaseEvent)]
        if kept.payment not in (paid if training.noise_multiplier else [""]):
            raise DataError(
                f"{os.fspath(path)!r} is not what this run's ledger paid for; bring back its own.",
                field=path.name,
            )
        return kept
