"""Checkpoints: a run that was stopped continues from the last one.

A checkpoint holds the model, the average of its weights, the optimizer, the scheduler, the policy's state,
the run's random id and the number of steps spent, but no state of randomness: a resumed run draws fresh
noise, and steps spent since stay spent. What callbacks know of single examples is saved beside it, in files
named "sensitive-".
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from equidp._files import write_whole
from equidp._validate import check_number, checked_path
from equidp.errors import CheckpointError, ModelError, TrainingStopped
from equidp.training.optimizers import restore_scheduler
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


_FORMAT = 5
_NAME = re.compile(r"checkpoint-[0-9]{9,}-[0-9a-f]{16}\.pt")
"""Names of checkpoints: with the number of steps and a checksum."""
_SHARE_OF_TIME = 0.02
"""Share of training time that saving may take."""


class Checkpoints(Callback):
    """Saves a run while it trains, and restores it. Give it to the `Trainer` as the last callback.

    Ctrl-C and SIGTERM end training after the current step: `fit` saves and raises `TrainingStopped`. A second
    signal ends it at once. A checkpoint is replaced only when the next one is complete and on disk; the last
    two are kept, and a new run replaces those of a finished one. Each of several processes has this callback:
    the first saves, and all restore what it reads.

    Args:
        folder: of the checkpoints; created if missing.
        seconds: between two checkpoints; longer where saving is slow.
        how_to_resume: advice, or a command, on the last line of a stopped run's message.
        after_saving: called with the trainer after each save, to save what belongs to the same step.

    Raises:
        SettingError: the folder is no text and no Path.
        CheckpointError: the folder cannot be written, or has checkpoints of another run that was stopped;
            before any budget is spent.
        ModelError: the state is more than tensors and plain values, all that is safe to load.

    Example:
        >>> import tempfile, torch, equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> checkpoints = equidp.Checkpoints(tempfile.mkdtemp())
        >>> trainer = equidp.Trainer(
        ...     model, torch.optim.SGD(model.parameters(), lr=0.1), data, policy=equidp.DPSGD(),
        ...     batch_size=32, steps=2, noise_multiplier=2.0, delta=1e-3, callbacks=[checkpoints],
        ... )
        >>> run = trainer.fit()
        >>> checkpoints.steps_kept()
        2
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        seconds: float = 30.0,
        how_to_resume: str = "make the Trainer again with the same ledger, call Checkpoints.restore, and fit",
        after_saving: Callable[[Trainer], None] | None = None,
    ) -> None:
        check_number("[0, inf]", seconds=seconds)
        self.folder, self.seconds, self.how_to_resume = checked_path(folder=folder), seconds, how_to_resume
        self._after_saving = after_saving
        self._saved_at = self._saving_took = 0.0
        self._complete = self._saved = -1
        self._run = ""  # whose checkpoints are in the folder
        self._failed = False
        self._handlers: dict[int, Any] = {}

    def before_training(self, trainer: Trainer) -> None:
        if trainer.processes.first:
            for stale in self.folder.glob(".checkpoint-*.tmp"):
                stale.unlink(missing_ok=True)
        self._complete, self._failed = trainer.steps_done, False
        self._save(trainer)
        self._catch_signals(trainer)

    def after_step(self, trainer: Trainer) -> None:
        self._complete = trainer.steps_done
        if time.monotonic() - self._saved_at > max(self.seconds, self._saving_took / _SHARE_OF_TIME):
            self._save(trainer)

    def after_training(self, trainer: Trainer) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        # A step spent but not completed may have left the model half updated: keep the checkpoint before.
        if trainer.steps_done == self._complete and not self._failed:
            self._save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Save the run now, whatever `seconds` says: between two steps of a loop of your own, say.

        Args:
            trainer: that has this callback. Nothing is written where its last step is saved already.

        Raises:
            CheckpointError: a sample was drawn and its step is not complete, so that weights may be half
                updated; or the folder cannot be written. The checkpoint before is intact.
        """
        complete = trainer.steps_at_start if self._complete == -1 else self._complete
        if complete != trainer.steps_done:
            raise CheckpointError(
                f"{trainer.steps_done} steps are spent, and {complete} complete; save after "
                "trainer.step(batch), before the next batch is drawn.",
                field="steps",
            )
        self._save(trainer)

    def restore(self, trainer: Trainer, *, previous: bool = False) -> int:
        """Load the last checkpoint into a trainer made like the one that saved it, with the same ledger.

        Args:
            trainer: not trained yet.
            previous: load the checkpoint before the last.

        Returns:
            Number of steps spent after that checkpoint. They are lost: the run continues with the remaining
            steps of its plan, and the scheduler is moved past the lost ones.

        Raises:
            CheckpointError: there is none, or it is damaged; says whether the one before is intact.
            SettingError: the trainer has another plan, schedule or average.
            BudgetError: the ledger is another run's, or has fewer steps than the checkpoint.
            DataError: an accountant's histories are of other data.
        """
        path, state = trainer.processes.broadcast_from_first(lambda: self._load(previous))
        lost = restore_state(trainer, state)
        self._run, self._saved = trainer.ledger.run_id, -1
        for number, callback in kept_callbacks(trainer):
            callback.restore(trainer, self.folder, number, path.stem)
        return lost

    def delete_sensitive(self, trainer: Trainer) -> None:
        """Delete what was saved of single examples; call it once their report is made.

        The checkpoints stay. A run that is resumed from them counts the steps so far at their worst.
        """
        for number, callback in kept_callbacks(trainer) if trainer.processes.first else ():
            callback.drop(self.folder, number, ())

    def steps_kept(self, *, previous: bool = False) -> int:
        """Number of steps spent before the checkpoint that `restore` would load."""
        return int(self._load(previous)[1]["steps"])

    def _save(self, trainer: Trainer) -> None:
        if not trainer.processes.first:
            return
        if trainer.ledger.run_id != self._run:
            self._check_replaceable(trainer)
            self._run, self._saved = trainer.ledger.run_id, -1
        if trainer.steps_done == self._saved:
            return
        began = time.monotonic()
        content = _pack_state(trainer, check=self._saved < 0)
        path = self.folder / f"checkpoint-{trainer.steps_done:09}-{_digest(content)}.pt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for number, callback in kept_callbacks(trainer):
                callback.save(trainer, self.folder, number, path.stem)
            write_whole(path, content)
            self._drop_old(path)
            for number, callback in kept_callbacks(trainer):
                callback.drop(self.folder, number, {each.stem for each in self._files()})
        except OSError as error:
            self._failed = True
            raise CheckpointError(
                f"no checkpoint can be kept in {os.fspath(self.folder)!r} ({error.strerror}), so training "
                "stops. Make room or make the folder writable, then resume: what was spent is in the ledger, "
                "and the checkpoint before is intact.",
                field="folder",
            ) from error
        self._saved = trainer.steps_done
        if self._after_saving is not None:
            self._after_saving(trainer)
        self._saved_at = time.monotonic()
        self._saving_took = self._saved_at - began

    def _check_replaceable(self, trainer: Trainer) -> None:
        """Refuse a folder with the last checkpoint of another run that has steps left."""
        state = next(filter(None, map(_unpack_state, reversed(self._files()))), None)
        if state is None or state["run"] == trainer.ledger.run_id:
            return
        if 0 < state["steps"] < state["planned"]:
            raise CheckpointError(
                f"{os.fspath(self.folder)!r} has checkpoints of another run, which was stopped "
                f"after {state['steps']} of {state['planned']} steps, and they would be replaced. Go on with "
                "that run (Checkpoints.restore, with its ledger), give another folder, or delete this one.",
                field="folder",
            )

    def _drop_old(self, newest: Path) -> None:
        """Keep the newest and the last one of an earlier step: another of the same step may be damaged."""
        others = [path for path in self._files() if path != newest]
        earlier = [path for path in others if _steps(path) < _steps(newest)]
        for path in set(others) - set(earlier[-1:]):
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """Checkpoints in the folder, the last one last; other files there are not ours to read or delete."""
        found = self.folder.glob("checkpoint-*.pt")
        return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_steps)

    def _load(self, previous: bool) -> tuple[Path, dict[str, Any]]:
        files = self._files()
        if len(files) < 1 + previous:
            raise CheckpointError(
                f"there is no {'earlier ' if previous and files else ''}checkpoint in "
                f"{os.fspath(self.folder)!r}; expected the folder of an earlier run.",
                field="folder",
            )
        chosen = files[-1 - previous]
        state = _unpack_state(chosen)
        if state is not None:
            return chosen, state
        before = _unpack_state(files[-2]) if len(files) > 1 and not previous else None
        offer = (
            "No earlier one is intact: train again, into another folder; what was spent stays spent."
            if before is None
            else f"The one before, saved after {before['steps']} steps, is intact: resume from it with "
            "previous=True (--previous)."
        )
        raise CheckpointError(
            f"the checkpoint {os.fspath(chosen)!r} is damaged: it does not match its checksum. {offer}",
            field="checkpoint",
        )

    def _catch_signals(self, trainer: Trainer) -> None:
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(number: int, frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            stopped = TrainingStopped(f"stopped by {name}. To continue:\n{self.how_to_resume}", number)

            def at_once(*_: Any) -> None:
                raise stopped

            signal.signal(number, at_once)
            trainer.stop(stopped)

        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, stop)


def _steps(path: Path) -> int:
    return int(path.name.split("-")[1])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def trainer_state(trainer: Trainer) -> dict[str, Any]:
    """Tensors and plain values that `restore_state` reads."""
    return {
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": None if trainer.scheduler is None else trainer.scheduler.state_dict(),
        "average": trainer.averaging.state(),
        **trainer.state(),
    }


def restore_state(trainer: Trainer, state: Mapping[str, Any]) -> int:
    """Load what `trainer_state` returned into a trainer of the same run; return the number of lost steps.

    Raises:
        SettingError, BudgetError: as `Trainer.restore`; or the trainer has another schedule or average.
    """
    lost = trainer.count_lost(state)
    trainer.averaging.restore(state["average"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    restore_scheduler(trainer.scheduler, state["scheduler"], lost)
    trainer.model.load_state_dict(state["model"])
    return trainer.restore(state)


def _pack_state(trainer: Trainer, *, check: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, "planned": trainer.steps, **trainer_state(trainer)}, buffer)
    if check:
        try:
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        except pickle.UnpicklingError as error:
            raise ModelError(
                "the state of model, optimizer, scheduler or policy holds more than tensors and plain "
                f"values, so its checkpoint could not be loaded safely ({str(error).splitlines()[0]}). Keep "
                "such objects out of state_dict().",
                field="state",
            ) from error
    return buffer.getvalue()


def _unpack_state(path: Path) -> dict[str, Any] | None:
    """Return the saved state; None if the file does not match the checksum in its name."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {os.fspath(path)!r} cannot be read ({error.strerror}).",
            field="checkpoint",
        ) from error
    if _digest(content) != path.stem.rsplit("-", 1)[1]:
        return None
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if state["format"] != _FORMAT:
        raise CheckpointError(
            f"the checkpoint {os.fspath(path)!r} has format {state['format']}, and this version of equidp "
            f"reads format {_FORMAT}; go on with the version that wrote it.",
            field="format",
        )
    return state
