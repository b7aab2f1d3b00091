"""compare(): methods x seeds, and what privacy cost each group."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from equidp._provenance import versions
from equidp._validate import check_whole
from equidp.accounting import calibrate_noise
from equidp.accounting.cache import remembered
from equidp.accounting.schedule import default_delta
from equidp.comparison import grid
from equidp.comparison.grid import Cell, Progress, split, split_facts
from equidp.comparison.result import Comparison, DataFacts, Setup, TrainingFacts
from equidp.data import open_source
from equidp.data.dataset import DataSource, DataSplit
from equidp.diagnostics import Diagnosis, DiagnosisPlan, Diagnostics
from equidp.diagnostics.callback import RECORD_KEY
from equidp.errors import ApproximationWarning, PrivacyWarning, SettingError
from equidp.evaluation.costs import check_tau
from equidp.evaluation.groups import most_frequent
from equidp.evaluation.intervals import check_level
from equidp.policies.methods import BASELINE, method_named
from equidp.training.plan import Plan, ResolvedPlan, checked_seeds, default_plan
from equidp.training.record import RunRecord

DEFAULT_METHODS = ("sgd", "dpsgd", "dpsgd-f", "global-adapt")
RELEASE_EPSILON = 0.1
"""What a release of individual privacy may cost (Yu et al., Table 2)."""


def compare(
    data: str | DataSource = "digits",
    *,
    methods: Sequence[str] = DEFAULT_METHODS,
    seeds: int | Sequence[int] = 5,
    plan: Plan | None = None,
    epsilons: Sequence[float] = (),
    tau: float = 0.05,
    level: float = 0.95,
    engine: str = "ghost",
    directory: str | os.PathLike[str] = "equidp-runs",
    jobs: int | None = None,
    on_progress: Progress | None = None,
    command: str = "",
    release_epsilon: float | None = None,
    diagnosis: DiagnosisPlan | None = None,
) -> Comparison:
    """Trains one model several ways, private and not, and measures what privacy cost each group.

    Runs of one seed share the split, the initial weights and the sampled batches. Samples and noise come from
    seeds: this is for choosing a method, and the models are not for release.

    Args:
        data: a name from `equidp.data.SOURCES`, a path to a table, or a source of your own.
        methods: names from `equidp.policies.methods.METHODS`; plain SGD is always among them, as the
            baseline.
        seeds: how many seeds (0, 1, ...), or which.
        plan: how to train; default: `default_plan(data)`.
        epsilons: target epsilons, to each of which the noise is calibrated; none: the plan's noise
            multiplier.
        tau: largest gap in privacy cost that counts as equal (Xu et al.: 0.05).
        level: of the confidence intervals.
        engine: name of the gradient engine.
        directory: finished runs are kept here, and taken from here if data, settings and code are the same.
        jobs: processes; None: one per core.
        on_progress: called with (steps done, steps in all) now and then.
        command: what the report names as the command that made it.
        release_epsilon: account for each training example of the private runs (its norm is taken once an
            epoch), and release the mean epsilon of each group at this epsilon and the run's delta; None:
            neither.
        diagnosis: what to diagnose of the private runs, and when; None: nothing.

    Raises:
        SettingError, DataError, ModelError: before anything is trained.

    Example:
        >>> import equidp
        >>> plan, place = equidp.Plan(batch_size=128, epochs=1), getfixture("tmp_path")
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> sorted(comparison.costs()["method"].unique())
        ['dpsgd', 'sgd']
    """
    source = open_source(data) if isinstance(data, str) else data
    seeds, epsilons = checked_seeds(seeds), list(dict.fromkeys(epsilons))
    check_level(level)
    if jobs is not None:
        check_whole(1, jobs=jobs)
    check_tau(tau)
    methods = _checked_methods(methods)
    sizes = {seed: split_facts(source, seed).num_train for seed in seeds}
    data_split = split(source, seeds[0])
    plan = default_plan(source) if plan is None else plan
    if plan.delta is None:
        plan = replace(plan, delta=default_delta(max(sizes.values())))
    # Absolute, since worker processes outlive a comparison and stay where the first one was.
    folder = Path(directory).absolute()
    grid.check_folder(folder)
    with remembered(folder):
        if release_epsilon is not None:  # refuse one that no noise can meet
            calibrate_noise(release_epsilon, plan.delta, 1.0, 1)
        cells = [
            Cell(source, resolved, setting, target, seed, engine, *watched)
            for seed, size in sizes.items()
            for resolved, setting, target in _resolved(methods, plan, epsilons, size)
            for watched in [(release_epsilon, diagnosis) if resolved.policy.private else (None, None)]
        ]
        first = [cell for cell in cells if cell.seed == seeds[0]]
        _dry_run(first, data_split)
    records = grid.run_all(cells, folder, jobs, on_progress)

    def kept(name: str) -> pd.DataFrame:
        return pd.DataFrame([row for record in records for row in record.settings[name]])

    return Comparison(
        Setup(
            data=_data_facts(source, data_split),
            training=_training_facts(plan, first, sizes[seeds[0]]),
            methods=tuple(methods),
            seeds=tuple(sizes),
            num_train_by_seed=tuple(sizes.values()),
            versions=versions(),
            baseline=BASELINE,
            tau=tau,
            level=level,
            command=command,
        ),
        kept("results"),
        pd.concat([record.table() for record in records], ignore_index=True),
        individual=kept("individual"),
        sensitive_diagnosis=None if diagnosis is None else _joined_diagnosis(cells, records),
    )


def _joined_diagnosis(cells: Sequence[Cell], records: Sequence[RunRecord]) -> Diagnosis:
    """The tables of all diagnosed runs, with the columns method, setting and seed before the others."""
    tables: dict[str, list[dict[str, Any]]] = {"groups": [], "pairs": []}
    for cell, record in zip(cells, records, strict=True):
        run = {"method": cell.method, "setting": cell.setting, "seed": cell.seed}
        for name, rows in record.settings[RECORD_KEY].items() if cell.diagnosis is not None else ():
            tables[name] += [{**run, **row} for row in rows]
    return Diagnosis(pd.DataFrame(tables["groups"]), pd.DataFrame(tables["pairs"]))


def _checked_methods(methods: Sequence[str]) -> list[str]:
    if isinstance(methods, str):
        raise SettingError(f"methods={methods!r}; expected a list of names, such as ['sgd', 'dpsgd'].")
    for method in methods:
        method_named(method)
    if not set(methods) - {BASELINE}:
        raise SettingError(
            f"methods={list(methods)}; expected at least one private method beside {BASELINE!r}."
        )
    return [BASELINE, *dict.fromkeys(method for method in methods if method != BASELINE)]


def _resolved(
    methods: Sequence[str], plan: Plan, epsilons: Sequence[float], num_train: int
) -> Iterator[tuple[ResolvedPlan, str, float]]:
    """(plan, label of the epsilon, target epsilon) of each run of a seed; the baseline runs once."""
    for method in methods:
        if method == BASELINE or not epsilons:
            yield plan.resolve(method, num_train), "", math.nan
            continue
        for target in epsilons:
            label = f"epsilon={target:g}" if len(epsilons) > 1 else ""
            yield plan.resolve(method, num_train, epsilon=target), label, target


def _dry_run(cells: Sequence[Cell], data: DataSplit) -> None:
    """Builds each kind of run once, to raise what is wrong with one before any is trained."""
    with warnings.catch_warnings():
        for category in (PrivacyWarning, ApproximationWarning):
            warnings.simplefilter("once", category)
        for cell in cells:
            trainer = cell.trainer(data)
            if cell.diagnosis is not None:
                Diagnostics.of(cell.diagnosis).check(trainer)


def _data_facts(source: DataSource, data: DataSplit) -> DataFacts:
    return DataFacts(
        name=source.name,
        num_train=len(data.train),
        group_names=tuple(data.train.group_names),
        class_names=tuple(data.train.class_names),
        train_group_sizes=tuple(data.train.group_sizes().tolist()),
        test_group_sizes=tuple(data.test.group_sizes().tolist()),
        most_frequent_class=most_frequent(data.test.targets, data.test.class_names),
        notes=tuple(data.notes),
        highlighted_groups=source.highlighted_groups,
    )


def _training_facts(plan: Plan, cells: Sequence[Cell], num_train: int) -> TrainingFacts:
    """What the cells of one seed have in common, and what they have not, by method."""
    common = replace(plan, by_method={}).resolve(BASELINE, num_train)
    return TrainingFacts(
        model=common.model,
        batch_size=common.batch_size,
        epochs=common.epochs,
        steps=common.steps,
        sample_rate=common.sample_rate,
        learning_rate=common.learning_rate,
        momentum=common.momentum,
        weight_decay=common.weight_decay,
        delta=cells[0].plan.delta,
        noise_multipliers={
            f"{cell.method} {cell.setting}".strip(): cell.plan.noise_multiplier
            for cell in cells
            if cell.plan.policy.private
        },
        method_settings={cell.method: asdict(cell.plan.policy) for cell in cells},  # type: ignore[call-overload]
        by_method=dict(plan.by_method),
    )
