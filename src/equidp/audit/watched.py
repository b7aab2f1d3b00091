"""Training with canaries among its examples, watched by an adversary who scores each canary."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equidp.audit.asked import Progress, randomness
from equidp.audit.canary import CanaryEngine, Directions, best_norms, log_likelihood_ratio
from equidp.audit.draws import Arrays, DrawRecord
from equidp.audit.kept import Measurements
from equidp.data.dataset import GroupedDataset
from equidp.engines.model import flat
from equidp.engines.units import reading
from equidp.evaluation.predict import predict
from equidp.kernel.engine import Engine
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.noise import to_double
from equidp.kernel.policy import copy_state
from equidp.policies.weights import step_weights
from equidp.training.build import build
from equidp.training.checkpoint import restore_state, trainer_state
from equidp.training.plan import ResolvedPlan
from equidp.training.trainer import Trainer

_SAVED = "training"
_STRETCH = 200
"""Steps whose noise and samples are added up together."""


@final
class GradientWatch:
    """Sums log likelihood ratios of released gradients with a canary's gradient and without it (white box).

    Args:
        engine: measures all examples but the canaries.
        model: the trained model.
        directions: of the canaries' gradients, [m, parameters].
        groups: of the canaries, [m].
        classes: number of classes.

    Attributes:
        tensors: name of each tensor of parameters -> number of parameters.
        noise: of the last step, in units of the claimed standard deviation, [parameters].
    """

    def __init__(
        self, engine: Engine, model: nn.Module, directions: Directions, groups: Tensor, classes: int
    ) -> None:
        trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self.parameters = list(trained.values())
        self.tensors = {name: each.numel() for name, each in trained.items()}
        self.noise = np.zeros(sum(self.tensors.values()))
        self.directions, self.groups = directions, groups
        self.engine = CanaryEngine(engine, self.parameters, directions, torch.ones(len(groups)), classes)
        self.total = torch.zeros(len(groups), dtype=torch.float64)
        self._by_group: Tensor | None = None

    def choose_norms(self, trainer: Trainer) -> None:
        """Give canaries the norms at which the policy, in its first state, uses most of its sensitivity."""
        assert trainer.num_groups is not None
        self._by_group = best_norms(trainer.policy, trainer.policy_state, trainer.num_groups)
        self.engine.norms = self._by_group[self.groups]

    def after_step(self, trainer: Trainer) -> None:
        """Add the private gradient in `p.grad` to the scores."""
        assert self._by_group is not None
        background, total = self.engine.take_sums()
        policy, state = trainer.policy, trainer.policy_state
        sensitivity = float(policy.sensitivity(copy_state(state)))
        known = torch.arange(len(self._by_group))
        weights = step_weights(policy, state, self._by_group, known)
        shares = ((weights * self._by_group).double() / sensitivity)[self.groups]
        gradient = flat([each.grad for each in self.parameters], self.parameters)
        event = trainer.event
        released = to_double(gradient) * trainer.expected_batch_size
        noise = released if total is None else released - total.to(released)
        self.noise = (noise / (event.noise_multiplier * sensitivity)).cpu().numpy()
        seen = (self.directions.along(gradient) * trainer.expected_batch_size - background) / sensitivity
        ratio = log_likelihood_ratio(seen.numpy(), shares.numpy(), event.noise_multiplier, event.sample_rate)
        self.total += torch.from_numpy(ratio)

    def scores(self) -> Tensor:
        """Scores of the canaries, [m]; higher means "in"."""
        return self.total


@final
class LossWatch:
    """Compares the canaries' losses before and after training (black box).

    Args:
        engine: measures all examples.
        model: the trained model.
        canaries: the examples whose losses are compared.
    """

    def __init__(self, engine: Engine, model: nn.Module, canaries: GroupedDataset) -> None:
        self.engine, self.model, self.canaries = engine, model, canaries
        self.total = self._losses()

    def after_step(self, trainer: Trainer) -> None:
        """Do nothing: a black-box adversary sees the released model alone."""

    def scores(self) -> Tensor:
        """Decrease of each canary's loss, [m]."""
        return (self.total - self._losses()).nan_to_num(nan=0.0)

    def _losses(self) -> Tensor:
        loss = self.canaries.training_loss()
        outputs = predict(reading(self.model, loss), self.canaries.inputs)
        return loss(outputs.double(), self.canaries.trained_targets)


@final
@dataclass(frozen=True)
class WatchedTraining:
    """One training whose canaries are scored.

    Attributes:
        plan: how to train.
        event: of one step.
        model: trained in place.
        everyone: all examples, the canaries last.
        inside: which canaries take part, [m].
        watch: scores them.
        secure, seed: of samples and noise.
        draws: noise and samples (`DrawRecord.arrays`) of the steps that this process took.
    """

    plan: ResolvedPlan
    event: StepEvent
    model: nn.Module
    everyone: GroupedDataset
    inside: npt.NDArray[np.bool_]
    watch: GradientWatch | LossWatch
    secure: bool
    seed: int
    draws: list[Arrays] = field(default_factory=list)

    def scores(
        self, kept: Measurements, on_progress: Progress | None, checkpoint_seconds: float
    ) -> npt.NDArray[np.float64]:
        """Train, from the state that an earlier start saved, and return the canaries' scores, [m]."""
        saved = kept.load(_SAVED)
        trainer = self._trainer(0 if saved is None else int(saved["done"]))
        if isinstance(self.watch, GradientWatch):
            self.watch.choose_norms(trainer)
        if saved is not None:
            restore_state(trainer, saved)
            self.watch.total = saved["total"]
        steps, last = trainer.steps, time.monotonic()
        for taken, batch in enumerate(trainer.batches()):
            trainer.step(batch)
            self.watch.after_step(trainer)
            done = trainer.steps_done
            if isinstance(self.watch, GradientWatch):
                if taken % _STRETCH == 0:
                    record = DrawRecord(self.watch.tensors, trainer.num_examples, trainer.sample_rate)
                record.note(self.watch.noise, batch.indices.cpu().numpy())
                if (taken + 1) % _STRETCH == 0 or done == steps:
                    self.draws.append(record.arrays())
            if on_progress is not None:
                on_progress(done, steps)
            if time.monotonic() - last >= checkpoint_seconds:
                kept.save(_SAVED, {**trainer_state(trainer), "total": self.watch.total, "done": done})
                last = time.monotonic()
        if isinstance(self.watch, LossWatch):
            self.watch.model = trainer.released_model
        return np.asarray(self.watch.scores().numpy())

    def _trainer(self, done: int) -> Trainer:
        """Trainer of the examples that take part, at the sample rate of all examples, after `done` steps."""
        return build(
            self.plan,
            self._data(),
            seed=self.seed,
            secure=self.secure,
            model=self.model,
            engine=self.watch.engine,
            ledger=MemoryLedger(((self.event, done),) if done else ()),
            randomness=randomness(self.secure, self.seed, 2, done),
            sample_rate=self.event.sample_rate,
        )

    def _data(self) -> GroupedDataset:
        """Return the examples that take part: all but the canaries, and the canaries that are in."""
        first = len(self.everyone) - len(self.inside)
        chosen = np.concatenate([np.arange(first), first + np.flatnonzero(self.inside)])
        return self.everyone.subset(torch.from_numpy(chosen))
