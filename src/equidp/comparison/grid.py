"""The cells of a comparison, method x setting x seed: trained once, and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import pandas as pd
import torch
from joblib.externals.loky import get_reusable_executor

from equidp._provenance import versions
from equidp.comparison.code_digest import package_digest
from equidp.comparison.module_digest import run_digest
from equidp.comparison.outputs import keep_outputs, outputs_path
from equidp.data.dataset import DataSource, DataSplit
from equidp.data.own import OwnSource
from equidp.data.unencoded import releases_of
from equidp.diagnostics import DiagnosisPlan, Diagnostics
from equidp.errors import ApproximationWarning, DataWarning, SettingError
from equidp.evaluation.predict import predict
from equidp.individual import IndividualAccountant
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger
from equidp.training.build import build
from equidp.training.device import chosen_device
from equidp.training.plan import ResolvedPlan
from equidp.training.record import RunRecord
from equidp.training.recorder import EpochRecorder
from equidp.training.trainer import Callback, Trainer

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) after each finished run."""


_NAMES = ("method", "model", "loss")
"""Fields of a plan that only name what its other fields and digests of code determine."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a comparison: everything that its figures depend on.

    Attributes:
        source: where the split of `seed` comes from.
        plan: how to train.
        setting: label of the epsilon and the swept settings, "" where neither was asked for.
        target_epsilon: NaN where none was asked for.
        seed: of the split, the initial weights, the samples and the noise.
        engine: name of the gradient engine.
        device: name of the one to train on. Figures differ by rounding alone between two, as they do between
            numbers of threads, so that what is kept of a run stands for all.
        release_epsilon: account for each example, and release each group's mean epsilon at this epsilon;
            None: neither.
        diagnosis: what to diagnose of it; None: nothing.
        swept: the swept settings that the method has, by name.
    """

    source: DataSource
    plan: ResolvedPlan
    setting: str
    target_epsilon: float
    seed: int
    engine: str
    device: str = "cpu"
    release_epsilon: float | None = None
    diagnosis: DiagnosisPlan | None = None
    swept: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> dict[str, Any]:
        """What its figures go by in a comparison: no part of what is kept."""
        names = {"method": self.method, "setting": self.setting, "target_epsilon": self.target_epsilon}
        return {**names, "seed": self.seed, **self.swept}

    @property
    def method(self) -> str:
        """The method's name."""
        return self.plan.method

    @property
    def code(self) -> dict[str, str]:
        """Digests of the code of policy, model and loss, as this process has it."""
        return {"policy": run_digest(type(self.plan.policy)), **part_digests(self.plan)}

    def file_name(self) -> str:
        """Equal for equal data, settings and code; different otherwise."""
        plan = {name: value for name, value in self.plan.to_dict().items() if name not in _NAMES}
        diagnosis = None if self.diagnosis is None else asdict(self.diagnosis)
        facts = [plan, self.code, self.seed, self.engine, self.release_epsilon]
        facts += [diagnosis, split_facts(self.source, self.seed), package_digest(), versions()]
        facts += [asdict(event) for event in releases_of(self.source)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24] + ".parquet"

    def trainer(self, data: DataSplit, callbacks: Sequence[Callback] = ()) -> Trainer:
        """Checked and ready; nothing is spent yet."""
        return build(
            self.plan,
            data.train,
            seed=self.seed,
            secure=False,
            device=chosen_device(self.device),
            engine=self.engine,
            callbacks=callbacks,
            ledger=MemoryLedger(tuple((event, 1) for event in releases_of(self.source))),
        )


def _all_code(cell: Cell) -> dict[str, str]:
    """Digests of all that a run executes of the user's; that of data counts by what it gives."""
    return {**cell.code, "source": source_digest(cell.source)}


class StaleWorker(SettingError):
    """A worker process has other code of the user's than the process that asks."""


def source_digest(source: DataSource) -> str:
    """Digest of the code of a source of the user's own, which may change under its name; "" for equidp's."""
    part = source.part if isinstance(source, OwnSource) else source
    code = run_digest(part if isinstance(part, type) else type(part))
    return "" if code.startswith("equidp.") else code


_State = tuple[str, tuple[str, int, int] | None]


def _state(source: DataSource) -> _State:
    """What may change while the source stays equal: its code; and its file's place, time (ns) and bytes."""
    try:
        path = os.path.abspath(source.path)  # type: ignore[attr-defined]
        facts = os.stat(path)
    except (AttributeError, OSError, TypeError):  # there is no file; or reading it will say so
        return source_digest(source), None
    return source_digest(source), (path, facts.st_mtime_ns, facts.st_size)


def split(source: DataSource, seed: int) -> DataSplit:
    """`source.split(seed)`, kept while one seed's runs follow each other."""
    return _split(source, seed, _state(source))


@lru_cache(maxsize=2)
def _split(source: DataSource, seed: int, state: _State) -> DataSplit:
    return source.split(seed)


class SplitFacts(NamedTuple):
    """What is needed of a split before its runs begin."""

    digest: str
    num_train: int
    names: tuple[tuple[str, ...], ...]


def split_facts(source: DataSource, seed: int) -> SplitFacts:
    """Kept for all seeds, where the splits themselves would fill memory."""
    return _split_facts(source, seed, _state(source))


@lru_cache(maxsize=256)
def _split_facts(source: DataSource, seed: int, state: _State) -> SplitFacts:
    data = _split(source, seed, state)
    return SplitFacts(data.digest(), len(data.train), (data.train.group_names, data.train.class_names))


def part_digests(plan: ResolvedPlan) -> dict[str, str]:
    """Digests of the code of a plan's model and loss."""
    parts = {"factory": plan.factory, "loss": plan.loss_function}
    return {name: "" if part is None else run_digest(part) for name, part in parts.items()}


def _execute(cell: Cell, path: Path, code: dict[str, str], threads: int) -> int:
    """Trains one run and keeps its record, whole or not at all; returns its number of steps.

    Raises:
        StaleWorker: this process has other code of the user's than the one that asks.
    """
    torch.set_num_threads(threads)
    if (here := _all_code(cell)) != code:
        changed = ", ".join(name for name in code if here[name] != code[name])
        raise StaleWorker(
            f"a worker process has other code of the {changed} than this one: a file was changed after it "
            "was imported. Start Python anew, or give jobs=1."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # said before the first run
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
    spent = {"epsilon": run.epsilon(), "epsilon_rdp": epsilon(run.entries, run.delta, "rdp")}
    individual = pd.DataFrame() if accountant is None else _individual(cell, trainer, accountant)
    further = {
        "results": run.metrics(data.test).assign(**spent).to_dict("records"),
        "noise_multiplier": trainer.noise_multiplier,
        "individual": individual.to_dict("records"),
    }
    keep_outputs(path, predict(run.model, data.test.inputs))
    RunRecord({**record.settings, **further}, record.table().to_dict("records")).save(path)
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
    try:
        _train_missing(cells, paths, jobs, on_progress)
    except StaleWorker:  # kept from an earlier comparison; new ones read the user's files anew
        get_reusable_executor().shutdown(wait=True)
        _train_missing(cells, paths, jobs, on_progress)
    return [RunRecord.load(path) for path in paths]


def _train_missing(
    cells: Sequence[Cell], paths: Sequence[Path], jobs: int | None, on_progress: Progress | None
) -> None:
    missing = [
        (cell, path, _all_code(cell)) for cell, path in zip(cells, paths, strict=True) if not is_kept(path)
    ]
    done, total = 0, sum(cell.plan.steps for cell, *_ in missing)
    if on_progress is not None and missing:
        on_progress(0, total)
    for steps in in_parallel(_execute, missing, jobs):
        done += steps
        if on_progress is not None:
            on_progress(done, total)


def in_parallel(task: Callable[..., Any], todo: Sequence[tuple[Any, ...]], jobs: int | None) -> Any:
    """Yields results of `task(*arguments, threads)` in order; threads is a process' share of the cores."""
    jobs = max(1, min(jobs or joblib.cpu_count(), len(todo)))
    threads = max(1, min(torch.get_num_threads(), int(joblib.cpu_count()) // jobs))
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator")
    return parallel(joblib.delayed(task)(*arguments, threads) for arguments in todo)


def is_kept(path: Path) -> bool:
    """Whether a run's record and its answers are there."""
    return path.exists() and outputs_path(path).exists()


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
