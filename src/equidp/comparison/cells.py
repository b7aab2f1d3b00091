"""Cells of a comparison, method x setting x seed: how one is trained, and its results, which are kept.

`train_all` trains and keeps the results of any `Training`; a `Cell` is the training of a network by a method.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from equidp._extras import require_extra
from equidp._provenance import versions
from equidp.comparison.sweep import counts_events
from equidp.comparison.workers import Call, StaleWorker, renew_processes
from equidp.data.class_counts import balanced_class_weights, count_classes
from equidp.data.dataset import ALL, DataSource, DataSplit, GroupedDataset
from equidp.data.features import WithFeatures
from equidp.data.own import OwnSource
from equidp.data.table import releases_of
from equidp.data.validation import ValidationPart
from equidp.diagnostics import Diagnostics
from equidp.digest import code_digest, module_digest, read_code
from equidp.errors import ApproximationWarning, DataError, DataWarning
from equidp.evaluation.costs import EPSILON_OF_GROUP
from equidp.evaluation.groups import group_metrics
from equidp.evaluation.predictions import Decision, Predictions, base_rate_decision, predict
from equidp.individual import Individual
from equidp.kernel.event import Entries
from equidp.kernel.noise import SeededRandomness
from equidp.ledger.ledger import Ledger
from equidp.store import FIGURES, Claim, Entry, Store, key_of
from equidp.training.build import build
from equidp.training.device import chosen_device
from equidp.training.record import EpochRecorder, RunRecord, Watch
from equidp.training.resolved import ResolvedPlan
from equidp.training.trainer import Callback, Trainer

with require_extra("tables"):
    import pandas as pd

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) after each finished run."""

Spread = Callable[[Callable[..., Any], Iterable[Call]], Iterable[tuple[str, Any]]]
"""Makes calls of a function somewhere, and yields the key of each with its result, as calls finish."""

_COUNTS = 31  # of a seed's streams: apart from those of samples, training noise and preprocessing
_PAUSE = 1.0
"""Seconds between checks of runs that another process trains."""


class Training(Protocol):
    """One training whose results are kept: of a network, or of a model to compare it with.

    Attributes:
        source: where the split comes from.
        seed: of the split and of all that is drawn.
    """

    @property
    def source(self) -> DataSource: ...

    @property
    def seed(self) -> int: ...

    @property
    def key(self) -> str | None:
        """Key of the results: equal for equal data, settings and code; None for code without source."""

    @property
    def names(self) -> dict[str, Any]:
        """Names in tables of a comparison."""

    @property
    def label(self) -> str:
        """Name in messages."""

    @property
    def steps(self) -> int:
        """Number of steps that progress counts."""

    @property
    def parts(self) -> Mapping[str, Any]:
        """Classes and functions whose code the results depend on, by name; those of the user may change."""

    def train(self, data: DataSplit) -> CellResult:
        """Train on the split of the seed, and return the results."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a comparison: everything that its results depend on.

    Attributes:
        source: where the split of `seed` comes from.
        plan: how to train.
        setting: label of the epsilon and the swept settings, or of what tells a candidate for the baseline
            from others; "" without either.
        target_epsilon: NaN without a target.
        seed: of the split, the initial weights, the samples and the noise.
        engine: name of the gradient engine.
        device: name of the device to train on. Results of two devices differ by rounding alone, as they do
            between numbers of threads, so that one stored run serves all devices.
        release_epsilon: account for each example, and release each group's mean epsilon at this epsilon;
            None: no accounting and no release.
        diagnosis: what to diagnose of the run; None: nothing.
        curves: take metrics of the test set after each epoch too.
        swept: the swept settings that the method has, by name.
        baseline: name of the class of models whose baseline the run is measured against, or which it is a
            candidate for.
        counts_noise: noise multiplier of a release of the counts of each class; 0: exact counts, of training
            without privacy; None: classes are not counted.
        balanced: weigh the losses of each class by one over its count.
        callbacks: what the run records beside its results; each has a table.
    """

    source: DataSource
    plan: ResolvedPlan
    setting: str
    target_epsilon: float
    seed: int
    engine: str
    device: str = "cpu"
    release_epsilon: float | None = None
    diagnosis: Diagnostics | None = None
    curves: bool = True
    swept: Mapping[str, Any] = field(default_factory=dict)
    baseline: str = ""
    counts_noise: float | None = None
    balanced: bool = False
    callbacks: tuple[Watch, ...] = ()

    @property
    def names(self) -> dict[str, Any]:
        """Names of the run in tables of a comparison; not part of the key of a stored run."""
        names = {"method": self.method, "setting": self.setting, "baseline": self.baseline}
        return {**names, "target_epsilon": self.target_epsilon, "seed": self.seed, **self.swept}

    @property
    def method(self) -> str:
        """The method's name."""
        return self.plan.method

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.plan.steps

    @property
    def parts(self) -> Mapping[str, Any]:
        """Policy, model and loss; those of the user may change."""
        return plan_parts(self.plan)

    @property
    def label(self) -> str:
        """Name of the run in messages."""
        return " ".join(filter(None, (self.method, self.setting, f"seed={self.seed}")))

    @property
    def key(self) -> str | None:
        """Key of the run's results: equal for equal data, settings and code; None for code without source."""
        plan = self.plan.key_parts
        code = part_digests(self.plan)
        if None in code.values():
            return None
        diagnosis = None if self.diagnosis is None else repr(self.diagnosis)
        facts = [plan, code, self.seed, self.engine, self.release_epsilon, diagnosis, self.curves]
        if self.counts_noise is not None:
            facts += [self.counts_noise, self.balanced]
        facts += [[type(each).__name__, asdict(each)] for each in self.callbacks]  # type: ignore[call-overload]
        released = [asdict(event) for event in releases_of(self.source)]
        return key_of(*facts, split_facts(self.source, self.seed), released, FIGURES, versions())

    @property
    def released(self) -> Entries:
        """Releases beside the steps: the split's preprocessing, and counts of classes."""
        return tuple((event, 1) for event in (*releases_of(self.source), *counts_events(self.counts_noise)))

    def class_weights(self, train: GroupedDataset) -> Mapping[str, float] | None:
        """Weights of the classes' losses: the plan's, or by their counts."""
        if not self.balanced:
            return self.plan.plan.class_weights
        noise = self.counts_noise or 0.0
        return balanced_class_weights(count_by_seed(train, noise, self.seed), noise)

    def trainer(
        self,
        data: DataSplit,
        callbacks: Sequence[Callback] = (),
        individual: Individual | None = None,
    ) -> Trainer:
        """Trainer of the run, checked; no step is spent yet."""
        ledger = Ledger(unit=data.train.unit)
        run = ledger.new_run(seeded=True)
        for event, _ in self.released:
            ledger.charge(run, event)
        return build(
            self.plan.with_class_weight(self.class_weights(data.train)),
            data.train,
            weights_seed=self.seed,
            seed=self.seed,
            device=chosen_device(self.device),
            engine=self.engine,
            callbacks=callbacks,
            individual=individual,
            ledger=(ledger, run),
        )

    def train(self, data: DataSplit) -> CellResult:
        """Train on the split, with what is to be recorded, accounted for and diagnosed."""
        return _train(self, data)


def count_by_seed(train: GroupedDataset, noise_multiplier: float, seed: int) -> dict[str, float]:
    """Counts of the classes by name, whose noise follows from the seed; 0: exact counts."""
    return count_classes(train, noise_multiplier, SeededRandomness(seed, _COUNTS))


@final
@dataclass(frozen=True)
class DecisionRule:
    """Decision of each training of a comparison.

    Attributes:
        decision: of all trainings.
        at_base_rate: threshold of each training at the share of the positive class that it counted: with the
            noise of its release, and exactly without privacy.
    """

    decision: Decision
    at_base_rate: bool = False

    def decision_of(self, training: Training) -> Decision:
        """Return the decision of a training."""
        if not self.at_base_rate:
            return self.decision
        noise = (training.counts_noise or 0.0) if isinstance(training, Cell) else 0.0
        train = split(training.source, training.seed).train
        return base_rate_decision(self.decision.positive, count_by_seed(train, noise, training.seed))


def plan_parts(plan: ResolvedPlan) -> dict[str, Any]:
    """Classes and functions whose code a run's results depend on; those of the user may change."""
    parts = {"method": type(plan.policy), "model": plan.plan.factory, "loss": plan.plan.loss_function}
    return {name: part for name, part in parts.items() if part is not None}


def part_digests(plan: ResolvedPlan) -> dict[str, str | None]:
    """Digests of the code of a plan's policy, model and loss; None for code without source."""
    return {name: code_digest(part) for name, part in plan_parts(plan).items()}


def facts(cell: Training) -> dict[str, str | None]:
    """Facts that a run's results depend on, in this process: versions, source of modules, and examples.

    What a pickle holds, such as the code of a notebook, is not among them.
    """
    modules: dict[str, str] = {}
    for part in (*cell.parts.values(), *source_parts(cell.source)):
        modules |= read_code(part)[1]
    found = {f"module {name}": digest for name, digest in modules.items()}
    return {**_common_facts(), **found, "examples": split_facts(cell.source, cell.seed).digest}


def _common_facts() -> dict[str, str | None]:
    return {**versions(), "figures of equidp": str(FIGURES)}


def check_here(cell: Training, asked: Mapping[str, str | None]) -> None:
    """Check that a run in this process would be the run that was sent.

    Args:
        cell: the run.
        asked: `facts` of the cell in the process that sent it.

    Raises:
        StaleWorker: other code or packages.
        DataError: other examples, or no examples.
    """
    here = _common_facts()
    for fact in asked.keys() - here.keys():
        kind, _, name = fact.partition(" ")
        here[fact] = module_digest(name) if kind == "module" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # said before the first run
        here["examples"] = split_facts(cell.source, cell.seed).digest
    changed = [name for name in asked if here[name] != asked[name]]
    installed = {name: f"{name} ({here[name]}, not {asked[name]})" for name in versions()}
    if changed == ["examples"]:
        data = getattr(cell.source, "path", cell.source.name)
        raise DataError(
            f"{os.fspath(data)!r} gives a worker process other examples (seed {cell.seed}) than the process "
            "that asks; copy the same data there.",
            field="data",
        )
    if changed:
        listed = ", ".join(installed.get(name, name) for name in changed)
        raise StaleWorker(
            f"a worker process has other code of the {listed} than this one", field=", ".join(changed)
        )


def source_parts(source: DataSource) -> list[Any]:
    """Classes and functions that make a source's examples, but networks of features."""
    if isinstance(source, WithFeatures):
        own = [] if isinstance(source.transform, nn.Module) else [source.transform]
        return [*own, *source_parts(source.source)]
    if isinstance(source, ValidationPart):
        return source_parts(source.source)
    part = source.source if isinstance(source, OwnSource) else source
    return [part if isinstance(part, type) else type(part)]


def source_digest(source: DataSource) -> str:
    """Digest of a source's code and of the weights of a network of features, which change under a name."""
    code = [code_digest(part) for part in source_parts(source)]
    if isinstance(source, WithFeatures) and isinstance(source.transform, nn.Module):
        weights = [value.float().cpu().numpy() for value in source.transform.state_dict().values()]
        return key_of(code, str(source.transform), *weights)
    return key_of(code)


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


@final
@dataclass(frozen=True, eq=False)
class CellResult:
    """Results of a run.

    Attributes:
        results: one row a group, and one for "all": metrics of the test set, and the run's epsilon.
        epochs: one row a group and epoch, by `EpochRecorder`; empty without curves.
        individual: one row a group, if requested: the privacy of its examples.
        diagnosis: tables of the diagnosis by name, if requested.
        outputs: of the model on the test set, [n, outputs].
        seconds: of training.
        tables: of the callbacks of the cell, by name.
    """

    results: pd.DataFrame
    epochs: pd.DataFrame
    individual: pd.DataFrame
    diagnosis: Mapping[str, pd.DataFrame]
    outputs: npt.NDArray[Any]
    seconds: float
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    @classmethod
    def of_shares(
        cls,
        shares: npt.NDArray[np.float64],
        classes: npt.NDArray[np.int64],
        test: GroupedDataset,
        *,
        spent: Mapping[str, float],
        seconds: float,
    ) -> CellResult:
        """Return results of a model that predicts probabilities, by scikit-learn's conventions.

        Args:
            shares: predicted probabilities of the test rows, [n, len(classes)]; raised to at least 1e-12.
            classes: that the model was trained on; the others have 1e-12.
            test: set that was predicted.
            spent: "epsilon" and "epsilon_rdp" of the training.
            seconds: of training and prediction.
        """
        of_all = np.zeros((len(test), test.num_classes))
        of_all[:, classes] = shares
        outputs = torch.from_numpy(np.log(np.maximum(of_all, 1e-12))).float()
        nothing = pd.DataFrame()
        return cls(
            group_metrics(outputs, test).assign(**spent), nothing, nothing, {}, outputs.numpy(), seconds
        )

    def keep(self, claim: Claim, what: str) -> Entry:
        """Write the results as an entry of a store."""
        tables = {name: getattr(self, name) for name in _TABLES}
        diagnosis = {f"{_DIAGNOSIS}{name}": table for name, table in self.diagnosis.items()}
        watched = {f"{_WATCHED}{name}": table for name, table in self.tables.items()}
        parts = {**tables, **diagnosis, **watched, "outputs": self.outputs}
        facts = {"seconds": self.seconds, "diagnosis": list(self.diagnosis), "tables": list(self.tables)}
        return claim.put(parts, facts, what=what)

    @classmethod
    def read(cls, entry: Entry) -> CellResult:
        """Read results that `keep` wrote; outputs are read where they are used."""
        tables = {name: entry.table(name) for name in _TABLES}
        diagnosis = {name: entry.table(f"{_DIAGNOSIS}{name}") for name in entry.facts["diagnosis"]}
        watched = {name: entry.table(f"{_WATCHED}{name}") for name in entry.facts.get("tables", ())}
        outputs, seconds = entry.array("outputs", mapped=True), entry.facts["seconds"]
        return cls(**tables, diagnosis=diagnosis, outputs=outputs, seconds=seconds, tables=watched)

    def predictions(self, test: GroupedDataset, decision: Decision) -> Predictions:
        """Predictions of the run on its test set."""
        outputs = torch.from_numpy(np.array(self.outputs))
        return Predictions.of(outputs, test.targets, test.class_names, decision)


Train = Callable[[Sequence[Training]], Sequence[CellResult]]
"""Trains all that it is given, in any order, and returns their results in the order given."""


def kept_results(trainings: Sequence[Training], folder: Path) -> list[CellResult]:
    """Return the results of the trainings that are kept in a folder of results."""
    store = Store(folder)
    entries = [store.get(key) for each in trainings if (key := each.key) is not None]
    return [CellResult.read(entry) for entry in entries if entry is not None]


def is_kept(training: Training, folder: Path) -> bool:
    """Return True where the results of a training are in a folder of results."""
    return (key := training.key) is not None and Store(folder).get(key) is not None


_TABLES = ("results", "epochs", "individual")
_DIAGNOSIS, _WATCHED = "diagnosis-", "watched-"


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


def train_cell(cell: Training, asked: Mapping[str, str | None], threads: int | None) -> CellResult:
    """Train one run in this process; the process that sent it keeps the result.

    Args:
        asked: `facts` of the cell in the process that sent it.
        threads: of torch; None: as many as torch has.

    Raises:
        StaleWorker, DataError: this process has other code, packages or examples than the sender.
    """
    with one_at_a_time(threads):
        check_here(cell, asked)
        return cell.train(split(cell.source, cell.seed))


def _train(cell: Cell, data: DataSplit) -> CellResult:
    record, began = RunRecord(), time.perf_counter()
    callbacks: list[Callback] = [EpochRecorder(record, data.test)] if cell.curves else []
    diagnostics = cell.diagnosis and replace(cell.diagnosis)
    if diagnostics is not None:
        callbacks.append(diagnostics)
    individual = None if cell.release_epsilon is None else Individual(per_epoch=1)
    watched = {each.name: each.callback(data) for each in cell.callbacks}
    counted = individual or next((each.individual for each in watched.values() if each.individual), None)
    trainer = cell.trainer(data, [*callbacks, *watched.values()], counted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)  # said before the first run
        run = trainer.fit()
    spent = {"epsilon": run.epsilon(), "epsilon_rdp": run.epsilon(accountant="rdp")}
    results = run.metrics(data.test).assign(**spent)
    if trainer.event.shares:
        own = {**run.epsilon_by_group(), ALL: spent["epsilon"]}
        results[EPSILON_OF_GROUP] = results["group"].map(own)
    return CellResult(
        results=results,
        epochs=record.table(),
        individual=pd.DataFrame() if individual is None else _individual(cell, trainer),
        diagnosis={}
        if diagnostics is None
        else {
            "groups": diagnostics.diagnosis.sensitive_groups,
            "pairs": diagnostics.diagnosis.sensitive_pairs,
        },
        outputs=predict(run.model, data.test.inputs).numpy(),
        seconds=time.perf_counter() - began,
        tables={name: each.table(trainer) for name, each in watched.items()},
    )


def _individual(cell: Cell, trainer: Trainer) -> pd.DataFrame:
    """Epsilons of each group's examples: released with noise, by its bound, and true (sensitive_)."""
    assert cell.release_epsilon is not None
    report = trainer.individual_report()
    raw = report.sensitive_by_group().set_index("group")[["mean", "median", "q95"]]
    released = report.release_by_group(cell.release_epsilon, trainer.delta)
    table = released[["group", "mean", "standard_error"]].rename(columns={"mean": "released_mean"})
    return table.assign(
        group_epsilon=report.group_epsilons,
        epsilon=report.largest,
        release_epsilon=cell.release_epsilon,
        epsilon_with_release=trainer.run().epsilon(),
    ).join(raw.add_prefix("sensitive_"), on="group")


def train_all(
    cells: Sequence[Training],
    folder: Path,
    spread: Spread,
    on_progress: Progress | None,
    *,
    fresh: bool = False,
) -> list[CellResult]:
    """Train the runs that are not in the folder yet, and return the results of all.

    This process alone writes into the folder, so that workers need no disk in common with it. A run that
    another process trains into the folder at this moment is waited for. A run without a key, for code
    without source, is trained each time. With `fresh`, runs that are in the folder are removed first.
    """
    store = Store(folder)
    keys = [cell.key or f"{_NOT_KEPT}{secrets.token_hex(8)}" for cell in cells]
    missing: dict[str, Training] = dict(zip(keys, cells, strict=True))
    if fresh:
        store.remove(*filter(None, map(store.get, missing)))
    found = _read_results(store, missing)
    total, renewed = sum(cell.steps for cell in missing.values()), False
    while missing:
        done = total - sum(cell.steps for cell in missing.values())
        if on_progress is not None:
            on_progress(done, total)
        claims = _Claims(store, missing)
        try:
            for key, result in spread(train_cell, claims):
                found[key] = claims.keep(key, result)
                done += missing.pop(key).steps
                if on_progress is not None:
                    on_progress(done, total)
        except StaleWorker as error:  # of processes of an earlier comparison
            if renewed:
                advice = "a file changed after it was imported. Restart Python, or give jobs=1."
                raise StaleWorker(f"{error}: {advice}", field=error.field) from error
            renew_processes()
            renewed = True
        finally:
            claims.release()
        if not claims.given:
            time.sleep(_PAUSE)
        found |= _read_results(store, missing)
    return [found[key] for key in keys]


_NOT_KEPT = "not-kept-"


def _read_results(store: Store, missing: dict[str, Training]) -> dict[str, CellResult]:
    """Read stored results, and take their runs out of what is missing."""
    found = {key: CellResult.read(entry) for key in missing if (entry := store.get(key)) is not None}
    for key in found:
        del missing[key]
    return found


@final
class _Claims:
    """Missing runs that no other process trains, each claimed when it is taken."""

    def __init__(self, store: Store, missing: Mapping[str, Training]) -> None:
        self.given = 0
        self._store, self._missing, self._taken = store, dict(missing), dict[str, Claim]()

    def __iter__(self) -> Iterator[Call]:
        for key, cell in self._missing.items():
            if not key.startswith(_NOT_KEPT):
                claim = self._store.claim_free(key)
                if claim is None:
                    continue
                self._taken[key] = claim
                if self._store.get(key) is not None:  # since a moment ago
                    self._taken.pop(key).release()
                    continue
            self.given += 1
            yield key, (cell, facts(cell))

    def keep(self, key: str, result: CellResult) -> CellResult:
        """Keep a run's results, if its key is known, for other comparisons to read."""
        if key not in self._taken:
            return result
        with self._taken.pop(key) as claim:
            return CellResult.read(result.keep(claim, self._missing[key].label))

    def release(self) -> None:
        """Give back what was taken and not finished."""
        while self._taken:
            self._taken.popitem()[1].release()
