"""Diagnostics: the callback that diagnoses a run at regular steps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from equidp._extras import require_extra
from equidp._validate import check_whole
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.diagnostics.diagnose import Diagnosis, check_groups
from equidp.diagnostics.gradients import Subject
from equidp.diagnostics.measure import Effort, Measurement, Step
from equidp.engines.units import reader_of
from equidp.errors import ApproximationWarning, SettingError
from equidp.training.record import TableCallback
from equidp.training.trainer import Trainer

with require_extra("tables"):
    import pandas as pd


@dataclass(eq=False)
class Diagnostics(TableCallback):
    """Diagnoses the next step before training and after each `every` steps, without changing training.

    It reads the raw training data, so never release its tables, which are named `sensitive_`. In
    `equidp.compare(callbacks=[Diagnostics()])`, each private run has its own.

    Attributes:
        every: number of steps between diagnoses.
        groups: names of the groups to diagnose. None: all.
        effort: how much to measure each time.
        seed: seed of the samples and vectors.

    Raises:
        SettingError, DataError: the run has individual clipping or several learning rates, the training data
            is not a `GroupedDataset`, or `diagnose` rejects an argument. Raised before a step is spent.

    Example:
        >>> import torch, equidp
        >>> groups = torch.arange(20) % 2
        >>> data = equidp.GroupedDataset(torch.randn(20, 3), groups, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> little = equidp.Effort(batches=2, trace_vectors=2, eigenvalue_products=2)
        >>> watch = equidp.Diagnostics(every=2, effort=little)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, data, batch_size=5, steps=4,
        ...                          noise_multiplier=1.0, delta=0.01, callbacks=[watch])
        >>> run = trainer.fit()
        >>> watch.diagnosis.sensitive_groups[["step", "group"]].values.tolist()
        [[0, 'a'], [0, 'b'], [2, 'a'], [2, 'b']]
    """

    every: int = 200
    groups: Sequence[str] | None = None
    effort: Effort = field(default_factory=Effort)
    seed: int = 0
    name: ClassVar[str] = "sensitive_diagnosis"
    private_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(1, " of steps", every=self.every)
        self._steps: dict[int, Diagnosis] = {}

    def callback(self, data: DataSplit) -> Diagnostics:
        """Return a new callback for one run of a comparison."""
        return replace(self)

    def table(self, trainer: Trainer) -> pd.DataFrame:
        """Return both tables as one for `Diagnosis.of_table`. In rows of groups the column other is ""."""
        groups = self.diagnosis.sensitive_groups.assign(other="")
        return pd.concat([groups, self.diagnosis.sensitive_pairs], ignore_index=True)

    @property
    def diagnosis(self) -> Diagnosis:
        """Diagnosis so far: tables as from `diagnose`, with the columns step and epoch first."""
        return Diagnosis(
            *(
                pd.concat([getattr(each, name) for each in self._steps.values()], ignore_index=True)
                if self._steps
                else pd.DataFrame()
                for name in ("sensitive_groups", "sensitive_pairs")
            )
        )

    def check(self, trainer: Trainer) -> None:
        """Reject a run that cannot be diagnosed, and warn if the optimizer does not take plain gradient
        steps."""
        self._prepare(trainer)
        _warn_of_optimizer(trainer.optimizer)

    def before_training(self, trainer: Trainer) -> None:
        if not trainer.steps_done:
            self._steps.clear()
            self.check(trainer)
        if trainer.processes.first and trainer.steps_done not in self._steps:
            self._diagnose(trainer)

    def after_step(self, trainer: Trainer) -> None:
        first = trainer.processes.first
        if first and trainer.steps_done % self.every == 0 and trainer.steps_done < trainer.steps:
            self._diagnose(trainer)

    def _diagnose(self, trainer: Trainer) -> None:
        done, (data, step, chosen) = trainer.steps_done, self._prepare(trainer)
        subject = Subject(reader_of(trainer.model, trainer.loss), trainer.loss, trainer.engine)
        diagnosis = Diagnosis.of(Measurement(subject, data, step, self.effort, self.seed + done), chosen)
        for table in (diagnosis.sensitive_groups, diagnosis.sensitive_pairs):
            table.insert(0, "step", done)
            table.insert(1, "epoch", trainer.epoch)
        self._steps[done] = diagnosis

    def _prepare(self, trainer: Trainer) -> tuple[GroupedDataset, Step, list[int]]:
        trainer.views.refuse("diagnostics need")
        data = trainer.train
        if not isinstance(data, GroupedDataset):
            raise SettingError(
                "diagnostics need the training data in memory, as a GroupedDataset; got "
                f"{type(data).__name__}.",
                field="train",
            )
        if trainer.individual is not None and trainer.individual.settings.clipping:
            raise SettingError(
                "diagnostics weigh gradients as the policy does, and do not know the limits of individual "
                "clipping; diagnose a run without it.",
                field="individual",
            )
        rates = {float(group["lr"]) for group in trainer.optimizer.param_groups}
        if len(rates) > 1:
            raise SettingError(
                f"the optimizer has learning rates {sorted(rates)}; diagnostics describe a step with one. "
                "Give all parameters the same.",
                field="optimizer",
            )
        size, noise = trainer.expected_batch_size, trainer.noise_multiplier
        step = Step(trainer.policy, trainer.policy_state, rates.pop(), noise, size, data.num_groups)
        return data, step, check_groups(data, step, self.groups)


def _warn_of_optimizer(optimizer: torch.optim.Optimizer) -> None:
    plain = isinstance(optimizer, torch.optim.SGD) and not any(
        group["momentum"] or group["weight_decay"] for group in optimizer.param_groups
    )
    if not plain:
        warnings.warn(
            f"{type(optimizer).__name__} does not move by learning rate times gradient (momentum, weight "
            "decay, scaling); the diagnosis is of a plain gradient step at the same learning rate.",
            ApproximationWarning,
            stacklevel=3,
        )
