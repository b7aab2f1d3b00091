"""The cells of a comparison, method x setting x seed, and how one is trained."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from equidp._provenance import versions
from equidp.accounting.planned import RECALIBRATION
from equidp.data.dataset import DataSource, DataSplit
from equidp.data.features import WithFeatures
from equidp.data.own import OwnSource
from equidp.data.unencoded import releases_of
from equidp.diagnostics import DiagnosisPlan, Diagnostics
from equidp.digest import code_digest
from equidp.errors import ApproximationWarning, DataError, DataWarning, SettingError
from equidp.evaluation.predict import predict
from equidp.individual import IndividualAccountant
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import MemoryLedger
from equidp.store import FIGURES
from equidp.tables.cache import key_of
from equidp.training.build import build
from equidp.training.device import chosen_device
from equidp.training.plan import ResolvedPlan
from equidp.training.recalibration import recalibrate
from equidp.training.record import RunRecord
from equidp.training.recorder import EpochRecorder
from equidp.training.trainer import Callback, Trainer

_NAMES = ("method", "model", "loss")
"""Plan fields excluded from the key of a kept run: names of what other fields and digests determine."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a comparison: everything that its figures depend on.

    Attributes:
        source: where the split of `seed` comes from.
        plan: how to train.
        setting: label of the epsilon and the swept settings; "" without either.
        target_epsilon: NaN without a target.
        seed: of the split, the initial weights, the samples and the noise.
        engine: name of the gradient engine.
        device: name of the device to train on. Figures of two devices differ by rounding alone, as they do
            between numbers of threads, so that one kept run serves all devices.
        release_epsilon: account for each example, and release each group's mean epsilon at this epsilon;
            None: no accounting and no release.
        diagnosis: what to diagnose of the run; None: nothing.
        curves: take figures of the test set after each epoch too.
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
    curves: bool = True
    swept: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> dict[str, Any]:
        """Names of the run in tables of a comparison; not part of the key of a kept run."""
        names = {"method": self.method, "setting": self.setting, "target_epsilon": self.target_epsilon}
        return {**names, "seed": self.seed, **self.swept}

    @property
    def method(self) -> str:
        """The method's name."""
        return self.plan.method

    @property
    def label(self) -> str:
        """Name of the run in messages."""
        return " ".join(filter(None, (self.method, self.setting, f"seed={self.seed}")))

    @property
    def code(self) -> dict[str, str]:
        """Digests of the code of policy, model and loss in this process."""
        return {"policy": code_digest(type(self.plan.policy)), **part_digests(self.plan)}

    def file_name(self) -> str:
        """File name of the run's record: equal for equal data, settings and code; different otherwise."""
        plan = {name: value for name, value in self.plan.settings.items() if name not in _NAMES}
        diagnosis = None if self.diagnosis is None else asdict(self.diagnosis)
        facts = [plan, self.code, self.seed, self.engine, self.release_epsilon]
        facts += [diagnosis, self.curves, split_facts(self.source, self.seed), FIGURES, versions()]
        facts += [asdict(event) for event in releases_of(self.source)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24] + ".parquet"

    def ledger(self) -> MemoryLedger:
        """Ledger that counts the releases of the split."""
        return MemoryLedger(tuple((event, 1) for event in releases_of(self.source)))

    def trainer(
        self, data: DataSplit, callbacks: Sequence[Callback] = (), ledger: MemoryLedger | None = None
    ) -> Trainer:
        """Trainer of the run, checked; no step is spent yet."""
        return build(
            self.plan,
            data.train,
            seed=self.seed,
            secure=False,
            device=chosen_device(self.device),
            engine=self.engine,
            callbacks=callbacks,
            ledger=self.ledger() if ledger is None else ledger,
        )


class StaleWorker(SettingError):
    """A worker process has other code than the process that sent the run."""


def facts(cell: Cell) -> dict[str, str]:
    """Facts that a run's figures depend on, in this process: versions, and digests of code and examples."""
    code = {**cell.code, "source": source_digest(cell.source), "equidp's figures": str(FIGURES)}
    return {**versions(), **code, "examples": split_facts(cell.source, cell.seed).digest}


def check_here(cell: Cell, asked: Mapping[str, str]) -> None:
    """Check that a run in this process would be the run that was sent.

    Args:
        asked: `facts` of the cell in the process that sent it.

    Raises:
        StaleWorker: other code or packages.
        DataError: other examples, or no examples.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # said before the first run
        here = facts(cell)
    changed = [name for name in asked if here[name] != asked[name]]
    installed = {name: f"{name} ({here[name]}, not {asked[name]})" for name in versions()}
    if changed == ["examples"]:
        data = getattr(cell.source, "path", cell.source.name)
        raise DataError(
            f"{os.fspath(data)!r} gives a worker process other examples (seed {cell.seed}) than the process "
            "that asks; copy the same data there."
        )
    if changed:
        listed = ", ".join(installed.get(name, name) for name in changed)
        raise StaleWorker(f"a worker process has other code of the {listed} than this one")


def source_digest(source: DataSource) -> str:
    """Digest of the code of a user-defined source, which may change under its name; "" for equidp's own."""
    if isinstance(source, WithFeatures):
        return _features_digest(source) + source_digest(source.source)
    part = source.part if isinstance(source, OwnSource) else source
    code = code_digest(part if isinstance(part, type) else type(part))
    return "" if code.startswith("equidp.") else code


def _features_digest(source: WithFeatures) -> str:
    """Digest of a user-defined transform: a function's code, or the layers and weights of a network."""
    transform = source.transform
    if not isinstance(transform, nn.Module):
        code = code_digest(transform)
        return "" if code.startswith("equidp.") else code
    weights = [value.float().cpu().numpy() for value in transform.state_dict().values()]
    return key_of(str(transform), *weights)


_State = tuple[str, tuple[str, int, int] | None]


def _state(source: DataSource) -> _State:
    """State that may change while the source stays equal: code; path, time (ns) and bytes of its file."""
    try:
        path = os.path.abspath(source.path)  # type: ignore[attr-defined]
        found = os.stat(path)
    except (AttributeError, OSError, TypeError):  # there is no file; or reading it will say so
        return source_digest(source), None
    return source_digest(source), (path, found.st_mtime_ns, found.st_size)


def split(source: DataSource, seed: int) -> DataSplit:
    """Return `source.split(seed)`, kept in memory while one seed's runs follow each other."""
    return _split(source, seed, _state(source))


@lru_cache(maxsize=2)
def _split(source: DataSource, seed: int, state: _State) -> DataSplit:
    return source.split(seed)


class SplitFacts(NamedTuple):
    """Facts of a split that are needed before its runs begin."""

    digest: str
    num_train: int
    names: tuple[tuple[str, ...], ...]


def split_facts(source: DataSource, seed: int) -> SplitFacts:
    """Return the facts of a split, kept for all seeds; the splits themselves would fill memory."""
    return _split_facts(source, seed, _state(source))


@lru_cache(maxsize=256)
def _split_facts(source: DataSource, seed: int, state: _State) -> SplitFacts:
    data = _split(source, seed, state)
    return SplitFacts(data.digest(), len(data.train), (data.train.group_names, data.train.class_names))


def part_digests(plan: ResolvedPlan) -> dict[str, str]:
    """Digests of the code of a plan's model and loss."""
    parts = {"factory": plan.plan.factory, "loss": plan.plan.loss_function}
    return {name: "" if part is None else code_digest(part) for name, part in parts.items()}


class Finished(NamedTuple):
    """Result of a run: its figures, and its outputs on the test set, [n, outputs]."""

    record: RunRecord
    outputs: np.ndarray


_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def one_at_a_time(threads: int | None) -> Iterator[None]:
    """Let one thread of a process train, with `threads` torch threads; None: as many as torch has.

    Torch's generator for initial weights and its number of threads are one for all threads of a process.
    """
    with _ONE_AT_A_TIME:
        if threads is not None:
            torch.set_num_threads(threads)
        yield


def train_cell(cell: Cell, asked: Mapping[str, str], threads: int | None) -> Finished:
    """Train one run in this process; the process that sent it keeps the result.

    Args:
        asked: `facts` of the cell in the process that sent it.
        threads: of torch; None: as many as torch has.

    Raises:
        StaleWorker, DataError: this process has other code, packages or examples than the sender.
    """
    with one_at_a_time(threads):
        check_here(cell, asked)
        return _train(cell, split(cell.source, cell.seed))


def _train(cell: Cell, data: DataSplit) -> Finished:
    record, began = RunRecord(), time.perf_counter()
    callbacks: list[Callback] = [EpochRecorder(record, data.test)] if cell.curves else []
    if cell.diagnosis is not None:
        callbacks.append(Diagnostics.of(cell.diagnosis, record=record, announce=lambda cost: None))
    accountant = None if cell.release_epsilon is None else IndividualAccountant(per_epoch=1)
    if accountant is not None:
        callbacks.append(accountant)
    ledger, recalibration = cell.ledger(), cell.plan.recalibration_noise
    fit = ledger.pay(RECALIBRATION, recalibration) if recalibration else recalibration
    trainer = cell.trainer(data, callbacks, ledger)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)  # said before the first run
        run = recalibrate(trainer.fit(), trainer, fit)
    spent = {"epsilon": run.epsilon(), "epsilon_rdp": epsilon(run.entries, run.delta, "rdp")}
    individual = pd.DataFrame() if accountant is None else _individual(cell, trainer, accountant)
    further = {
        "results": run.metrics(data.test).assign(**spent).to_dict("records"),
        "noise_multiplier": trainer.noise_multiplier,
        "individual": individual.to_dict("records"),
        "seconds": time.perf_counter() - began,
    }
    kept = RunRecord({**record.settings, **further}, record.table().to_dict("records"))
    return Finished(kept, predict(run.model, data.test.inputs).numpy())


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
