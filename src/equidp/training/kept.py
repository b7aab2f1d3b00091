"""Callbacks whose state belongs to a checkpoint, in private files beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path

from equidp.training.trainer import Callback, Trainer

SENSITIVE = "sensitive-"
"""What names of files that tell of single examples begin with."""


class KeptCallback(Callback, ABC):
    """A callback that `Checkpoints` saves and restores with the model.

    A checkpoint follows from releases alone and may be shown to others; what a callback knows of single
    examples may not, so it goes into files of its own, whose names begin with `SENSITIVE`.
    """

    @abstractmethod
    def save(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        """Writes what belongs to a checkpoint that is about to be written.

        Args:
            trainer: whose step is complete.
            folder: of the checkpoints.
            number: of this callback among those of the trainer that are kept.
            checkpoint: its name, without the ending.

        Raises:
            OSError: nothing was written under a final name that a checkpoint needs.
        """

    @abstractmethod
    def restore(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        """Puts back what was saved with a checkpoint; the trainer's ledger may hold later steps.

        Raises:
            CheckpointError: what was saved is missing or damaged.
            SettingError, DataError: it is of a callback with other settings, or of other data.
        """

    @abstractmethod
    def drop(self, folder: Path, number: int, checkpoints: Collection[str]) -> None:
        """Deletes what was saved, but for what belongs to these checkpoints."""


def kept(trainer: Trainer) -> list[tuple[int, KeptCallback]]:
    """Returns a trainer's callbacks that are saved and restored, with their numbers."""
    return list(enumerate(each for each in trainer.callbacks if isinstance(each, KeptCallback)))
