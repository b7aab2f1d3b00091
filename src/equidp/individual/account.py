"""Counts the share of the sensitivity that each example uses in each step of a run (Yu et al. 2023)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Literal

import numpy as np
import torch

from equidp._validate import check_number
from equidp.accounting.risk import EPSILONS
from equidp.data.dataset import GroupedDataset
from equidp.engines import dataset_norms
from equidp.engines.preserved import device_of
from equidp.errors import DataError, SettingError
from equidp.individual.histories import Histories, individual_epsilons, individual_profiles
from equidp.individual.report import IndividualReport
from equidp.individual.step_counts import StepCounts
from equidp.kernel.epsilon import epsilon
from equidp.kernel.inputs import tensors
from equidp.training.trainer import Callback, Trainer


class ExampleAccount(Callback, ABC):
    """Accounts for each training example of a run; subclasses only watch, or also limit gradients.

    Args: as those of `IndividualAccountant`.
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
                f"interval={interval!r}; expected a whole number of steps >= 1, 1 for exact norms, or "
                '"sampled".'
            )
        if per_epoch is not None:
            check_number("(0, inf)", per_epoch=per_epoch)
        self._histories = partial(Histories, grid=grid, rounding=rounding, memory_limit=memory_limit)
        self._histories(1)  # raises SettingError on a bad grid or rounding
        self._interval, self._per_epoch, self._rounding = interval, per_epoch, rounding
        self._chunk_size, self._missed_at_worst = chunk_size, missed_at_worst
        self._counts: StepCounts | None = None
        self._fingerprint: tuple[int, float, float] | None = None
        self._steps = 0
        self._guaranteed = False

    @abstractmethod
    def _begin(self, trainer: Trainer) -> bool:
        """Prepares for a run's steps; returns whether the counted shares bound the used ones."""

    @abstractmethod
    def _check_step(self, trainer: Trainer) -> None:
        """Refuses a step that was not taken as `_begin` prepared it."""

    def before_training(self, trainer: Trainer) -> None:
        data = in_memory(trainer, "individual accounting needs")
        if trainer.noise_multiplier == 0:
            raise SettingError(
                "individual accounting of a run without noise: every epsilon is infinite. Choose a private "
                "policy."
            )
        self._check_data(data)
        if self._counts is None:
            histories = self._histories(len(data))
            device, exact = device_of(trainer.model), self._interval == 1
            self._counts = StepCounts(data, trainer.policy, device, histories, exact=exact)
        self._count_missed(trainer.steps_done - self._steps, trainer)
        self._guaranteed = self._begin(trainer)
        if self._interval != "sampled":
            rate = trainer.sample_rate * float(self._per_epoch or 1)
            self._every = self._interval or max(1, round(1 / rate))
            self._take_norms(trainer)

    def after_step(self, trainer: Trainer) -> None:
        self._check_step(trainer)
        counts = self._counted
        self._count_missed(trainer.steps_done - 1 - self._steps, trainer)
        counts.step(trainer.policy_state)
        self._steps += 1
        if self._interval != "sampled" and self._steps % self._every == 0 and self._steps < trainer.steps:
            self._take_norms(trainer)

    def after_training(self, trainer: Trainer) -> None:
        trainer.limit_shares(None)

    def report(
        self, trainer: Trainer, delta: float | None = None, accountant: str = "pld"
    ) -> IndividualReport:
        """Returns the epsilon of each example and each group over the steps so far.

        All else that the ledger holds by now, such as private preprocessing, counts in full for everyone.

        Args:
            trainer: of the run that this watched.
            delta: of the epsilons; default: the run's.
            accountant: "pld", privacy loss distributions, tight; "rdp": Renyi, as in the papers, faster and
                looser.

        Raises:
            SettingError: no step was watched.
        """
        if not self._steps:
            raise SettingError("no step was watched; give the accountant to the Trainer as a callback.")
        data = in_memory(trainer, "individual accounting needs")
        counts = self._counted
        counts.settle()
        delta = trainer.delta if delta is None else delta
        event, steps = trainer.event, ((trainer.event, self._steps),)
        others = tuple(entry for entry in trainer.ledger.entries if entry[0] != event)
        largest = epsilon((*steps, *others), delta, accountant)
        by_steps = epsilon(steps, delta, accountant) if others else largest
        epsilons, group_epsilons = (
            np.minimum(individual_epsilons(histories, event, delta, accountant, others), largest)
            for histories in (counts.histories, counts.group_histories)
        )
        return IndividualReport(
            sensitive_epsilons=epsilons,
            group_epsilons=group_epsilons,
            linear_group_epsilons=largest - by_steps * (1 - counts.group_shares / self._steps),
            groups=data.groups.cpu().numpy(),
            group_names=data.group_names,
            largest=largest,
            delta=delta,
            guaranteed=self._guaranteed,
            ledger=trainer.ledger,
            randomness=trainer.randomness,
            group_profiles=individual_profiles(counts.group_histories, event, EPSILONS, others),
            spent=(*steps, *others),
        )

    @property
    def _counted(self) -> StepCounts:
        if self._counts is None:
            raise SettingError(
                "individual accounting has not begun: Trainer.fit begins it; in a loop of your own, call "
                "accountant.before_training(trainer) before the first step."
            )
        return self._counts

    def _check_data(self, data: GroupedDataset) -> None:
        fingerprint = _fingerprint(data)
        if self._fingerprint is not None and fingerprint != self._fingerprint:
            raise DataError("the training data changed between two passes; each example's history is lost.")
        self._fingerprint = fingerprint

    def _count_missed(self, missed: int, trainer: Trainer) -> None:
        if missed and not self._missed_at_worst:
            raise SettingError(
                f"{trainer.steps_done} steps were taken, and this accountant saw "
                f"{trainer.steps_done - missed}; it cannot account for others. Give it to the Trainer from "
                "the start, or say missed_at_worst=True for an upper bound."
            )
        self._counted.missed(missed)
        self._steps += missed

    def _take_norms(self, trainer: Trainer) -> None:
        data = in_memory(trainer, "individual accounting needs")
        self._check_data(data)
        device = device_of(trainer.model)
        # So that dropout in this pass neither changes the run nor ties one example's norm to others' places.
        with torch.random.fork_rng(), trainer.randomness.for_model(device):
            norms = dataset_norms(trainer.engine, data.inputs, data.trained_targets, self._chunk_size, device)
        # The private step leaves out an example whose gradient is not finite.
        self._counted.take(torch.where(torch.isfinite(norms), norms, 0.0))


def in_memory(trainer: Trainer, purpose: str) -> GroupedDataset:
    """Returns the training data; raises SettingError, beginning with `purpose`, where it is not in memory."""
    if not isinstance(trainer.train, GroupedDataset):
        raise SettingError(
            f"{purpose} the training data in memory, as a GroupedDataset; got {type(trainer.train).__name__}."
        )
    return trainer.train


def _fingerprint(data: GroupedDataset) -> tuple[int, float, float]:
    """Returns numbers that change with the examples and, through the weights, with their order."""
    sums = [each.reshape(len(each), -1).double().sum(dim=1) for each in tensors(data.inputs)]
    rows = torch.stack(sums).sum(dim=0)
    weights = torch.linspace(1.0, 2.0, len(rows), dtype=rows.dtype, device=rows.device)
    return len(data), float(rows @ weights), float(data.groups.double() @ weights)
