"""Training with one error of clipping alone (Esipova et al. 2023, Table 1 and appendix B.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from equidp import DataSource, GroupedDataset, Plan, Policy, SettingError, default_plan
from equidp.accounting.planned import Schedule
from equidp.comparison.cells import Cell, Progress, one_at_a_time, split, split_facts
from equidp.comparison.workers import Workers, spread
from equidp.data import open_source
from equidp.diagnostics.gradients import BatchGradients, Subject, batch_gradients
from equidp.engines.units import reader_of
from equidp.extend import unknown_name
from equidp.kernel.bounding import bounded_rows, example_rows
from equidp.kernel.sampling import PoissonSampler
from equidp.policies.methods import method_named
from equidp.training.plan import checked_seeds

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
    device: str = "cpu",
    on_progress: Progress | None = None,
) -> pd.DataFrame:
    """Train without noise and with one error of clipping at a time. No run is private; all are for research.

    Runs of one seed share the split, the initial weights and the sampled batches. Statistics that a method
    reads are exact here.

    Args:
        data: a name from `equidp.data.SOURCES`, a path to a table, or a source of your own.
        method: whose clipping; a name from `equidp.policies.table.METHODS`.
        errors: names from `ERRORS`.
        seeds: how many seeds (0, 1, ...), or which.
        plan: how to train; default: `default_plan(data)`.
        engine: name of the gradient engine.
        jobs: processes; None: one per core.
        device: where to train; a name as `compare` takes it.
        on_progress: called with (runs done, runs in all) after each run.

    Returns:
        One row per error, seed, epoch and group (and "all"): error, seed, epoch, group, count, accuracy,
        loss, on the test data.

    Raises:
        SettingError, DataError, ModelError: before anything is trained.
    """
    source = open_source(data) if isinstance(data, str) else data
    seeds = checked_seeds(seeds)
    cell = _cell(source, method, plan, engine, device, seeds[0])
    for error in errors:
        if error not in ERRORS:
            raise unknown_name("error", error, ERRORS)
    cell.trainer(split(source, seeds[0]))
    todo = {
        f"{error} seed={seed}": (_cell(source, method, plan, engine, device, seed), error)
        for seed in seeds
        for error in dict.fromkeys(errors)
    }
    tables: dict[str, pd.DataFrame] = {}
    for name, table in spread(_train, todo.items(), Workers.of(jobs, len(todo))):
        tables[name] = table
        if on_progress is not None:
            on_progress(len(tables), len(todo))
    return pd.concat([tables[name] for name in todo], ignore_index=True)


def ablation_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy and loss after the last epoch, with standard errors over seeds (NaN for one seed).

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


def _cell(source: DataSource, method: str, plan: Plan | None, engine: str, device: str, seed: int) -> Cell:
    if not method_named(method).policy.private:
        raise SettingError(f"method {method!r} does not clip; choose one that does, such as 'dpsgd'.")
    if method_named(method).policy.loss_terms:
        raise SettingError(f"method {method!r} adds terms to losses, which are no error of clipping.")
    plan = (default_plan(source) if plan is None else plan).with_changes({"noise_multiplier": 0.0})
    plan.image_views.refuse("an ablation needs")
    resolved = plan.for_method(method).resolve(split_facts(source, seed).num_train)
    return Cell(source, resolved, "", math.nan, seed, engine, device)


def _train(cell: Cell, error: str, threads: int | None) -> pd.DataFrame:
    with one_at_a_time(threads):
        return _train_with_error(cell, error)


def _train_with_error(cell: Cell, error: str) -> pd.DataFrame:
    data = split(cell.source, cell.seed)
    trainer = cell.trainer(data)
    subject = Subject(reader_of(trainer.model, trainer.loss), trainer.loss, trainer.engine)
    tables, state = [], trainer.policy_state
    trainer.model.train()
    samples = PoissonSampler(len(data.train), trainer.sample_rate, trainer.steps, trainer.randomness)
    for step, sample in enumerate(samples, start=1):
        state = _update_exactly(trainer.policy, state, subject, data.train, sample)
        gradients = batch_gradients(
            subject,
            trainer.policy,
            state,
            data.train,
            sample,
            expected_batch_size=trainer.expected_batch_size,
        )
        _set_gradient(ERRORS[error](gradients), subject)
        trainer.optimizer.step()
        if Schedule(trainer.sample_rate, trainer.steps).ends_epoch(step):
            metrics = trainer.run().metrics(data.test)
            tables.append(metrics.assign(error=error, seed=cell.seed, epoch=step * trainer.sample_rate))
    columns = ["error", "seed", "epoch", "group", "count", "accuracy", "loss"]
    return pd.concat(tables, ignore_index=True)[columns]


def _update_exactly(
    policy: Policy, state: Any, subject: Subject, data: GroupedDataset, sample: Tensor
) -> Any:
    """The policy's state after the exact sum of a sample's statistics, where it reads any."""
    if policy.statistics_ratio is None:
        return state
    parts = list(subject.measure_chunks(data, sample))
    if not parts:
        return state
    norms = torch.cat([measured.norms.detach() for measured, _ in parts])
    rows = example_rows(policy, state, norms, torch.cat([groups for _, (_, _, groups, _) in parts]))
    return policy.update(state, bounded_rows(rows, 1.0).sum(dim=0).to(torch.float32))


def _set_gradient(gradient: Tensor, subject: Subject) -> None:
    """Make a flat vector the model's gradient."""
    parts = gradient.split([parameter.numel() for parameter in subject.parameters])
    for parameter, part in zip(subject.parameters, parts, strict=True):
        parameter.grad = part.reshape(parameter.shape)
