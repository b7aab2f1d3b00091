"""The cells of a comparison, method x setting x seed: trained once, and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import pandas as pd
import torch

from equidp._provenance import versions
from equidp.comparison.code_digest import object_digest, package_digest
from equidp.data.dataset import DataSource, DataSplit
from equidp.diagnostics import DiagnosisPlan, Diagnostics
from equidp.errors import ApproximationWarning, SettingError
from equidp.individual import IndividualAccountant
from equidp.kernel.epsilon import epsilon
from equidp.training.build import build
from equidp.training.plan import ResolvedPlan
from equidp.training.record import RunRecord
from equidp.training.recorder import EpochRecorder
from equidp.training.trainer import Callback, Trainer

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) after each finished run."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a comparison: everything that its figures depend on.

    Attributes:
        source: where the split of `seed` comes from.
        plan: how to train.
        setting: label of the epsilon asked for, "" where none was.
        target_epsilon: NaN where none was asked for.
        seed: of the split, the initial weights, the samples and the noise.
        engine: name of the gradient engine.
        release_epsilon: account for each example, and release each group's mean epsilon at this epsilon;
            None: neither.
        diagnosis: what to diagnose of it; None: nothing.
    """

    source: DataSource
    plan: ResolvedPlan
    setting: str
    target_epsilon: float
    seed: int
    engine: str
    release_epsilon: float | None = None
    diagnosis: DiagnosisPlan | None = None

    @property
    def method(self) -> str:
        """The method's name."""
        return self.plan.method

    def file_name(self) -> str:
        """Equal for equal data, settings and code; different otherwise."""
        plan = asdict(self.plan)
        plan["policy"] = {"settings": asdict(self.plan.policy), "code": object_digest(type(self.plan.policy))}  # type: ignore[call-overload]
        plan["factory"] = object_digest(self.plan.factory)
        diagnosis = None if self.diagnosis is None else asdict(self.diagnosis)
        facts = [plan, self.setting, self.target_epsilon, self.seed, self.engine, self.release_epsilon]
        facts += [diagnosis, split_facts(self.source, self.seed).digest, package_digest(), versions()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24] + ".parquet"

    def trainer(self, data: DataSplit, callbacks: Sequence[Callback] = ()) -> Trainer:
        """Checked and ready; nothing is spent yet."""
        return build(
            self.plan, data.train, seed=self.seed, secure=False, engine=self.engine, callbacks=callbacks
        )


@lru_cache(maxsize=2)
def split(source: DataSource, seed: int) -> DataSplit:
    """`source.split(seed)`, kept while one seed's runs follow each other."""
    return source.split(seed)


class SplitFacts(NamedTuple):
    """What is needed of a split before its runs begin."""

    digest: str
    num_train: int


@lru_cache(maxsize=256)
def split_facts(source: DataSource, seed: int) -> SplitFacts:
    """Kept for all seeds, where the splits themselves would fill memory."""
    data = split(source, seed)
    return SplitFacts(data.digest(), len(data.train))


def _execute(cell: Cell, path: Path, threads: int) -> int:
    """Trains one run and keeps its record, whole or not at all; returns its number of steps."""
    torch.set_num_threads(threads)
    data = split(cell.source, cell.seed)
    record = RunRecord()
    callbacks: list[Callback] = [EpochRecorder(record, data.test)]
    if cell.diagnosis is not None:
        callbacks.append(Diagnostics.of(cell.diagnosis, record=record, announce=lambda cost: None))
    accountant = None if cell.release_epsilon is None else IndividualAccountant(per_epoch=1)
    if accountant is not None:
        callbacks.append(accountant)
    trainer = cell.trainer(data, callbacks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)  # said before the first run
        run = trainer.fit()
    facts = {
        "method": cell.method,
        "setting": cell.setting,
        "target_epsilon": cell.target_epsilon,
        "seed": cell.seed,
    }
    spent = {"epsilon": run.epsilon(), "epsilon_rdp": epsilon(run.entries, run.delta, "rdp")}
    individual = pd.DataFrame() if accountant is None else _individual(cell, trainer, accountant)

    def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
        return [{**facts, **row} for row in table.to_dict("records")]

    further = {
        "results": rows(run.metrics(data.test).assign(**spent)),
        "noise_multiplier": trainer.noise_multiplier,
        "individual": rows(individual),
    }
    RunRecord({**record.settings, **further}, rows(record.table())).save(path)
    return trainer.steps


def _individual(cell: Cell, trainer: Trainer, accountant: IndividualAccountant) -> pd.DataFrame:
    """Epsilons of each group's examples: released with noise, by its bound, and true (sensitive_)."""
    assert cell.release_epsilon is not None
    report = accountant.report(trainer)
    raw = report.sensitive_by_group().set_index("group")[["mean", "median", "q95"]]
    released = report.release_by_group(cell.release_epsilon, trainer.delta)
    table = released[["group", "mean", "standard_error"]].rename(columns={"mean": "released_mean"})
    return table.assign(
        group_epsilon=report.group_epsilons,
        linear_group_epsilon=report.linear_group_epsilons,
        epsilon=report.largest,
        release_epsilon=cell.release_epsilon,
        epsilon_with_release=trainer.run().epsilon(),
    ).join(raw.add_prefix("sensitive_"), on="group")


def run_all(
    cells: Sequence[Cell], folder: Path, jobs: int | None, on_progress: Progress | None
) -> list[RunRecord]:
    """Trains what is not in the folder yet, in parallel, and reads all; cells are in order of seeds."""
    paths = [folder / cell.file_name() for cell in cells]
    missing = [(cell, path) for cell, path in zip(cells, paths, strict=True) if not path.exists()]
    done, total = 0, sum(cell.plan.steps for cell, _ in missing)
    if on_progress is not None and missing:
        on_progress(0, total)
    for steps in in_parallel(_execute, missing, jobs):
        done += steps
        if on_progress is not None:
            on_progress(done, total)
    return [RunRecord.load(path) for path in paths]


def in_parallel(task: Callable[..., Any], todo: Sequence[tuple[Any, ...]], jobs: int | None) -> Any:
    """Yields results of `task(*arguments, threads)` in order; threads is a process' share of the cores."""
    jobs = max(1, min(jobs or joblib.cpu_count(), len(todo)))
    threads = max(1, min(torch.get_num_threads(), int(joblib.cpu_count()) // jobs))
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator")
    return parallel(joblib.delayed(task)(*arguments, threads) for arguments in todo)


def check_folder(folder: Path) -> None:
    """Makes the folder of runs and tries to write in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingError(
            f"runs cannot be kept in {os.fspath(folder)!r} ({error.strerror}); give a folder that can be "
            "written."
        ) from error
