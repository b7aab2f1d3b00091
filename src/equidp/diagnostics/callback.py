"""Diagnostics: the callback that diagnoses a run now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from equidp._validate import check_whole
from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.diagnose import (
    Diagnosis,
    check_clips,
    chosen_groups,
    diagnose_step,
    warn_of_kinks,
    warn_of_optimizer,
)
from equidp.diagnostics.effort import Cost, Effort, cost_of
from equidp.diagnostics.gradients import Subject
from equidp.diagnostics.rows import Step
from equidp.engines.preserved import undisturbed
from equidp.errors import SettingError
from equidp.individual import IndividualClipping
from equidp.training.record import RunRecord
from equidp.training.trainer import Callback

if TYPE_CHECKING:
    from equidp.training.trainer import Trainer

RECORD_KEY = "sensitive_diagnosis"
"""Under this name a run's record holds the tables of its diagnosis."""


@dataclass(frozen=True)
class DiagnosisPlan:
    """What to diagnose in a run, and when.

    Attributes:
        every: steps between diagnoses; the first is before training.
        groups: names of those to diagnose; None: all.
        effort: how much to look at each time.
    """

    every: int = 200
    groups: tuple[str, ...] | None = None
    effort: Effort = field(default_factory=Effort)

    def __post_init__(self) -> None:
        check_whole(1, " of steps", every=self.every)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


class Diagnostics(Callback):
    """Diagnoses the next step of a run before training and after each `every` steps; training itself is left as it is.

    It reads the raw training data. Its tables are called `sensitive_`: they must not leave the house.

    Args:
        every: steps between diagnoses.
        groups: names of those to diagnose; None: all.
        effort: how much to look at each time; default: `Effort()`.
        record: a run's record, which gets the tables under `RECORD_KEY`; None: they stay here.
        seed: of the samples and vectors that are drawn.
        announce: is told the cost before the first diagnosis; default: standard error.
    """

    def __init__(
        self,
        every: int = 200,
        groups: Sequence[str] | None = None,
        *,
        effort: Effort | None = None,
        record: RunRecord | None = None,
        seed: int = 0,
        announce: Callable[[str], None] = _say,
    ) -> None:
        self.plan = DiagnosisPlan(every, None if groups is None else tuple(groups), effort or Effort())
        self._seed, self._announce = seed, announce
        tables = (record or RunRecord()).settings.setdefault(RECORD_KEY, {"groups": [], "pairs": []})
        self._groups: list[dict[str, Any]] = tables["groups"]
        self._pairs: list[dict[str, Any]] = tables["pairs"]

    @classmethod
    def of(cls, plan: DiagnosisPlan, **settings: Any) -> Diagnostics:
        """By a plan; `settings` as for the class."""
        return cls(plan.every, plan.groups, effort=plan.effort, **settings)

    @property
    def diagnosis(self) -> Diagnosis:
        """All so far: the tables of `diagnose` with the columns step and epoch before the others."""
        return Diagnosis(pd.DataFrame(self._groups), pd.DataFrame(self._pairs))

    def cost(self, trainer: Trainer) -> Cost:
        """What one diagnosis of this run takes at most; nothing is spent."""
        data = _in_memory(trainer)
        with undisturbed(trainer.model):
            return cost_of(
                _subject(trainer),
                data,
                chosen_groups(data, self.plan.groups),
                trainer.expected_batch_size,
                self.plan.effort,
            )

    def check(self, trainer: Trainer) -> None:
        """Refuses a run that cannot be diagnosed, warns of what makes figures less exact, and says the cost.

        Raises:
            SettingError, DataError: see `diagnose`; several learning rates; training data that is not in memory.
        """
        data = _in_memory(trainer)
        check_clips(trainer.policy)
        if any(isinstance(callback, IndividualClipping) for callback in trainer.callbacks):
            raise SettingError(
                "diagnostics weigh gradients as the policy does, and do not know the limits of IndividualClipping; "
                "diagnose a run without it."
            )
        chosen_groups(data, self.plan.groups)
        _learning_rate(trainer.optimizer)
        warn_of_kinks(_subject(trainer), data)
        warn_of_optimizer(trainer.optimizer)
        times = len(range(trainer.steps_done, trainer.steps, self.plan.every))
        self._announce(f"{self.cost(trainer).in_words()} There are {times} of them in a run.")

    def before_training(self, trainer: Trainer) -> None:
        if trainer.steps_done not in {row["step"] for row in self._groups}:
            self.check(trainer)
            self._diagnose(trainer)

    def after_step(self, trainer: Trainer) -> None:
        if trainer.steps_done % self.plan.every == 0 and trainer.steps_done < trainer.steps:
            self._diagnose(trainer)

    def _diagnose(self, trainer: Trainer) -> None:
        step = Step(
            _learning_rate(trainer.optimizer),
            trainer.noise_multiplier,
            trainer.expected_batch_size,
            float(trainer.policy.sensitivity),
        )
        data = _in_memory(trainer)
        chosen = chosen_groups(data, self.plan.groups)
        seed = self._seed + trainer.steps_done
        diagnosis = diagnose_step(
            _subject(trainer), trainer.policy, data, step, chosen, self.plan.effort, seed
        )
        when = {"step": trainer.steps_done, "epoch": trainer.epoch}
        for rows, table in (
            (self._groups, diagnosis.sensitive_groups),
            (self._pairs, diagnosis.sensitive_pairs),
        ):
            rows.extend({**when, **row} for row in table.to_dict("records"))


def _subject(trainer: Trainer) -> Subject:
    return Subject(trainer.model, trainer.loss, trainer.engine)


def _in_memory(trainer: Trainer) -> GroupedDataset:
    if not isinstance(trainer.train, GroupedDataset):
        raise SettingError(
            f"diagnostics need the training data in memory, as a GroupedDataset; got {type(trainer.train).__name__}."
        )
    return trainer.train


def _learning_rate(optimizer: torch.optim.Optimizer) -> float:
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1:
        raise SettingError(
            f"the optimizer has learning rates {sorted(rates)}; diagnostics describe a step with one. Give all parameters the same."
        )
    return rates.pop()
