"""Callbacks whose state belongs to a checkpoint, in private files beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path

from equidp.training.trainer import Callback, Trainer

SENSITIVE = "sensitive-"
"""Prefix of the names of files that hold data about single examples."""


class KeptCallback(Callback, ABC):
    """A callback that `Checkpoints` saves and restores with the model.

    A checkpoint follows from releases alone and may be shown to others. State about single examples may not,
    so a callback writes it to separate files, whose names begin with `SENSITIVE`.
    """

    @abstractmethod
    def save(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        """Write the callback's state for a checkpoint that is about to be written.

        Args:
            trainer: whose step is complete.
            folder: of the checkpoints.
            number: of this callback among the trainer's callbacks that are saved.
            checkpoint: its name, without the ending.

        Raises:
            OSError: the state is not written; no file gets a final name that a checkpoint needs.
        """

    @abstractmethod
    def restore(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        """Load the state that was saved with a checkpoint; the trainer's ledger may hold later steps.

        Raises:
            CheckpointError: the saved state is missing or damaged.
            SettingError, DataError: the state is of a callback with other settings, or of other data.
        """

    @abstractmethod
    def drop(self, folder: Path, number: int, checkpoints: Collection[str]) -> None:
        """Delete all saved state except the state of these checkpoints."""


def kept_callbacks(trainer: Trainer) -> list[tuple[int, KeptCallback]]:
    """Return the trainer's callbacks that are saved and restored, with their numbers."""
    return list(enumerate(each for each in trainer.callbacks if isinstance(each, KeptCallback)))
