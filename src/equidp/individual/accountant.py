"""Watches a run, and accounts for what each example gave in each step (Yu et al.)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from equidp._validate import check_number
from equidp.data.dataset import GroupedDataset
from equidp.engines import dataset_norms
from equidp.engines.preserved import device_of
from equidp.errors import DataError, SettingError
from equidp.individual.histories import Histories, individual_epsilons
from equidp.individual.report import IndividualReport
from equidp.individual.step_counts import StepCounts
from equidp.kernel import epsilon
from equidp.training.trainer import Callback

if TYPE_CHECKING:
    from equidp.training.trainer import Trainer


class IndividualAccountant(Callback):
    """Accounts for each training example: with every step, what share of the sensitivity its gradient could use.

    Works for every policy. An example's norm holds until it is taken again; weights follow the policy's state in every step. An
    example whose norm was never taken counts as if it used all of the sensitivity.

    Args:
        interval: steps between two times that norms of all examples are taken. 1 is exact, unless the model draws random numbers
            (dropout); more give estimates. "sampled": an example's norm is the one it had when it was last drawn, an estimate that
            costs no pass over the data. Give this or `per_epoch`.
        per_epoch: how often an epoch norms of all examples are taken.
        grid: width of the grid that shares are rounded to.
        rounding: "up", or "nearest" as Yu et al. do it, which can understate.
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
        interval: int | Literal["sampled"] | None = None,
        *,
        per_epoch: float | None = None,
        grid: float = 0.01,
        rounding: str = "up",
        chunk_size: int = 256,
        memory_limit: int = 2**30,
        missed_at_worst: bool = False,
    ) -> None:
        if (interval is None) == (per_epoch is None):
            raise SettingError(
                f"interval={interval} and per_epoch={per_epoch}; expected exactly one of the two."
            )
        if interval not in (None, "sampled") and not (
            isinstance(interval, int | float) and interval >= 1 and interval == int(interval)
        ):
            raise SettingError(
                f'interval={interval!r}; expected a whole number of steps >= 1, 1 for exact norms, or "sampled".'
            )
        if per_epoch is not None:
            check_number("(0, inf)", per_epoch=per_epoch)
        Histories(1, grid, rounding=rounding)  # refuses what makes no grid
        self._interval, self._per_epoch, self._chunk_size = interval, per_epoch, chunk_size
        self._grid, self._rounding, self._memory_limit = grid, rounding, memory_limit
        self._missed_at_worst = missed_at_worst
        self._counts: StepCounts | None = None
        self._fingerprint: tuple[int, float, float] | None = None
        self._steps = 0
        self._guaranteed = False

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
        self._check_data(data)
        self._check_missed(trainer.steps_done - self._steps, trainer)
        if self._counts is None:
            self._counts = StepCounts(
                data,
                trainer.policy,
                device_of(trainer.model),
                grid=self._grid,
                rounding=self._rounding,
                memory_limit=self._memory_limit,
                exact=self._interval == 1,
            )
        self._count_missed(trainer.steps_done - self._steps)
        self._guaranteed = self._bounds_contributions(trainer)
        if self._interval == "sampled":
            trainer.limit_shares(self._counts.draw)
            return
        rate = trainer.sample_rate * float(self._per_epoch or 1)
        self._every = self._interval or max(1, round(1 / rate))
        self._take_norms(trainer)

    def after_training(self, trainer: Trainer) -> None:
        trainer.limit_shares(None)

    def _check_data(self, data: GroupedDataset) -> None:
        fingerprint = _fingerprint(data)
        if self._fingerprint is not None and fingerprint != self._fingerprint:
            raise DataError("the training data changed between two passes; each example's history is lost.")
        self._fingerprint = fingerprint

    def _check_missed(self, missed: int, trainer: Trainer) -> None:
        if missed and not self._missed_at_worst:
            raise SettingError(
                f"{trainer.steps_done} steps were taken, and this accountant saw {trainer.steps_done - missed}; it cannot account "
                "for others. Give it to the Trainer from the start, or say missed_at_worst=True for an upper bound."
            )

    def _count_missed(self, missed: int) -> None:
        if missed:
            self._counted.missed(missed)
            self._steps += missed

    @property
    def _counted(self) -> StepCounts:
        if self._counts is None:
            raise SettingError(
                "individual accounting has not begun: Trainer.fit begins it; in a loop of your own, call "
                "accountant.before_training(trainer) before the first step."
            )
        return self._counts

    def _bounds_contributions(self, trainer: Trainer) -> bool:
        """Whether what is accounted for bounds what is used; otherwise it estimates it."""
        return self._interval == 1 and self._rounding == "up" and _repeats(trainer)

    def after_step(self, trainer: Trainer) -> None:
        counts = self._counted
        missed = trainer.steps_done - 1 - self._steps
        self._check_missed(missed, trainer)
        self._count_missed(missed)
        counts.step(trainer.policy)
        self._steps += 1
        if self._interval != "sampled" and self._steps % self._every == 0 and self._steps < trainer.steps:
            self._take_norms(trainer)

    def _take_norms(self, trainer: Trainer) -> None:
        data = trainer.train
        assert isinstance(data, GroupedDataset)
        self._check_data(data)
        device = device_of(trainer.model)
        inputs, targets = data.inputs.to(device), data.targets.to(device)
        with torch.random.fork_rng():  # dropout's, so that watching does not change the run
            norms = dataset_norms(trainer.engine, inputs, targets, self._chunk_size)
        self._counted.take(torch.where(torch.isfinite(norms), norms, 0.0))  # the others contribute nothing

    def report(
        self, trainer: Trainer, delta: float | None = None, accountant: str = "pld"
    ) -> IndividualReport:
        """What each example and each group got of the steps so far.

        Args:
            trainer: whose run this watched.
            delta: at which epsilons are; default: the run's.
            accountant: "pld", privacy loss distributions, tight; "rdp": Renyi, as in the papers, faster and looser.
        """
        if not self._steps:
            raise SettingError("no step was watched; give the accountant to the Trainer as a callback.")
        data = trainer.train
        assert isinstance(data, GroupedDataset)
        counts = self._counted
        counts.settle()
        delta = trainer.delta if delta is None else delta
        largest = epsilon([(trainer.event, self._steps)], delta, accountant)
        epsilons, of_groups = (
            np.minimum(individual_epsilons(histories, trainer.event, delta, accountant), largest)
            for histories in (counts.histories, counts.group_histories)
        )
        return IndividualReport(
            sensitive_epsilons=epsilons,
            group_epsilons=of_groups,
            linear_group_epsilons=largest * counts.group_shares / self._steps,
            groups=data.groups.cpu().numpy(),
            group_names=data.group_names,
            largest=largest,
            delta=delta,
            guaranteed=self._guaranteed,
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
    device = device_of(trainer.model)
    few = data.inputs[:16].to(device), data.targets[:16].to(device)
    with torch.random.fork_rng():
        first, second = (trainer.engine(*few).norms for _ in range(2))
    return torch.equal(first, second)
