"""Which error of clipping hurts more: training with one of them alone (Esipova et al. 2023, Table 1 and appendix B.4)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from equidp._validate import unknown_name
from equidp.accounting.schedule import default_delta
from equidp.comparison.compare import BASELINE, checked_seeds
from equidp.comparison.grid import RunSpec, split, threads_each
from equidp.comparison.progress import Progress
from equidp.data import open_source
from equidp.data.dataset import DataSource, GroupedDataset
from equidp.diagnostics.gradients import BatchGradients, Subject, batch_gradients
from equidp.errors import SettingError
from equidp.kernel.bounding import rowwise
from equidp.kernel.noisy_sum import private_sum
from equidp.policies.methods import METHODS
from equidp.training.build import make_trainer
from equidp.training.plan import Plan, default_plan
from equidp.training.trainer import Trainer

ERRORS: dict[str, Callable[[BatchGradients], Tensor]] = {
    "none": lambda gradients: gradients.mean,
    "magnitude": lambda gradients: gradients.rescaled_mean,
    "direction": lambda gradients: gradients.rescaled_clipped,
    "both": lambda gradients: gradients.clipped,
}
"""Name -> the gradient that has this error of clipping and no other: g_B, r g_B, c_B / r, c_B."""


def ablate(
    data: str | DataSource = "digits",
    *,
    method: str = "dpsgd",
    errors: Sequence[str] = tuple(ERRORS),
    seeds: int | Sequence[int] = 5,
    plan: Plan | None = None,
    engine: str = "ghost",
    jobs: int | None = None,
    on_progress: Progress | None = None,
) -> pd.DataFrame:
    """Trains without noise and with one error of clipping at a time. No run is private; all are for research.

    Runs of one seed share the split, the initial weights and the sampled batches. Statistics that a method reads are exact here.

    Args:
        data: a name from `equidp.data.SOURCES`, a path to a table, or a source of your own.
        method: whose clipping; a name from `equidp.policies.methods.METHODS`.
        errors: names from `ERRORS`.
        seeds: how many seeds (0, 1, ...), or which.
        plan: how to train; default: `default_plan(data)`.
        engine: name of the gradient engine.
        jobs: processes; None: one per core.
        on_progress: called with (runs done, runs in all) after each run.

    Returns:
        One row per error, seed, epoch and group (and "all"): error, seed, epoch, group, count, accuracy, loss, on the test data.

    Raises:
        SettingError, DataError, ModelError: before anything is trained.
    """
    source = open_source(data) if isinstance(data, str) else data
    seeds = checked_seeds(seeds)
    spec = _spec(source, method, plan, engine, seeds[0])
    for error in errors:
        if error not in ERRORS:
            raise unknown_name("error", error, ERRORS)
    make_trainer(spec, split(source, seeds[0]))
    todo = [(replace(spec, seed=seed), error) for seed in seeds for error in errors]
    jobs = max(1, min(jobs or joblib.cpu_count(), len(todo)))
    parts = joblib.Parallel(n_jobs=jobs, return_as="generator")(
        joblib.delayed(_train)(spec, error, threads_each(jobs)) for spec, error in todo
    )
    tables = []
    for part in parts:
        tables.append(part)
        if on_progress is not None:
            on_progress(len(tables), len(todo))
    return pd.concat(tables, ignore_index=True)


def ablation_summary(table: pd.DataFrame) -> pd.DataFrame:
    """After the last epoch, by error and group: accuracy and loss, means over seeds with their standard errors (NaN for one seed).

    Args:
        table: from `ablate`.

    Returns:
        Columns error, group, seeds, accuracy, accuracy_se, loss, loss_se.
    """
    last = table[table["epoch"] == table.groupby("seed")["epoch"].transform("max")]
    grouped = last.groupby(["error", "group"], sort=False)[["accuracy", "loss"]]
    errors = (grouped.std() / np.sqrt(grouped.count())).add_suffix("_se")
    rows = grouped.mean().join(errors).assign(seeds=grouped.size()).reset_index()
    return rows[["error", "group", "seeds", "accuracy", "accuracy_se", "loss", "loss_se"]]


def _spec(source: DataSource, method: str, plan: Plan | None, engine: str, seed: int) -> RunSpec:
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if method == BASELINE:
        raise SettingError(f"method {method!r} does not clip; choose one that does, such as 'dpsgd'.")
    own = (default_plan(source) if plan is None else plan).for_method(method)
    # Delta means nothing without noise, but a trainer wants one.
    own = replace(own, noise_multiplier=0.0, delta=own.delta or default_delta(len(split(source, seed).train)))
    return RunSpec(source, method, own, "", math.nan, seed, engine)


def _train(spec: RunSpec, error: str, threads: int) -> pd.DataFrame:
    torch.set_num_threads(threads)
    data = split(spec.source, spec.seed)
    trainer = make_trainer(spec, data)
    subject = Subject(trainer.model, trainer.loss, trainer.engine)
    tables = []
    trainer.model.train()
    for step, batch in enumerate(trainer.batches(), start=1):
        _observe_exactly(trainer, subject, data.train, batch.indices)
        gradients = batch_gradients(
            subject,
            trainer.policy,
            data.train,
            batch.indices,
            expected_batch_size=trainer.expected_batch_size,
        )
        _put(ERRORS[error](gradients), subject)
        trainer.optimizer.step()
        before, after = (math.floor(count * trainer.sample_rate + 1e-9) for count in (step - 1, step))
        if after > before or step == trainer.steps:
            metrics = trainer.run().metrics(data.test)
            tables.append(metrics.assign(error=error, seed=spec.seed, epoch=step * trainer.sample_rate))
    columns = ["error", "seed", "epoch", "group", "count", "accuracy", "loss"]
    return pd.concat(tables, ignore_index=True)[columns]


def _observe_exactly(trainer: Trainer, subject: Subject, data: GroupedDataset, sample: Tensor) -> None:
    """Tells the policy the exact sum of a sample's statistics, where it reads any."""
    if trainer.policy.statistics_ratio is None:
        return
    parts = [(measured.norms.detach(), chunk[2]) for measured, chunk in subject.measured(data, sample)]
    if not parts:
        return
    norms, groups = (torch.cat(each) for each in zip(*parts, strict=True))
    rows = rowwise(copy.deepcopy(trainer.policy).statistics, norms, groups)
    total = private_sum(rows, bound=1.0, noise_multiplier=0.0, randomness=trainer.randomness)
    trainer.policy.observe(total.to(torch.float32))


def _put(gradient: Tensor, subject: Subject) -> None:
    """Makes a flat vector the model's gradient."""
    parts = gradient.split([parameter.numel() for parameter in subject.parameters])
    for parameter, part in zip(subject.parameters, parts, strict=True):
        parameter.grad = part.reshape(parameter.shape)
