"""Checkpoints: a run that was stopped continues from the last one.

A checkpoint contains the model, the average of its weights, the optimizer, the scheduler and the policy's
state. It also has the run's random id, the number of steps spent and the state of callbacks, but no state of
randomness. A resumed run draws new noise, and steps spent since the checkpoint stay spent. Data of callbacks
and accounts about single examples is saved in a separate folder, `sensitive/`.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import shutil
import signal
import threading
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from equidp._files import write_whole
from equidp._validate import check_number, checked_path
from equidp.errors import CheckpointError, ModelError, TrainingStopped, TrainingWarning, count_text
from equidp.training.optimizers import restore_scheduler
from equidp.training.trainer import Callback, Trainer

SENSITIVE = "sensitive"
"""Folder of files that hold data about single examples."""
_FORMAT = 7
_NAME = re.compile(r"checkpoint-[0-9]{9,}-[0-9a-f]{16}\.pt")
"""Names of checkpoints: with the number of steps and a checksum."""
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""Names of files that `write_whole` has not completed."""
_SHARE_OF_TIME = 0.02
"""Share of training time that saving may take."""
_INDIVIDUAL = "individual"
"""Name of what the Trainer counts of single examples."""

Arrays = Mapping[str, npt.NDArray[Any]]


class Checkpoints(Callback):
    """Saves a run during training and restores it. Pass it to the `Trainer` as the last callback.

    Ctrl-C and SIGTERM end training after the current step: `fit` saves and raises `TrainingStopped`. A second
    signal ends it at once. A checkpoint is replaced only once the next one is complete and on disk. The last
    two are kept, and a new run replaces those of a finished run. With several processes, each has this
    callback: the first saves, and all restore what it reads.

    The state of other callbacks is saved by `Callback.state_dict` and `Callback.sensitive_state_dict`.

    Args:
        folder: folder of the checkpoints, created if missing.
        seconds: seconds between two checkpoints, or more if saving is slow.
        how_to_resume: advice or command for the last line of a stopped run's message.

    Raises:
        SettingError: the folder is neither text nor a Path.
        CheckpointError: the folder cannot be written, or has checkpoints of another, stopped run. Raised
            before any budget is spent.
        ModelError: the state contains more than tensors and plain values, and only these are safe to load.

    Example:
        >>> import tempfile, torch, equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> checkpoints = equidp.Checkpoints(tempfile.mkdtemp())
        >>> trainer = equidp.Trainer(
        ...     model, torch.optim.SGD(model.parameters(), lr=0.1), data, method=equidp.DPSGD(),
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
    ) -> None:
        check_number("[0, inf]", seconds=seconds)
        self.folder, self.seconds, self.how_to_resume = checked_path(folder=folder), seconds, how_to_resume
        self._due = 0.0  # time of the next save
        # Steps after the last one that ended well; None: training is to come.
        self._complete: int | None = None
        self._handlers: dict[int, Any] = {}

    def before_training(self, trainer: Trainer) -> None:
        if trainer.processes.first:
            for stale in self.folder.glob(".*.tmp"):  # of a process that was killed
                if _UNFINISHED.fullmatch(stale.name):
                    stale.unlink(missing_ok=True)
        self._begin(trainer)
        self._catch_signals(trainer)

    def after_step(self, trainer: Trainer) -> None:
        self._complete = trainer.steps_done
        if time.monotonic() > self._due:
            self._write(trainer)

    def after_epoch(self, trainer: Trainer) -> None:
        if (files := self._files()) and _steps(files[-1]) == trainer.steps_done:
            self._write(trainer)  # with what other callbacks did at the end of the epoch

    def after_training(self, trainer: Trainer) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        # A step spent but not completed may have left the model half updated: keep the checkpoint before.
        if trainer.steps_done == self._complete:
            self._write(trainer)

    def save(self, trainer: Trainer) -> None:
        """Save the run now, regardless of `seconds`, for example between two steps of a custom loop.

        Args:
            trainer: trainer with this callback.

        Raises:
            CheckpointError: the last step failed, or the folder cannot be written. The previous checkpoint is
                intact.
        """
        if self._complete is None:
            self._begin(trainer)
        elif self._complete == trainer.steps_done:
            self._write(trainer)
        else:
            raise CheckpointError(
                f"{trainer.steps_done} steps are spent, and {self._complete} complete: the last one failed, "
                "and may have left weights half updated. The checkpoint before is intact.",
                field="steps",
            )

    def restore(self, trainer: Trainer, *, previous: bool = False, missing_ok: bool = False) -> int:
        """Load the last checkpoint into a trainer made like the one that saved it, with the same ledger.

        The trainer continues the saved run under its name in the ledger.

        Args:
            trainer: trainer that has taken no step yet.
            previous: whether to load the checkpoint before the last.
            missing_ok: whether to begin a new run if there is no checkpoint, instead of raising an error.

        Returns:
            Number of steps spent after that checkpoint. They are lost, with a TrainingWarning. The run
            continues with the remaining steps of its plan, and the scheduler skips the lost ones.

        Raises:
            CheckpointError: the checkpoint is missing or damaged. The message says whether the previous one
                is intact.
            SettingError: the trainer has another plan, schedule or average.
            BudgetError: the ledger belongs to another run, or has fewer steps than the checkpoint.
        """

        def load() -> tuple[dict[str, Any], dict[str, Arrays]] | None:
            if missing_ok and not self._files():
                return None
            path, state = self._load(previous)
            names = [_INDIVIDUAL, *_named(trainer)]
            return state, {name: _read_arrays(_sensitive_file(path, name)) for name in names}

        if (found := trainer.processes.from_first(load)) is None:
            return 0
        state, arrays = found
        lost = _restore_state(trainer, state)
        for name, callback in _named(trainer).items():
            if kept := {**state["callbacks"].get(name, {}), **arrays.get(name, {})}:
                callback.load_state_dict(kept)
        if trainer.individual is not None and arrays[_INDIVIDUAL]:
            trainer.individual.load_state_dict(arrays[_INDIVIDUAL], lost)
        if lost:
            warnings.warn(
                f"lost since the last checkpoint, and still spent: {count_text(lost, 'step')}. Training "
                f"continues with the {trainer.steps - trainer.steps_done:,} that are left of its plan.",
                TrainingWarning,
                stacklevel=2,
            )
        return lost

    def delete_sensitive(self) -> None:
        """Delete the saved data about single examples. Call it once their report is made.

        The checkpoints stay. A run resumed from them counts the steps so far in full for every example.
        """
        shutil.rmtree(self.folder / SENSITIVE, ignore_errors=True)

    def steps_kept(self, *, previous: bool = False) -> int:
        """Number of steps in the checkpoint that `restore` would load."""
        return int(self._load(previous)[1]["steps"])

    def _begin(self, trainer: Trainer) -> None:
        if trainer.processes.first:
            self._check_replaceable(trainer)
        self._write(trainer, check=True)
        self._complete = trainer.steps_done

    def _write(self, trainer: Trainer, *, check: bool = False) -> None:
        if not trainer.processes.first:
            return
        began = time.monotonic()
        content = _pack_state(trainer, check=check)
        path = self.folder / f"checkpoint-{trainer.steps_done:09}-{_digest(content)}.pt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, arrays in _sensitive_states(trainer):
                file = _sensitive_file(path, name)
                file.parent.mkdir(exist_ok=True)
                _write_arrays(file, arrays)
            write_whole(path, content)
            self._drop_old(path)
        except OSError as error:
            raise CheckpointError(
                f"no checkpoint can be kept in {os.fspath(self.folder)!r} ({error.strerror}), so training "
                "stops. Make room or make the folder writable, then resume: what was spent is in the ledger, "
                "and the checkpoint before is intact.",
                field="folder",
            ) from error
        ended = time.monotonic()
        self._due = ended + max(self.seconds, (ended - began) / _SHARE_OF_TIME)

    def _check_replaceable(self, trainer: Trainer) -> None:
        """Reject a folder with the last checkpoint of another run that has steps left."""
        state = next(filter(None, map(_unpack_state, reversed(self._files()))), None)
        if state is None or state["run"] == trainer.run_id:
            return
        if 0 < state["steps"] < (planned := state["settings"]["steps"]):
            raise CheckpointError(
                f"{os.fspath(self.folder)!r} has checkpoints of another run, which was stopped "
                f"after {state['steps']} of {planned} steps, and they would be replaced. Go on with "
                "that run (Checkpoints.restore, with its ledger), give another folder, or delete this one.",
                field="folder",
            )

    def _drop_old(self, newest: Path) -> None:
        """Keep the newest and the last one of an earlier step: another of the same step may be damaged."""
        others = [path for path in self._files() if path != newest]
        earlier = [path for path in others if _steps(path) < _steps(newest)]
        for path in set(others) - set(earlier[-1:]):
            path.unlink(missing_ok=True)
        kept = {_suffix(path) for path in self._files()}
        for path in (self.folder / SENSITIVE).glob("*.npz"):
            if not any(path.name.endswith(each) for each in kept):
                path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """Checkpoints in the folder, the last one last. Other files there are not ours to read or delete."""
        found = self.folder.glob("checkpoint-*.pt")
        return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_steps)

    def _load(self, previous: bool) -> tuple[Path, dict[str, Any]]:
        files = self._files()
        if len(files) < 1 + previous:
            raise CheckpointError(
                f"there is no {'earlier ' if previous and files else ''}checkpoint in "
                f"{os.fspath(self.folder)!r}; bring it back, or train again, into another folder: what was "
                "spent stays spent.",
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
            else f"The one before, saved after {before['steps']} steps, is intact: delete the damaged "
            "one to resume from it, or give previous=True in Python."
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


def _named(trainer: Trainer) -> dict[str, Callback]:
    """Callbacks by the names of their classes; a second one of a class by its number too."""
    seen: Counter[str] = Counter()
    named = {}
    for callback in trainer.callbacks:
        name = type(callback).__name__
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name}-{seen[name]}"] = callback
    return named


def _suffix(checkpoint: Path) -> str:
    """End of the names of files in `sensitive/` that belong to a checkpoint."""
    return f"{checkpoint.stem.removeprefix('checkpoint')}.npz"


def _sensitive_file(checkpoint: Path, name: str) -> Path:
    return checkpoint.parent / SENSITIVE / f"{name}{_suffix(checkpoint)}"


def _sensitive_states(trainer: Trainer) -> Iterator[tuple[str, Arrays]]:
    """Yield the records of single examples, by name."""
    if (individual := trainer.individual) is not None:
        individual.count_in_full(trainer.steps_done - individual.steps)  # lost ones
        yield _INDIVIDUAL, individual.sensitive_state_dict()
    for name, callback in _named(trainer).items():
        if arrays := callback.sensitive_state_dict():
            yield name, arrays


def _write_arrays(path: Path, arrays: Arrays) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_whole(path, content.getvalue())


def _read_arrays(path: Path) -> Arrays:
    """Return the arrays of a file, or none if there is no file."""
    if not path.exists():
        return {}
    try:
        with np.load(path) as saved:
            return dict(saved)
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as error:
        raise CheckpointError(
            f"{str(path)!r}, which counts for single examples, is damaged. Bring it back; or resume from the "
            "checkpoint before, with previous=True in Python; or delete it: the steps so far then count "
            "as if everyone had used all of the sensitivity.",
            field="path",
        ) from error


def _restore_state(trainer: Trainer, state: Mapping[str, Any]) -> int:
    """Load what `_pack_state` saved into a trainer of the same run; return the number of lost steps."""
    lost = trainer.count_lost(state)
    trainer.averaging.restore(state["average"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    restore_scheduler(trainer.scheduler, state["scheduler"], lost)
    trainer.model.load_state_dict(state["model"])
    return trainer.restore(state)


def _pack_state(trainer: Trainer, *, check: bool) -> bytes:
    """Return the file of a checkpoint; with `check`, try whether it can be loaded safely."""
    states = {name: callback.state_dict() for name, callback in _named(trainer).items()}
    buffer = io.BytesIO()
    torch.save(
        {
            "format": _FORMAT,
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": None if trainer.scheduler is None else trainer.scheduler.state_dict(),
            "average": trainer.averaging.state(),
            "callbacks": {name: state for name, state in states.items() if state},
            **trainer.state(),
        },
        buffer,
    )
    if check:
        try:
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        except pickle.UnpicklingError as error:
            raise ModelError(
                "the state of model, optimizer, scheduler, policy or callbacks holds more than tensors and "
                f"plain values, so its checkpoint could not be loaded safely ({str(error).splitlines()[0]}). "
                "Keep such objects out of state_dict().",
                field="state",
            ) from error
    return buffer.getvalue()


def _unpack_state(path: Path) -> dict[str, Any] | None:
    """Return the saved state, or None if the file does not match the checksum in its name."""
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
