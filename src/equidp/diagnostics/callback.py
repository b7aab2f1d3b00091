"""Diagnostics: the callback that diagnoses a run at regular steps."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from equidp._extras import require_extra
from equidp._validate import check_whole
from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.diagnose import Diagnosis, check_clips, chosen_groups, diagnose_step, warn_of_kinks
from equidp.diagnostics.effort import Cost, Effort, cost_of
from equidp.diagnostics.gradients import Subject
from equidp.diagnostics.measure import Step
from equidp.engines.model import in_evaluation_mode
from equidp.engines.units import reader_of
from equidp.errors import ApproximationWarning, SettingError
from equidp.training.record import RunRecord
from equidp.training.trainer import Callback, Trainer

with require_extra("tables"):
    import pandas as pd

RECORD_KEY = "sensitive_diagnosis"
"""The name under which a run's record holds the tables of its diagnosis."""


@dataclass(frozen=True)
class DiagnosisPlan:
    """Groups to diagnose in a run, and the steps between diagnoses.

    Attributes:
        every: steps between diagnoses; the first is before training.
        groups: names of the groups to diagnose; None: all.
        effort: how much to measure each time.

    Raises:
        SettingError: `every` is not a whole number >= 1.

    Example:
        >>> import equidp
        >>> equidp.DiagnosisPlan(every=50, groups=("a",)).effort.batches
        8
    """

    every: int = 200
    groups: tuple[str, ...] | None = None
    effort: Effort = field(default_factory=Effort)

    def __post_init__(self) -> None:
        check_whole(1, " of steps", every=self.every)


Announce = Callable[[str], None]


def _say(text: str) -> None:
    print(text, file=sys.stderr)


class Diagnostics(Callback):
    """Diagnoses the next step before training and after each `every` steps; leaves training as it is.

    Reads the raw training data: its tables are called `sensitive_`, and must never be released.

    Args:
        every: steps between diagnoses.
        groups: names of the groups to diagnose; None: all.
        effort: how much to measure each time; default: `Effort()`.
        record: a run's record that gets the tables under `RECORD_KEY`; None: they stay here.
        seed: of the samples and vectors that are drawn.
        announce: called with the cost before the first diagnosis; default: prints on standard error.

    Example:
        >>> import torch, equidp
        >>> groups = torch.arange(20) % 2
        >>> data = equidp.GroupedDataset(torch.randn(20, 3), groups, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> little = equidp.Effort(batches=2, trace_vectors=2, eigenvalue_products=2)
        >>> watch = equidp.Diagnostics(every=2, effort=little, announce=lambda text: None)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, data, batch_size=5, steps=4,
        ...                          noise_multiplier=1.0, delta=0.01, callbacks=[watch])
        >>> run = trainer.fit()
        >>> watch.diagnosis.sensitive_groups[["step", "group"]].values.tolist()
        [[0, 'a'], [0, 'b'], [2, 'a'], [2, 'b']]
    """

    def __init__(
        self,
        every: int = 200,
        groups: Sequence[str] | None = None,
        *,
        effort: Effort | None = None,
        record: RunRecord | None = None,
        seed: int = 0,
        announce: Announce = _say,
    ) -> None:
        self.plan = DiagnosisPlan(every, None if groups is None else tuple(groups), effort or Effort())
        self._seed, self._announce, self._run = seed, announce, ""
        tables = (record or RunRecord()).settings.setdefault(RECORD_KEY, {"groups": [], "pairs": []})
        self._groups: list[dict[str, Any]] = tables["groups"]
        self._pairs: list[dict[str, Any]] = tables["pairs"]

    @classmethod
    def of(
        cls, plan: DiagnosisPlan, record: RunRecord | None = None, *, seed: int = 0, announce: Announce = _say
    ) -> Diagnostics:
        """Return the callback that follows a plan."""
        return cls(plan.every, plan.groups, effort=plan.effort, record=record, seed=seed, announce=announce)

    @property
    def diagnosis(self) -> Diagnosis:
        """All so far: the tables of `diagnose`, with the columns step and epoch before the others."""
        return Diagnosis(pd.DataFrame(self._groups), pd.DataFrame(self._pairs))

    def cost(self, trainer: Trainer) -> Cost:
        """Return the most that one diagnosis of this run takes; spend nothing."""
        data = _data(trainer)
        chosen = chosen_groups(data, self.plan.groups)
        with in_evaluation_mode(trainer.model):
            return cost_of(_subject(trainer), data, chosen, trainer.expected_batch_size, self.plan.effort)

    def check(self, trainer: Trainer) -> None:
        """Refuse a run that cannot be diagnosed, warn of what makes values less exact, and say the cost.

        Raises:
            SettingError, DataError: see `diagnose`; several learning rates; training data that is not in
                memory.
        """
        data = _data(trainer)
        check_clips(_step(trainer))
        if trainer.individual is not None and trainer.individual.settings.clipping:
            raise SettingError(
                "diagnostics weigh gradients as the policy does, and do not know the limits of individual "
                "clipping; diagnose a run without it.",
                field="individual",
            )
        chosen_groups(data, self.plan.groups)
        warn_of_kinks(_subject(trainer), data)
        _warn_of_optimizer(trainer.optimizer)
        times = len(range(trainer.steps_done, trainer.steps, self.plan.every))
        cost = self.cost(trainer)
        self._announce(
            f"A diagnosed step takes up to {cost.gradients:,} gradients and {cost.products:,} products of "
            f"one example's Hessian, about {cost.seconds:.3g} s here. There are {times} of them in a run."
        )

    def before_training(self, trainer: Trainer) -> None:
        run = trainer.run_id
        if self._run not in ("", run):
            raise SettingError(
                f"the trainer is of run {run}, and these tables are of run {self._run}; give each run a "
                "Diagnostics of its own.",
                field="trainer",
            )
        self._run = run
        if trainer.processes.first and trainer.steps_done not in {row["step"] for row in self._groups}:
            self.check(trainer)
            self._diagnose(trainer)

    def after_step(self, trainer: Trainer) -> None:
        first = trainer.processes.first
        if first and trainer.steps_done % self.plan.every == 0 and trainer.steps_done < trainer.steps:
            self._diagnose(trainer)

    def _diagnose(self, trainer: Trainer) -> None:
        data, done = _data(trainer), trainer.steps_done
        chosen = chosen_groups(data, self.plan.groups)
        subject, step = _subject(trainer), _step(trainer)
        found = diagnose_step(subject, data, step, chosen, self.plan.effort, self._seed + done)
        when = {"step": done, "epoch": trainer.epoch}
        for rows, table in ((self._groups, found.sensitive_groups), (self._pairs, found.sensitive_pairs)):
            rows.extend({**when, **row} for row in table.to_dict("records"))


def _data(trainer: Trainer) -> GroupedDataset:
    trainer.views.refuse("diagnostics need")
    if not isinstance(trainer.train, GroupedDataset):
        raise SettingError(
            "diagnostics need the training data in memory, as a GroupedDataset; got "
            f"{type(trainer.train).__name__}.",
            field="train",
        )
    return trainer.train


def _subject(trainer: Trainer) -> Subject:
    return Subject(reader_of(trainer.model, trainer.loss), trainer.loss, trainer.engine)


def _step(trainer: Trainer) -> Step:
    rates = {float(group["lr"]) for group in trainer.optimizer.param_groups}
    if len(rates) > 1:
        raise SettingError(
            f"the optimizer has learning rates {sorted(rates)}; diagnostics describe a step with one. Give "
            "all parameters the same.",
            field="optimizer",
        )
    size = trainer.expected_batch_size
    return Step(trainer.policy, trainer.policy_state, rates.pop(), trainer.noise_multiplier, size)


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
