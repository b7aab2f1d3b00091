"""TrainingLossRelease: the mean training loss after each epoch, for dashboards and the card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from equidp._files import write_whole
from equidp.accounting.planned import TRAINING_LOSS
from equidp.runs.releases.release import RunRelease, Training
from equidp.training.run import Run
from equidp.training.trainer import Callback, Trainer


class _KeepLosses(Callback):
    """Writes each loss that was released to a file, beside those of earlier processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def after_epoch(self, trainer: Trainer) -> None:
        kept = json.loads(self._path.read_text()) if self._path.exists() else []
        losses = {row["step"]: row["training_loss"] for row in kept} | trainer.training_losses
        rows = [
            {"step": step, "epoch": round(step * trainer.sample_rate, 3), "training_loss": losses[step]}
            for step in sorted(losses)
        ]
        _write_rows(self._path, rows)


def _write_rows(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    write_whole(path, (json.dumps(rows, indent=2) + "\n").encode())


@final
@dataclass(frozen=True)
class TrainingLossRelease(RunRelease):
    """Mean training loss after each epoch, of a run whose plan has it; the Trainer pays for it and draws it.

    Each is in the folder before the next step; one that was drawn as the process was killed is lost.

    Attributes:
        share: share of epsilon, from the plan.
        bound: of each example's loss.
        private: False for a method without privacy, whose loss is exact.
    """

    name = TRAINING_LOSS
    file = "training-loss.json"
    contents = "mean training loss after each epoch, released with noise and counted in epsilon."
    after_training = True
    between_steps = True
    audited = ("training/training_loss.py",)

    share: float
    bound: float
    private: bool = True

    def epsilon(self, target: float | None) -> float | None:
        return None if target is None or not self.private else self.share * target

    def callbacks(self, folder: Path | None) -> Sequence[Callback]:
        return () if folder is None else (_KeepLosses(folder / self.file),)

    def finish(self, training: Training) -> Run:
        """Return the run, whose losses the folder keeps: none where kills lost each as it was drawn.

        Raises:
            DataError: the file is gone from the folder of a finished run.
        """
        if training.trainer.processes.first and not self.is_kept_in(training.folder):
            if training.finished:
                raise self.missing(training.folder)
            _write_rows(training.folder / self.file, ())
        return training.run

    def card_entries(self, epsilon: float | None, folder: Path, units: str) -> dict[str, str]:
        paid = self.epsilon(epsilon) is not None
        cost = f"for a share of {self.share:g} of epsilon" if paid else "without noise"
        return {
            "training loss": f"mean over the training {units} after each epoch, each loss clipped to "
            f"{self.bound:g}, {cost}"
        }
