"""Preparation of a comparison before anything is trained: its runs, checked, and their cost and time."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from equidp._validate import check_whole
from equidp.accounting import calibrate_noise
from equidp.accounting.cache import remembered
from equidp.accounting.planned import check_share, default_delta, release_event
from equidp.advice.auto import AUTO, Choice, choose, images_of
from equidp.comparison.asked import Asked, Sweep, automatic_runs, named_methods, runs_of_a_seed, target
from equidp.comparison.grid import Cell, one_at_a_time, split, split_facts
from equidp.comparison.kept import is_kept
from equidp.comparison.outputs import check_metric
from equidp.comparison.spread import Workers
from equidp.data import open_source
from equidp.data.dataset import DataSource, DataSplit
from equidp.data.features import WithFeatures, check_not_varied
from equidp.data.unencoded import releases_of, with_private_noise
from equidp.data.views import Views
from equidp.diagnostics import DiagnosisPlan, Diagnostics
from equidp.errors import ApproximationWarning, PrivacyWarning, SettingError
from equidp.evaluation.metric import Metric
from equidp.evaluation.metrics import metric_named
from equidp.evaluation.predictions import Cut
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import Event
from equidp.policies.methods import BASELINE, MethodLike
from equidp.store import make_folder
from equidp.training.device import chosen_device, wait_for
from equidp.training.plan import Plan, checked_seeds, default_plan
from equidp.training.progress import duration

_TIMED_SECONDS = 0.5


class _Built(NamedTuple):
    """Privacy that a trainer of one kind of run would spend, and the seconds to build it in each run."""

    noise_multiplier: float
    entries: tuple[tuple[Event, int], ...]
    delta: float
    seconds: float


@dataclass(frozen=True)
class Prepared:
    """Runs of a comparison; each kind was built once.

    Attributes:
        source: of the data.
        data: the split of the first seed.
        plan: how to train, unless a run's own plan differs.
        cells: all runs, in order of seeds.
        sizes: seed -> number of training examples.
        folder: where finished runs are kept.
        swept: settings of which several values are compared -> those values.
        metric: the metric of costs.
        choice: what "auto" trains with; None: "auto" is not compared.
    """

    source: DataSource
    data: DataSplit
    plan: Plan
    cells: tuple[Cell, ...]
    sizes: Mapping[int, int]
    folder: Path
    swept: Mapping[str, tuple[Any, ...]]
    metric: Metric
    choice: Choice | None = None
    built: tuple[_Built, ...] = ()

    @property
    def first(self) -> list[Cell]:
        """The runs of the first seed."""
        return [cell for cell in self.cells if cell.seed == self.cells[0].seed]

    def in_words(self, jobs: int, *, fresh: bool = False) -> list[str]:
        """Sentences on the number of runs, what each private kind would spend, and the time of all runs.

        Args:
            jobs: processes at a time.
            fresh: True: kept runs are trained again.
        """
        missing = [cell for cell in self.cells if fresh or not is_kept(self.folder / cell.file_name())]
        runs, kept = len(self.cells), len(self.cells) - len(missing)
        lines = [
            f"{runs} runs: {len(self.first)} of each of {len(self.sizes)} seeds. {kept} are kept in "
            f"{os.fspath(self.folder)!r}, {len(missing)} would be trained."
        ]
        begins: dict[str, float] = {}
        for cell, built in zip(self.first, self.built, strict=True):
            label = f"{cell.method} {f'({cell.setting})' if cell.setting else ''}".strip()
            lines.append(f"{label}: {cell.plan.steps:,} steps, {_plan_text(cell, built)}.")
            begins[cell.method] = max(built.seconds, begins.get(cell.method, 0.0))
        if missing:
            kinds = {cell.method: cell for cell in missing}
            workers = Workers.of(jobs, len(missing))
            with one_at_a_time(workers.threads):
                seconds = {
                    method: _seconds_per_step(cell, _read_by(cell, self.data))
                    for method, cell in kinds.items()
                }
            total = sum(begins[cell.method] + seconds[cell.method] * cell.plan.steps for cell in missing)
            lines.append(
                f"Training would take about {duration(total / workers.number)} with {jobs} processes, and "
                "more to start them and to evaluate: a rehearsal counts building and steps alone."
            )
        return lines


def _plan_text(cell: Cell, built: _Built) -> str:
    if not cell.plan.policy.private:
        return "no privacy"
    spent = epsilon(built.entries, built.delta, "pld")
    return f"noise multiplier {built.noise_multiplier:.4g}, epsilon {spent:.4g} at delta {built.delta:g}"


def _seconds_per_step(cell: Cell, data: DataSplit) -> float:
    trainer = cell.trainer(data)
    batches, began, steps = trainer.batches(), 0.0, 0
    for batch in batches:
        trainer.step(batch)
        wait_for(chosen_device(cell.device))
        if not began:  # the first step warms up
            began = time.perf_counter()
            continue
        steps += 1
        if time.perf_counter() - began > _TIMED_SECONDS:
            break
    return (time.perf_counter() - began) / max(1, steps)


def prepare(
    data: str | DataSource,
    *,
    methods: Sequence[MethodLike],
    seeds: int | Sequence[int] = 5,
    plan: Plan | None = None,
    epsilons: Sequence[float] = (),
    sweep: Sweep | None = None,
    metric: str | Metric = "accuracy",
    cut: Cut = Cut(),
    engine: str = "ghost",
    directory: str | os.PathLike[str] = "equidp-runs",
    jobs: int | None = None,
    device: str = "cpu",
    release_epsilon: float | None = None,
    diagnosis: DiagnosisPlan | None = None,
    preprocessing_share: float | None = None,
) -> Prepared:
    """Return the runs of a comparison, each kind built once; arguments as in `equidp.compare`.

    Raises:
        SettingError, DataError, ModelError, PolicyError: an argument that no run can be trained with.
    """
    source = open_source(data) if isinstance(data, str) else data
    seeds, epsilons, sweep = checked_seeds(seeds), list(dict.fromkeys(epsilons)), dict(sweep or {})
    if jobs is not None:
        check_whole(1, jobs=jobs)
    chosen_device(device)
    named = named_methods(methods)
    sizes = {seed: split_facts(source, seed).num_train for seed in seeds}
    data_split, metric = split(source, seeds[0]), metric_named(metric)
    if data_split.train.target_bounds is not None:
        raise SettingError(
            "a comparison is of classifiers. For numbers, train by --method sgd and by a private method, and "
            "see what privacy cost each group by equidp evaluate --reference."
        )
    check_metric(metric, cut, data_split.test)
    plan = default_plan(source) if plan is None else plan
    if plan.delta is None:
        plan = replace(plan, delta=default_delta(max(sizes.values())))
    asked = runs_of_a_seed(named, plan, epsilons, sweep)
    choice = choose(images_of(source, seeds[0]) or data_split.train) if AUTO in methods else None
    if choice is not None:
        asked += automatic_runs(choice, plan, epsilons, max(sizes.values()))
    # Absolute, since worker processes outlive a comparison and stay where the first one was.
    folder = Path(directory).absolute()
    make_folder(folder)
    with remembered(folder):
        if release_epsilon is not None:  # refuse one that no noise can meet
            calibrate_noise(release_epsilon, plan.delta, 1.0, 1)
        cells = []
        for seed, size in sizes.items():
            for run in asked:
                read = source if choice is None or run.name != AUTO else choice.source(source)
                own = _preprocess_source(read, run, plan, preprocessing_share)
                resolved = run.resolve(size, releases_of(own))
                if isinstance(own, WithFeatures):
                    check_not_varied(own.features, Views(resolved.plan.views, resolved.plan.augmentation))
                watched = (release_epsilon, diagnosis) if resolved.policy.private else (None, None)
                names = {**dict.fromkeys(sweep), **run.swept}
                wanted = target(run.epsilon if epsilons else None)
                where = run.setting, wanted, seed, engine, device
                cells.append(Cell(own, resolved, *where, *watched, swept=names))
        swept = {name: tuple(values) for name, values in sweep.items()}
        if preprocessing_share is not None:
            data_split = replace(data_split, notes=_private_notes(cells))
        prepared = Prepared(source, data_split, plan, tuple(cells), sizes, folder, swept, metric, choice)
        return replace(prepared, built=_build_each(prepared.first, data_split))


def _preprocess_source(source: DataSource, run: Asked, plan: Plan, share: float | None) -> DataSource:
    """Return the source that a run reads; private runs preprocess privately, for a share of their epsilon."""
    if share is not None and releases_of(source):
        raise SettingError("the source preprocesses privately already; leave out preprocessing_share.")
    if share is None or run.name == BASELINE:
        return source
    check_share("preprocessing_share", share, run.epsilon)
    assert run.epsilon is not None
    assert plan.delta is not None
    return with_private_noise(source, release_event(share * run.epsilon, plan.delta).noise_multiplier)


def _private_notes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Notes on the data where preprocessing is private, in all runs but the baseline's."""
    private = next(cell for cell in cells if releases_of(cell.source))
    return (
        *split(private.source, private.seed).notes,
        "That holds for the private runs; plain SGD, the baseline, was preprocessed exactly.",
    )


def _read_by(cell: Cell, data: DataSplit) -> DataSplit:
    """Split that a cell trains on: its own features if it has some; otherwise `data`."""
    return split(cell.source, cell.seed) if isinstance(cell.source, WithFeatures) else data


def _build_each(cells: Sequence[Cell], data: DataSplit) -> tuple[_Built, ...]:
    """Build each kind of run once, to raise its errors before any run is trained."""
    built = []
    with warnings.catch_warnings():
        for category in (PrivacyWarning, ApproximationWarning):
            warnings.simplefilter("once", category)
        for cell in cells:
            read, began = _read_by(cell, data), time.perf_counter()
            trainer = cell.trainer(read)
            seconds = time.perf_counter() - began
            entries = (*trainer.ledger.entries, (trainer.event, trainer.steps))
            built.append(_Built(trainer.noise_multiplier, entries, trainer.delta, seconds))
            if cell.diagnosis is not None:
                Diagnostics.of(cell.diagnosis).check(trainer)
    return tuple(built)
