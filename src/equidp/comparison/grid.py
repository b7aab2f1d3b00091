"""The runs of a comparison: each has a name on disk that its figures follow from, and is kept there once finished."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import cloudpickle
import joblib
import pandas as pd
import torch

from equidp.accounting.schedule import checked_schedule
from equidp.comparison.progress import Progress, _StepFile, _watched
from equidp.data.dataset import DataSource, DataSplit
from equidp.diagnostics import DiagnosisPlan, Diagnostics
from equidp.errors import ApproximationWarning, SettingError
from equidp.individual import IndividualAccountant
from equidp.kernel.epsilon import epsilon
from equidp.training.build import make_trainer
from equidp.training.plan import Plan
from equidp.training.record import RunRecord
from equidp.training.recorder import EpochRecorder
from equidp.training.trainer import Callback, Trainer

if TYPE_CHECKING:
    pass


INDIVIDUAL = "individual"
"""Where a run's record keeps the epsilons of its groups' examples."""


@dataclass(frozen=True, eq=False)
class RunSpec:
    """One run of a comparison: everything that its figures depend on.

    Attributes:
        source: where the split of `seed` comes from.
        method: name of the method.
        plan: how to train; already this method's own.
        setting: label of the epsilon asked for, "" where none was.
        target_epsilon: NaN where none was asked for.
        seed: of the split, the initial weights, the samples and the noise.
        engine: name of the gradient engine.
        release_epsilon: account for each example, and release the mean epsilon of each group at this epsilon; None: neither.
        diagnosis: what to diagnose of it; None: nothing.
    """

    source: DataSource
    method: str
    plan: Plan
    setting: str
    target_epsilon: float
    seed: int
    engine: str
    release_epsilon: float | None = None
    diagnosis: DiagnosisPlan | None = None

    def file_name(self) -> str:
        """Equal for equal data, settings and code; different otherwise."""
        plan = asdict(self.plan)
        if not isinstance(self.plan.model, str):
            plan["model"] = hashlib.sha256(cloudpickle.dumps(self.plan.model)).hexdigest()
        facts = [self.method, plan, self.setting, self.target_epsilon, self.seed, self.engine]
        facts += [self.release_epsilon]
        facts += [None if self.diagnosis is None else asdict(self.diagnosis)]
        facts += [split_facts(self.source, self.seed).digest, _code_fingerprint(), torch.__version__]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24] + ".parquet"

    def num_steps(self) -> int:
        examples = split_facts(self.source, self.seed).num_train
        return checked_schedule(examples, self.plan.batch_size, epochs=self.plan.epochs)[1]


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


@lru_cache(maxsize=1)
def _code_fingerprint() -> str:
    """A run that other code made is not this code's run."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _execute(spec: RunSpec, path: Path, step_file: Path, threads: int) -> None:
    """Trains one run and puts its record on disk, whole or not at all."""
    torch.set_num_threads(threads)
    data = split(spec.source, spec.seed)
    record = RunRecord()
    callbacks: list[Callback] = [EpochRecorder(record, data.test), _StepFile(step_file)]
    if spec.diagnosis is not None:
        callbacks.append(Diagnostics.of(spec.diagnosis, record=record, announce=lambda cost: None))
    accountant = None if spec.release_epsilon is None else IndividualAccountant(per_epoch=1)
    if accountant is not None:
        callbacks.append(accountant)
    trainer = make_trainer(spec, data, tuple(callbacks))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)  # said before the first run
        run = trainer.fit()
    facts = {
        "method": spec.method,
        "setting": spec.setting,
        "target_epsilon": spec.target_epsilon,
        "seed": spec.seed,
    }
    spent = {"epsilon": run.epsilon(), "epsilon_rdp": epsilon(run.entries, run.delta, "rdp")}
    rows = [{**facts, **row, **spent} for row in run.metrics(data.test).to_dict("records")]
    epochs = [{**facts, **row} for row in record.table().to_dict("records")]
    individual = [] if accountant is None else _individual_rows(spec, trainer, accountant)
    RunRecord(
        {
            **record.settings,
            "results": rows,
            "noise_multiplier": trainer.noise_multiplier,
            INDIVIDUAL: [{**facts, **row} for row in individual],
        },
        epochs,
    ).save(path)
    step_file.write_text(str(trainer.steps_done))


def _individual_rows(
    spec: RunSpec, trainer: Trainer, accountant: IndividualAccountant
) -> list[dict[str, float | str]]:
    """Epsilons of each group's examples: released with noise, what its bound says, and, named sensitive, as they are."""
    assert spec.release_epsilon is not None
    report = accountant.report(trainer)
    raw = report.sensitive_by_group().set_index("group")
    released = report.release_by_group(spec.release_epsilon, trainer.delta)
    spent = trainer.run().epsilon()
    return [
        {
            "group": row["group"],
            "released_mean": row["mean"],
            "standard_error": row["standard_error"],
            "group_epsilon": float(report.group_epsilons[at]),
            "linear_group_epsilon": float(report.linear_group_epsilons[at]),
            "epsilon": report.largest,
            "release_epsilon": spec.release_epsilon,
            "epsilon_with_release": spent,
            **{f"sensitive_{name}": float(raw.loc[row["group"], name]) for name in ("mean", "median", "q95")},
        }
        for at, row in enumerate(released.to_dict("records"))
    ]


def run_all(
    specs: list[RunSpec], folder: Path, jobs: int | None, on_progress: Progress | None
) -> list[RunRecord]:
    """Runs what is not on disk yet, in parallel, and reads all.

    Args:
        specs: runs, those of one seed next to each other.
        folder: where finished runs are kept.
        jobs: processes; None: one per core.
        on_progress: where progress goes.
    """
    paths = [folder / spec.file_name() for spec in specs]
    missing = [(spec, path) for spec, path in zip(specs, paths, strict=True) if not path.exists()]
    jobs = max(1, min(jobs or joblib.cpu_count(), len(missing)))
    with tempfile.TemporaryDirectory() as scratch:
        step_files = [Path(scratch) / path.name for _, path in missing]
        with _watched(step_files, sum(spec.num_steps() for spec, _ in missing), on_progress):
            joblib.Parallel(n_jobs=jobs)(
                joblib.delayed(_execute)(spec, path, step_file, threads_each(jobs))
                for (spec, path), step_file in zip(missing, step_files, strict=True)
            )
    return [RunRecord.load(path) for path in paths]


def threads_each(jobs: int) -> int:
    """Threads of torch for each of so many processes: a share of the cores, and no more than this process may use."""
    return max(1, min(torch.get_num_threads(), int(joblib.cpu_count()) // jobs))


def results_table(records: list[RunRecord]) -> pd.DataFrame:
    """One row per run and group, [runs * (K + 1)]."""
    return pd.DataFrame([row for record in records for row in record.settings["results"]])


def check_folder(folder: Path) -> None:
    """Makes the folder of runs and tries it, so that a full or read-only disk is found out before training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingError(
            f"runs cannot be kept in {os.fspath(folder)!r} ({error.strerror}); give a folder that can be written."
        ) from error
