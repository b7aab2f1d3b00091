"""compare(): methods x seeds, and what privacy cost each group."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pandas as pd

from equidp._provenance import versions
from equidp.advice.auto import AUTO
from equidp.comparison.asked import Sweep
from equidp.comparison.cluster import check_one_place, check_workers, connect_client, on_cluster
from equidp.comparison.grid import Cell, split
from equidp.comparison.kept import Progress, train_all
from equidp.comparison.outputs import kept_predictions, with_metrics
from equidp.comparison.prepare import Prepared, prepare
from equidp.comparison.result import Comparison, DataFacts, Setup, TrainingFacts
from equidp.comparison.spread import Workers, spread
from equidp.data.dataset import DataSource, DataSplit
from equidp.diagnostics import Diagnosis, DiagnosisPlan
from equidp.diagnostics.callback import RECORD_KEY
from equidp.evaluation.costs import check_tau
from equidp.evaluation.groups import most_frequent
from equidp.evaluation.intervals import check_level
from equidp.evaluation.metric import Metric
from equidp.evaluation.predictions import Cut
from equidp.policies.methods import BASELINE, MethodLike
from equidp.training.plan import Plan
from equidp.training.record import RunRecord

DEFAULT_METHODS = ("sgd", "dpsgd", "dpsgd-f", "global-adapt", AUTO)


def compare(
    data: str | DataSource = "digits",
    *,
    methods: Sequence[MethodLike] = DEFAULT_METHODS,
    seeds: int | Sequence[int] = 5,
    plan: Plan | None = None,
    epsilons: Sequence[float] = (),
    sweep: Sweep | None = None,
    tau: float = 0.05,
    level: float = 0.95,
    metric: str | Metric = "accuracy",
    cut: Cut = Cut(),
    engine: str = "ghost",
    directory: str | os.PathLike[str] = "equidp-runs",
    jobs: int | None = None,
    device: str = "cpu",
    cluster: str | None = None,
    on_progress: Progress | None = None,
    command: str = "",
    release_epsilon: float | None = None,
    diagnosis: DiagnosisPlan | None = None,
    preprocessing_share: float | None = None,
    fresh: bool = False,
) -> Comparison:
    """Trains one model several ways, private and not, and measures what privacy cost each group.

    Runs of one seed share the split, the initial weights and the sampled batches. Samples and noise come from
    seeds: this is for choosing a method, and the models are not for release.

    Args:
        data: a name from `equidp.data.SOURCES`, a path to a table, or your own source, also by import
            path.
        methods: names from `equidp.METHODS`, import paths such as "my_module:MyPolicy", and your own
            policies; plain SGD is always among them, as the baseline. "auto" has the settings that
            served this kind of data best, at each epsilon, or at what DP-SGD spends by the plan.
        seeds: how many seeds (0, 1, ...), or which.
        plan: how to train; default: `default_plan(data)`.
        epsilons: target epsilons; noise is calibrated to each of them; empty: the plan's noise multiplier.
        sweep: settings of the plan and of methods, by name -> values to compare; several settings: every
            combination. The baseline keeps the plan's values.
        tau: largest gap in privacy cost that counts as equal (Xu et al.: 0.05).
        level: of the confidence intervals.
        metric: the metric of cost, gap, tau and tests (`equidp.evaluation.metrics.metric_named`). Every run
            keeps its answers on the test set, so another metric or cut trains nothing again.
        cut: of two classes, the positive one, and the predicted risk from which on it is the answer.
        engine: name of the gradient engine.
        directory: finished runs are kept here, and taken from here if data, settings and code are the same.
        jobs: processes; None: one per core, or the number from `joblib.parallel_config`.
        cluster: address of a Dask scheduler, such as "tcp://10.0.0.5:8786", whose workers train the runs, or
            the .json file that it wrote; None: this machine, or the backend of `joblib.parallel_config`.
        device: where to train: "cpu", "cuda", "cuda:1", "mps"; or "auto", the first of cuda, mps and cpu that
            is there, on each worker of a cluster. Kept runs of another device are taken: figures differ by
            rounding alone.
        on_progress: called with (steps done, steps in all) after each finished run.
        command: the command that made the comparison, for the report.
        release_epsilon: account for each training example of the private runs (its norm is taken once an
            epoch), and release the mean epsilon of each group at this epsilon and the run's delta; None:
            no accounting and no release.
        diagnosis: what to diagnose of the private runs, and when; None: nothing.
        preprocessing_share: of each epsilon, for private preprocessing of the private runs, in (0, 1); None:
            exact preprocessing, which epsilon does not cover.
        fresh: train again the runs that are kept in `directory`.

    Raises:
        SettingError, DataError, ModelError: before anything is trained.

    Example:
        >>> import equidp
        >>> plan, place = equidp.Plan(batch_size=128, epochs=1), getfixture("tmp_path")
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> sorted(comparison.costs()["method"].unique())
        ['dpsgd', 'sgd']
    """
    check_level(level)
    check_tau(tau)
    check_one_place(jobs, cluster)
    with connect_client(cluster) as client:
        prepared = prepare(
            data,
            methods=methods,
            seeds=seeds,
            plan=plan,
            epsilons=epsilons,
            sweep=sweep,
            metric=metric,
            cut=cut,
            engine=engine,
            directory=directory,
            jobs=jobs,
            device=device if client is None else "cpu",  # the workers' device may not exist here
            release_epsilon=release_epsilon,
            diagnosis=diagnosis,
            preprocessing_share=preprocessing_share,
        )
        cells, split_data = tuple(replace(cell, device=device) for cell in prepared.cells), prepared.data
        if client is None:
            place = partial(spread, workers=Workers.of(jobs, len(cells)))
        else:
            check_workers(client, cells[: len(prepared.first)])
            place = partial(on_cluster, client=client)
        records = train_all(cells, prepared.folder, place, on_progress, fresh=fresh)
    results: list[dict[str, Any]] = []
    for cell, record in zip(cells, records, strict=True):
        test = split(prepared.source, cell.seed).test
        found = kept_predictions(prepared.folder / cell.file_name(), test, cut)
        rows = [{**cell.names, **row} for row in record.settings["results"]]
        results += with_metrics(rows, found, test, prepared.metric, level)

    def run_table(rows: Callable[[RunRecord], list[dict[str, Any]]]) -> pd.DataFrame:
        runs = zip(cells, records, strict=True)
        return pd.DataFrame([{**cell.names, **row} for cell, record in runs for row in rows(record)])

    return Comparison(
        Setup(
            data=_data_facts(prepared.source, split_data),
            training=_training_facts(prepared),
            methods=tuple(dict.fromkeys(cell.method for cell in cells)),
            seeds=tuple(prepared.sizes),
            num_train_by_seed=tuple(prepared.sizes.values()),
            versions=versions(),
            baseline=BASELINE,
            tau=tau,
            level=level,
            command=command,
            swept=prepared.swept,
            metric=prepared.metric.name,
            positive=found.positive_name,
            threshold=cut.threshold,
        ),
        pd.DataFrame(results),
        run_table(lambda record: record.table().to_dict("records")),
        individual=run_table(lambda record: record.settings["individual"]),
        metric=prepared.metric,
        sensitive_diagnosis=None if diagnosis is None else _joined_diagnosis(cells, records),
        seconds=sum(record.settings["seconds"] for record in records),
    )


def _joined_diagnosis(cells: Sequence[Cell], records: Sequence[RunRecord]) -> Diagnosis:
    """Join the tables of all diagnosed runs, with the columns method, setting and seed before the others."""
    tables: dict[str, list[dict[str, Any]]] = {"groups": [], "pairs": []}
    for cell, record in zip(cells, records, strict=True):
        run = {name: value for name, value in cell.names.items() if name != "target_epsilon"}
        for name, rows in record.settings[RECORD_KEY].items() if cell.diagnosis is not None else ():
            tables[name] += [{**run, **row} for row in rows]
    return Diagnosis(pd.DataFrame(tables["groups"]), pd.DataFrame(tables["pairs"]))


def _automatic(prepared: Prepared) -> dict[str, dict[str, Any]]:
    """Policy, features and settings that "auto" trained with."""
    if prepared.choice is None:
        return {}
    choice = prepared.choice
    return {AUTO: {"policy": choice.method, "features": choice.features, **choice.settings}}


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


def _training_facts(prepared: Prepared) -> TrainingFacts:
    """Facts that the cells of one seed share, and facts that differ, by method."""
    plan, cells = prepared.plan, prepared.first
    common = replace(plan, by_method={}).resolve(BASELINE, next(iter(prepared.sizes.values())))
    return TrainingFacts(
        model=common.plan.model_name,
        batch_size=common.plan.batch_size,
        epochs=common.plan.epochs,
        steps=common.steps,
        sample_rate=common.sample_rate,
        learning_rate=common.learning_rate,
        momentum=common.plan.momentum,
        weight_decay=common.plan.weight_decay,
        optimizer=common.plan.optimizer,
        schedule=common.plan.schedule,
        average=common.plan.average,
        average_share=common.plan.average_share,
        recalibration=plan.recalibration,
        class_weight=common.plan.class_weights or {},
        loss=common.plan.loss_name,
        delta=cells[0].plan.delta,
        noise_multipliers={
            f"{cell.method} {cell.setting}".strip(): cell.plan.noise_multiplier
            for cell in cells
            if cell.plan.policy.private
        },
        method_settings={
            cell.method: {
                name: value
                for name, value in asdict(cell.plan.policy).items()  # type: ignore[call-overload]
                if name not in cell.swept
            }
            for cell in cells
        },
        by_method={**plan.by_method, **_automatic(prepared)},
    )
