"""Callbacks that measure a run for Yu et al.'s figures, kept with its checkpoints: for public data alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, final
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import torch

from equidp import CheckpointError, GroupedDataset, Trainer
from equidp.engines import dataset_norms
from equidp.extend import write_whole
from equidp.individual.histories import Histories
from equidp.individual.step_counts import current_shares
from equidp.kernel.inputs import taken
from equidp.training.assemble import PART
from equidp.training.checkpoint import SENSITIVE, KeptCallback

Arrays = dict[str, npt.NDArray[Any]]
_NAME = f"{SENSITIVE}watched-"
COMPARED = (0.5, 3.0)
"""Passes an epoch of the estimates that are compared with exact values, beside the run's own."""


class _KeptArrays(KeptCallback):
    """A callback whose state is a few arrays, in a file for each checkpoint."""

    @abstractmethod
    def _arrays(self) -> Arrays:
        """The state after the steps so far."""

    @abstractmethod
    def _put_back(self, arrays: Mapping[str, npt.NDArray[Any]], lost: int) -> None:
        """Sets the state; `lost` steps were spent after it."""

    def save(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        file = BytesIO()
        np.savez(file, allow_pickle=False, steps=trainer.steps_done, **self._arrays())
        write_whole(folder / f"{_NAME}{number}-{checkpoint}.npz", file.getvalue())

    def restore(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        path = folder / f"{_NAME}{number}-{checkpoint}.npz"
        try:
            with np.load(path) as arrays:
                self._put_back(arrays, trainer.steps_done - int(arrays["steps"]))
        except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
            raise CheckpointError(
                f"{str(path)!r} is missing or damaged ({error}); delete {str(folder)!r}, and the run begins "
                "from the start."
            ) from error

    def drop(self, folder: Path, number: int, checkpoints: Collection[str]) -> None:
        for path in folder.glob(f"{_NAME}{number}-*.npz"):
            if path.stem.removeprefix(f"{_NAME}{number}-") not in checkpoints:
                path.unlink(missing_ok=True)


@final
class HeldExamples(_KeptArrays):
    """Exact histories of a few examples, and those from norms taken less often: estimates (Yu et al., 3.3).

    Args:
        data: that the run trains on.
        count: how many examples.
        per_epoch: how often an estimate takes norms, in passes an epoch; one estimate for each.

    Attributes:
        indices: of the examples, [count].
    """

    def __init__(self, data: GroupedDataset, count: int, per_epoch: tuple[float, ...] = ()) -> None:
        self.indices = torch.from_numpy(
            np.random.default_rng(0).choice(len(data), min(count, len(data)), replace=False)
        )
        self._inputs, self._targets = taken((data.inputs, data.targets), self.indices)
        self._groups = data.groups[self.indices].numpy()
        self._per_epoch = per_epoch
        self._histories = [Histories(len(self.indices)) for _ in (None, *per_epoch)]
        self._norms = [np.empty(0) for _ in self._histories]

    @property
    def exact(self) -> Histories:
        """From norms that are taken before every step."""
        return self._histories[0]

    @property
    def estimates(self) -> dict[float, Histories]:
        """From norms that are taken so many times an epoch."""
        return dict(zip(self._per_epoch, self._histories[1:], strict=True))

    def before_training(self, trainer: Trainer) -> None:
        self._every = [1, *(max(1, round(1 / (trainer.sample_rate * each))) for each in self._per_epoch)]
        if not len(self._norms[0]):
            self._norms = [self._take_norms(trainer)] * len(self._histories)

    def after_step(self, trainer: Trainer) -> None:
        for norms, histories in zip(self._norms, self._histories, strict=True):
            shares = current_shares(trainer.policy, trainer.policy_state, norms, self._groups)
            histories.add(histories.cells(shares))
        now = self._take_norms(trainer)
        self._norms = [
            norms if trainer.steps_done % every else now
            for norms, every in zip(self._norms, self._every, strict=True)
        ]

    def _take_norms(self, trainer: Trainer) -> npt.NDArray[np.float64]:
        norms = dataset_norms(trainer.engine, self._inputs, self._targets, PART)
        return np.asarray(norms.double())

    def _arrays(self) -> Arrays:
        counts = [histories.counts for histories in self._histories]
        return {"norms": np.stack(self._norms), "counts": np.stack(counts)}

    def _put_back(self, arrays: Mapping[str, npt.NDArray[Any]], lost: int) -> None:
        self._norms = list(arrays["norms"])
        for histories, counts in zip(self._histories, arrays["counts"], strict=True):
            histories.restore_table([counts], 1)
            histories.add_worst(lost)


@final
class MedianNorms(_KeptArrays):
    """The median gradient norm of a sample of each group, after each epoch.

    Attributes:
        rows: epoch, group and median.
    """

    def __init__(self, data: GroupedDataset, count: int = 200) -> None:
        self.rows: list[tuple[float, str, float]] = []
        self._data = data
        members = (np.flatnonzero(data.groups.numpy() == group) for group in range(data.num_groups))
        self._samples = [torch.from_numpy(each[:count]) for each in members]

    def after_epoch(self, trainer: Trainer) -> None:
        for name, sample in zip(self._data.group_names, self._samples, strict=True):
            if len(sample):
                inputs, targets = taken((self._data.inputs, self._data.targets), sample)
                norms = dataset_norms(trainer.engine, inputs, targets, PART)
                self.rows.append((float(round(trainer.epoch)), name, float(norms.median())))

    def _arrays(self) -> Arrays:
        epochs, groups, medians = zip(*self.rows, strict=True) if self.rows else ((), (), ())
        return {"epochs": np.array(epochs), "groups": np.array(groups, str), "medians": np.array(medians)}

    def _put_back(self, arrays: Mapping[str, npt.NDArray[Any]], lost: int) -> None:
        columns = (arrays[name].tolist() for name in ("epochs", "groups", "medians"))
        self.rows = list(zip(*columns, strict=True))


def passes(per_epoch: float) -> str:
    """In words, as "0.5 passes an epoch"."""
    return f"{per_epoch:g} passes an epoch"
