"""Watches a run, and accounts for what each example gave in each step (Yu et al.)."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equidp.accounting import Histories, individual_epsilons
from equidp.callbacks import Callback
from equidp.data.base import GroupedDataset
from equidp.engines import dataset_norms
from equidp.errors import DataError, SettingError
from equidp.individual.report import IndividualReport
from equidp.mechanism import capped_weights, rowwise

if TYPE_CHECKING:
    from equidp.training import Trainer


class IndividualAccountant(Callback):
    """Accounts for each training example: with every step, what share of the sensitivity its gradient could use.

    Works for every policy. Norms of all examples are taken every so often and hold until the next time; weights follow the policy's
    state in every step.

    Args:
        interval: steps between two times that norms are taken. 1 is exact, unless the model draws random numbers (dropout); more
            give estimates. Give this or `per_epoch`.
        per_epoch: how often an epoch norms are taken.
        grid: width of the grid that shares are rounded up to.
        chunk_size: examples whose norms are taken at a time.
        memory_limit: bytes; the table of histories is kept in a temporary file beyond.
        missed_at_worst: account for steps that were taken before this accountant watched as if every example had used all of the
            sensitivity, an upper bound; otherwise such a run is refused.

    Raises:
        SettingError: at the start of training, before anything is spent: an interval of 0, a grid coarser than the sensitivity, a
            policy without one; a dataset that is not in memory.
    """

    def __init__(
        self,
        interval: int | None = None,
        *,
        per_epoch: float | None = None,
        grid: float = 0.01,
        chunk_size: int = 256,
        memory_limit: int = 2**30,
        missed_at_worst: bool = False,
    ) -> None:
        if (interval is None) == (per_epoch is None):
            raise SettingError(
                f"interval={interval} and per_epoch={per_epoch}; expected exactly one of the two."
            )
        if interval is not None and not (interval >= 1 and interval == int(interval)):
            raise SettingError(
                f"interval={interval}; expected a whole number of steps >= 1, 1 for exact norms."
            )
        if per_epoch is not None and not (per_epoch > 0 and math.isfinite(per_epoch)):
            raise SettingError(f"per_epoch={per_epoch}; expected a number > 0.")
        self._interval, self._per_epoch, self._chunk_size = interval, per_epoch, chunk_size
        self._grid, self._memory_limit = grid, memory_limit
        self._missed_at_worst = missed_at_worst
        self._histories: Histories | None = None
        self._fingerprint: tuple[int, float, float] | None = None
        self._norms: Tensor | None = None
        self._cells: npt.NDArray[np.int64] | None = None
        self._waiting = 0
        self._steps = 0
        self._exact = False

    def before_training(self, trainer: Trainer) -> None:
        data = trainer.train
        if not isinstance(data, GroupedDataset):
            raise SettingError(
                f"individual accounting needs the training data in memory, as a GroupedDataset; got {type(data).__name__}."
            )
        if trainer.noise_multiplier == 0:
            raise SettingError(
                "individual accounting of a run without noise: every epsilon is infinite. Choose a private policy."
            )
        missed = trainer.steps_done - self._steps
        if missed and not self._missed_at_worst:
            raise SettingError(
                f"{trainer.steps_done} steps were taken, and this accountant saw {self._steps}; it cannot account for others. "
                "Give it to the Trainer from the start, or say missed_at_worst=True for an upper bound."
            )
        fingerprint = _fingerprint(data)
        if self._fingerprint is not None and fingerprint != self._fingerprint:
            raise DataError("the training data changed between two passes; each example's history is lost.")
        self._fingerprint = fingerprint
        if self._histories is None:
            self._histories = Histories(len(data), self._grid, memory_limit=self._memory_limit)
        if missed:
            self._histories.add(self._histories.cells(np.ones(len(data))), missed)
            self._steps += missed
        self._exact = self._interval == 1 and _repeats(trainer)
        self._every = self._interval or max(1, round(1 / (trainer.sample_rate * float(self._per_epoch or 1))))
        self._take_norms(trainer)

    def after_step(self, trainer: Trainer) -> None:
        if self._cells is None:
            assert self._histories is not None
            self._cells = self._histories.cells(self._shares(trainer))
        self._waiting += 1
        self._steps += 1
        if trainer.policy.state_names:  # the next step's weights are others
            self._write()
        if self._steps % self._every == 0 and self._steps < trainer.steps:
            self._take_norms(trainer)

    def _write(self) -> None:
        """Puts steps whose shares were the same into the histories."""
        if self._cells is not None and self._histories is not None:
            self._histories.add(self._cells, self._waiting)
        self._cells, self._waiting = None, 0

    def _take_norms(self, trainer: Trainer) -> None:
        self._write()
        data = trainer.train
        assert isinstance(data, GroupedDataset)
        parameters = trainer.model.parameters()
        device = next(parameters).device
        self._groups = data.groups.to(device)
        with torch.random.fork_rng():  # dropout's, so that watching does not change the run
            self._norms = dataset_norms(
                trainer.engine, data.inputs.to(device), data.targets.to(device), self._chunk_size
            )

    def _shares(self, trainer: Trainer) -> npt.NDArray[np.float64]:
        """z_i = weight * norm / sensitivity, as the private step just taken had it, [n]."""
        assert self._norms is not None
        policy = copy.deepcopy(trainer.policy)
        norms = self._norms
        weights = capped_weights(rowwise(policy.weights, norms, self._groups), norms, policy.sensitivity)
        shares = (weights.double() * norms.double() / policy.sensitivity).cpu().numpy()
        # A gradient that is not finite contributes nothing.
        return np.where(np.isfinite(norms.cpu().numpy()), shares, 0.0)

    def report(self, trainer: Trainer, delta: float | None = None) -> IndividualReport:
        """What each example and each group got of the steps so far.

        Args:
            trainer: whose run this watched.
            delta: at which epsilons are; default: the run's.
        """
        data = trainer.train
        if self._histories is None or not self._steps:
            raise SettingError("no step was watched; give the accountant to the Trainer as a callback.")
        assert isinstance(data, GroupedDataset)
        self._write()
        delta = trainer.delta if delta is None else delta
        event = trainer.event
        worst = Histories(1, 1.0)
        worst.add(np.ones(1, dtype=np.int64), self._steps)
        return IndividualReport(
            sensitive_epsilons=individual_epsilons(self._histories, event, delta),
            groups=data.groups.cpu().numpy(),
            group_names=data.group_names,
            largest=float(individual_epsilons(worst, event, delta)[0]),
            delta=delta,
            exact=self._exact,
            ledger=trainer.ledger,
            randomness=trainer.randomness,
        )


def _fingerprint(data: GroupedDataset) -> tuple[int, float, float]:
    """Changes with the examples and, through the weights, with their order."""
    rows = data.inputs.flatten(1).double().sum(dim=1)
    places = torch.linspace(1.0, 2.0, len(rows), dtype=rows.dtype, device=rows.device)
    return len(data), float(rows @ places), float(data.groups.double() @ places)


def _repeats(trainer: Trainer) -> bool:
    """Whether a pass gives the norms of another one: not where the model draws random numbers."""
    data = trainer.train
    assert isinstance(data, GroupedDataset)
    device = next(trainer.model.parameters()).device
    few = data.inputs[:16].to(device), data.targets[:16].to(device)
    with torch.random.fork_rng():
        first, second = (trainer.engine.norms(*few) for _ in range(2))
    return torch.equal(first, second)
