"""Training with one error of clipping alone, without noise (Esipova et al. 2023, Table 1)."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from torch import Tensor

from equidp import Plan
from equidp.accounting.planned import Schedule
from equidp.comparison.cells import split
from equidp.data import open_source
from equidp.diagnostics.gradients import BatchGradients, Subject, batch_gradients
from equidp.engines.units import reader_of
from equidp.kernel.sampling import PoissonSampler
from equidp.training.build import build

ERRORS: dict[str, Callable[[BatchGradients], Tensor]] = {
    "none": lambda gradients: gradients.mean,
    "magnitude": lambda gradients: gradients.rescaled_mean,
    "direction": lambda gradients: gradients.rescaled_clipped,
    "both": lambda gradients: gradients.clipped,
}
"""Name -> the gradient that has this error of clipping and no other: g_B, r g_B, c_B / r, c_B."""


def ablate(data: str, error: str, seed: int, plan: Plan) -> pd.DataFrame:
    """Train without noise and with one error of DP-SGD's clipping. The run is not private.

    Runs of one seed share the split, the initial weights and the sampled batches.

    Args:
        data: name of a source.
        error: a name from `ERRORS`.
        seed: of all that is drawn.
        plan: how to train.

    Returns:
        One row per epoch and group (and "all"): epoch, group, accuracy, loss, on the test data.
    """
    parts = split(open_source(data), seed)
    resolved = plan.with_changes({"noise_multiplier": 0.0}).for_method("dpsgd").resolve(len(parts.train))
    trainer = build(resolved, parts.train, weights_seed=seed, seed=seed, engine="ghost")
    subject = Subject(reader_of(trainer.model, trainer.loss), trainer.loss, trainer.engine)
    trainer.model.train()
    tables = []
    samples = PoissonSampler(len(parts.train), trainer.sample_rate, trainer.steps, trainer.randomness)
    for step, sample in enumerate(samples, start=1):
        gradients = batch_gradients(
            subject,
            trainer.policy,
            trainer.policy_state,
            parts.train,
            sample,
            batch_size=trainer.expected_batch_size,
        )
        _set_gradient(ERRORS[error](gradients), subject)
        trainer.optimizer.step()
        if Schedule(trainer.sample_rate, trainer.steps).ends_epoch(step):
            metrics = trainer.run().metrics(parts.test)
            tables.append(metrics.assign(epoch=step * trainer.sample_rate))
    return pd.concat(tables, ignore_index=True)[["epoch", "group", "accuracy", "loss"]]


def _set_gradient(gradient: Tensor, subject: Subject) -> None:
    """Make a flat vector the model's gradient."""
    parts = gradient.split([parameter.numel() for parameter in subject.parameters])
    for parameter, part in zip(subject.parameters, parts, strict=True):
        parameter.grad = part.reshape(parameter.shape)
