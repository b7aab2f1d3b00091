"""Callbacks: the only way to watch a run. They read; the guarantee does not depend on them."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor

from equidp.data.base import GroupedDataset
from equidp.mechanism import capped_weights, rowwise
from equidp.metrics import check_outputs, group_metrics
from equidp.policies.base import Policy
from equidp.record import RunRecord
from equidp.run import predict

if TYPE_CHECKING:
    from equidp.training import Trainer


def step_weights(policy: Policy, norms: Tensor, groups: Tensor) -> Tensor:
    """The weights that the private step would give these examples now, [batch]: example by example, capped, by a dropped copy."""
    sensitivity = float(policy.sensitivity)
    return capped_weights(rowwise(copy.deepcopy(policy).weights, norms, groups), norms, sensitivity)


def share_clipped(policy: Policy, weights: Tensor, groups: Tensor) -> float:
    """Share of examples whose weight, as `step_weights` has it, is below that of a vanishing gradient of their group."""
    unclipped = step_weights(policy, torch.zeros_like(weights), groups)
    return float((weights < unclipped).double().mean())


class Callback:
    """Does nothing; override what you need."""

    def before_training(self, trainer: Trainer) -> None:
        """Before the first step of a `fit`."""

    def after_step(self, trainer: Trainer) -> None:
        """After the optimizer took a private step."""

    def after_epoch(self, trainer: Trainer) -> None:
        """After each n / b steps, and after the last step."""

    def after_training(self, trainer: Trainer) -> None:
        """When `fit` ends, however it ends."""


class ProgressBar(Callback):
    """A bar with the time left and epsilon so far, on the terminal."""

    _progress: Progress | None = None

    def before_training(self, trainer: Trainer) -> None:
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("epsilon so far {task.fields[epsilon]}"),
        )
        self._task = self._progress.add_task(
            "training", total=trainer.steps, completed=trainer.steps_done, epsilon="0"
        )
        self._progress.start()

    def after_step(self, trainer: Trainer) -> None:
        if self._progress is None:  # in a loop of one's own
            self.before_training(trainer)
        assert self._progress is not None
        epsilon = f"<= {trainer.epsilon_so_far(trainer.steps_done):.3g} at delta {trainer.delta:g}"
        self._progress.update(self._task, completed=trainer.steps_done, epsilon=epsilon)
        if trainer.steps_done == trainer.steps:
            self.after_training(trainer)

    def after_training(self, trainer: Trainer) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class EpochRecorder(Callback):
    """Writes figures of each group into a record after each epoch: of test data and releases, never of the training data.

    Gradient figures (norms, share clipped, norm of the mean gradient) are those of a sample of the test data under the current
    model and policy; an example counts as clipped when its weight is below that of a vanishing gradient of its group.

    Args:
        record: where the rows go.
        test: what is measured.
        gradient_examples: how many test examples of each group gradients are taken of, at most.
    """

    def __init__(self, record: RunRecord, test: GroupedDataset, *, gradient_examples: int = 200) -> None:
        self.record = record
        self.test = test
        self._samples = [
            torch.nonzero(test.groups == group).flatten()[:gradient_examples]
            for group in range(test.num_groups)
        ]

    def before_training(self, trainer: Trainer) -> None:
        # While nothing is spent, should the model be one that has no metrics.
        check_outputs(predict(trainer.model, self.test.inputs[:1]), self.test.targets)

    def after_epoch(self, trainer: Trainer) -> None:
        metrics = group_metrics(
            predict(trainer.model, self.test.inputs),
            self.test.targets,
            self.test.groups,
            self.test.group_names,
        ).set_index("group")
        released = trainer.policy.released_state()
        for group, name in enumerate(self.test.group_names):
            self.record.append(
                {
                    "epoch": round(trainer.epoch),
                    "step": trainer.steps_done,
                    "group": name,
                    "accuracy": float(metrics.loc[name, "accuracy"]),
                    "loss": float(metrics.loc[name, "loss"]),
                    **self._gradient_figures(trainer, group),
                    **_released_figures(released, group),
                    "epsilon": trainer.epsilon_so_far(trainer.steps_done),
                }
            )

    def _gradient_figures(self, trainer: Trainer, group: int) -> dict[str, float]:
        sample = self._samples[group]
        if not len(sample):
            return dict.fromkeys(("mean_norm", "max_norm", "mean_gradient_norm", "share_clipped"), math.nan)
        device = next(trainer.model.parameters()).device
        norms = trainer.engine.norms(
            self.test.inputs[sample].to(device), self.test.targets[sample].to(device)
        )
        trainer.optimizer.zero_grad(set_to_none=True)
        trainer.engine.weighted_sum(torch.full_like(norms, 1 / len(sample)))
        gradients = [parameter.grad for parameter in trainer.model.parameters() if parameter.grad is not None]
        mean_gradient_norm = float(torch.stack([torch.linalg.vector_norm(each) for each in gradients]).norm())
        trainer.optimizer.zero_grad(set_to_none=True)
        groups = torch.full_like(norms, group, dtype=torch.int64)
        weights = step_weights(trainer.policy, norms, groups)
        return {
            "mean_norm": float(norms.mean()),
            "max_norm": float(norms.max()),
            "mean_gradient_norm": mean_gradient_norm,
            "share_clipped": share_clipped(trainer.policy, weights, groups),
        }


def _released_figures(released: dict[str, Tensor | float], group: int) -> dict[str, Any]:
    """The clipping bound of the group and, if the policy has one, its further scale (Z or theta)."""
    figures = {
        name: float(value[group]) if isinstance(value, Tensor) else float(value)
        for name, value in released.items()
    }
    bound = figures.pop("clipping_bound", math.nan)
    name, scale = next(iter(figures.items()), ("", math.nan))
    return {"clipping_bound": bound, "scale": scale, "scale_name": name}
