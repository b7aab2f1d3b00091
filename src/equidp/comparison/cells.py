"""Cells of a comparison: one training each, by a plan and a seed, whose results are kept under a key."""

from __future__ import annotations

import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch

from equidp._extras import require_extra
from equidp._provenance import versions
from equidp.data.class_counts import balanced_class_weights, count_classes
from equidp.data.dataset import ALL, DataSource, DataSplit, GroupedDataset
from equidp.data.table import releases_of
from equidp.digest import code_digest
from equidp.errors import ApproximationWarning, SettingError
from equidp.evaluation.costs import EPSILON_OF_GROUP
from equidp.evaluation.groups import group_metrics
from equidp.evaluation.predictions import Decision, Predictions, predict
from equidp.evaluation.reference import (
    FEWEST_TO_STOP_BY,
    MOST_TREES,
    TREES_WITHOUT_STOPPING,
    fit_trees,
    single_rows,
)
from equidp.individual import Individual
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.ledger.ledger import Ledger
from equidp.store import FIGURES, Store, key_of
from equidp.training.build import build
from equidp.training.device import chosen_device
from equidp.training.record import EpochRecorder, RunRecord, TableCallback, Watch
from equidp.training.resolved import ResolvedPlan
from equidp.training.trainer import Trainer

with require_extra("tables"):
    import joblib
    import pandas as pd
    from joblib.externals.loky import get_reusable_executor
    from joblib.parallel import BACKENDS, get_active_backend

TREES = "boosted trees"
"""Name of boosted trees among the methods of a comparison."""
_COUNTS = 31  # of a seed's streams: apart from those of samples, training noise and preprocessing


@final
@dataclass(frozen=True)
class Curves:
    """Watch that takes metrics of the test set by epoch and group; see `EpochRecorder`."""

    name: str = "epochs"
    private_only: bool = False

    def callback(self, data: DataSplit) -> TableCallback:
        return _RecordEpochs(data.test)


class _RecordEpochs(EpochRecorder, TableCallback):
    def __init__(self, test: GroupedDataset) -> None:
        super().__init__(RunRecord(), test)

    def table(self, trainer: Trainer) -> pd.DataFrame:
        return self.record.table()


@final
@dataclass(frozen=True)
class ExampleEpsilons:
    """Watch that accounts for each example of private runs: epsilons by group, which must not be shared.

    Columns: group, count, mean, median, q95, group_epsilon (the most that a member can have) and epsilon.

    Attributes:
        per_epoch: how often norms of all examples are computed.
    """

    per_epoch: int = 1
    name: str = "sensitive_individual"
    private_only: bool = True

    def callback(self, data: DataSplit) -> TableCallback:
        return _CountShares(Individual(per_epoch=self.per_epoch))


class _CountShares(TableCallback):
    def __init__(self, individual: Individual) -> None:
        self.individual = individual

    def table(self, trainer: Trainer) -> pd.DataFrame:
        report = trainer.individual_report()
        table = report.sensitive_by_group()
        table = table.loc[table["group"] != ALL, ["group", "count", "mean", "median", "q95"]]
        return table.assign(group_epsilon=report.group_epsilons, epsilon=report.largest)


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a comparison: everything that its results depend on.

    Attributes:
        source: source of the split of `seed`.
        plan: training settings.
        seed: seed of the split, the initial weights, the samples and the noise.
        engine: name of the gradient engine.
        device: name of the training device. Results of two devices differ only by rounding, as they do
            between numbers of threads, so one stored run serves all devices.
        callbacks: what the run records in addition to its results.
        counts_noise: noise multiplier of a release of class counts. 0: exact counts, for training without
            privacy. None: classes are not counted.
        balanced: weigh the losses of each class by one over its count.
        names: names of the run in tables of a comparison; not part of the key.
    """

    source: DataSource
    plan: ResolvedPlan
    seed: int
    engine: str = "auto"
    device: str = "cpu"
    callbacks: tuple[Watch, ...] = ()
    counts_noise: float | None = None
    balanced: bool = False
    names: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str | None:
        code = part_digests(self.plan)
        if None in code.values():
            return None
        watched = [[type(each).__name__, asdict(each)] for each in self.callbacks]  # type: ignore[call-overload]
        facts = [self.plan.key_parts, code, self.seed, self.engine, watched, self.counts_noise, self.balanced]
        released = [asdict(event) for event in releases_of(self.source)]
        return key_of(*facts, split_facts(self.source, self.seed), released, FIGURES, versions())

    @property
    def released(self) -> tuple[Event, ...]:
        """Releases of the run: the split's preprocessing, and class counts."""
        return (*releases_of(self.source), *counts_events(self.counts_noise))

    def class_weights(self, train: GroupedDataset) -> Mapping[str, float] | None:
        """Weights of the classes' losses: the plan's, or by their counts."""
        if not self.balanced:
            return self.plan.plan.class_weights
        noise = self.counts_noise or 0.0
        return balanced_class_weights(count_by_seed(train, noise, self.seed), noise)

    def trainer(self, data: DataSplit, callbacks: Sequence[TableCallback] = ()) -> Trainer:
        """Trainer of the run, checked. No step is spent yet."""
        ledger = Ledger(unit=data.train.unit)
        run = ledger.new_run(seeded=True)
        for event in self.released:
            ledger.charge(run, event)
        return build(
            self.plan.with_class_weight(self.class_weights(data.train)),
            data.train,
            weights_seed=self.seed,
            seed=self.seed,
            device=chosen_device(self.device),
            engine=self.engine,
            callbacks=callbacks,
            individual=next((each.individual for each in callbacks if each.individual), None),
            ledger=(ledger, run),
        )

    def train(self, data: DataSplit) -> CellResult:
        began = time.perf_counter()
        callbacks = {each.name: each.callback(data) for each in self.callbacks}
        trainer = self.trainer(data, [*callbacks.values()])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ApproximationWarning)  # said before the first run
            run = trainer.fit()
        results = run.metrics(data.test).assign(
            epsilon=run.epsilon(), epsilon_rdp=run.epsilon(accountant="rdp")
        )
        if trainer.event.shares:
            by_group = {**run.epsilon_by_group(), ALL: run.epsilon()}
            results[EPSILON_OF_GROUP] = results["group"].map(by_group)
        return CellResult(
            results,
            {name: each.table(trainer) for name, each in callbacks.items()},
            predict(run.model, data.test.inputs).numpy(),
            time.perf_counter() - began,
        )


@final
@dataclass(frozen=True, eq=False)
class Trees:
    """One training of gradient-boosted trees, without privacy, on the columns that networks read.

    Attributes:
        source: source of the split of `seed`.
        seed: seed of the split and of the trees.
        class_weight: class name -> weight of its rows. None: 1 each.
        balanced: weigh the rows of each class by one over their number instead.
    """

    source: DataSource
    seed: int
    class_weight: Mapping[str, float] | None = None
    balanced: bool = False

    @property
    def names(self) -> Mapping[str, Any]:
        return {"method": TREES, "setting": "", "baseline": "", "target_epsilon": np.nan}

    @property
    def key(self) -> str:
        weights = None if self.class_weight is None else dict(self.class_weight)
        settings = [MOST_TREES, TREES_WITHOUT_STOPPING, FEWEST_TO_STOP_BY, weights, self.balanced, self.seed]
        return key_of(TREES, *settings, split_facts(self.source, self.seed), FIGURES, versions())

    def train(self, data: DataSplit) -> CellResult:
        began = time.perf_counter()
        rows, targets, weights = single_rows(data.train)
        of_classes = self.class_weight
        if self.balanced:
            of_classes = balanced_class_weights(count_classes(data.train), 0.0)
        if of_classes is not None:
            by_class = np.array([of_classes.get(name, 1.0) for name in data.train.class_names])
            weights = by_class[targets] * (1.0 if weights is None else weights)
        trees = fit_trees(rows, targets, weights, seed=self.seed)
        shares = np.zeros((len(data.test), data.test.num_classes))
        shares[:, trees.classes_] = trees.predict_proba(data.test.one_tensor.cpu().numpy())
        outputs = torch.from_numpy(np.log(np.maximum(shares, 1e-12))).float()
        results = group_metrics(outputs, data.test).assign(epsilon=np.inf, epsilon_rdp=np.inf)
        return CellResult(results, {}, outputs.numpy(), time.perf_counter() - began)


Training = Cell | Trees


@final
@dataclass(frozen=True, eq=False)
class CellResult:
    """Results of a run.

    Attributes:
        results: one row a group, and one for "all": metrics of the test set, and the run's epsilon.
        tables: tables of its callbacks, by name.
        outputs: outputs of the model on the test set, [n, outputs].
        seconds: seconds of training.
    """

    results: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]
    outputs: npt.NDArray[Any]
    seconds: float

    def predictions(self, test: GroupedDataset, decision: Decision) -> Predictions:
        """Predictions of the run on its test set."""
        return Predictions.of(torch.from_numpy(self.outputs), test.targets, test.class_names, decision)

    def keep(self, store: Store, key: str) -> None:
        """Write the results as an entry of a store."""
        tables = {f"table-{name}": table for name, table in self.tables.items()}
        parts = {"results": self.results, **tables, "outputs": self.outputs}
        store.put(key, parts, {"seconds": self.seconds, "tables": [*self.tables]})

    @classmethod
    def kept(cls, store: Store, key: str | None) -> CellResult | None:
        """Read results written by `keep`, or None if there are none."""
        entry = None if key is None else store.get(key)
        if entry is None:
            return None
        tables = {name: entry.table(f"table-{name}") for name in entry.facts["tables"]}
        return cls(entry.table("results"), tables, entry.array("outputs"), entry.facts["seconds"])


def part_digests(plan: ResolvedPlan) -> dict[str, str | None]:
    """Digests of the code of a plan's policy, model and loss, or None for code without source."""
    parts = {"method": type(plan.policy), "model": plan.plan.factory, "loss": plan.plan.loss_function}
    return {name: code_digest(part) for name, part in parts.items() if part is not None}


def counts_events(noise_multiplier: float | None) -> tuple[Event, ...]:
    """Release of the counts of classes with this noise, or none without noise."""
    return (Event(1.0, noise_multiplier),) if noise_multiplier else ()


def count_by_seed(train: GroupedDataset, noise_multiplier: float, seed: int) -> dict[str, float]:
    """Counts of the classes by name, whose noise follows from the seed. 0: exact counts."""
    return count_classes(train, noise_multiplier, SeededRandomness(seed, _COUNTS))


@lru_cache(maxsize=2)
def split(source: DataSource, seed: int) -> DataSplit:
    """Return `source.split(seed)`, kept in memory while one seed's runs follow each other."""
    return source.split(seed)


class SplitFacts(NamedTuple):
    """Facts of a split that are needed before its runs begin."""

    digest: str
    num_train: int
    names: tuple[tuple[str, ...], ...]
    test_sizes: tuple[int, ...]


@lru_cache(maxsize=256)
def split_facts(source: DataSource, seed: int) -> SplitFacts:
    """Return the facts of a split, kept for all seeds; the splits themselves would fill memory."""
    data = split(source, seed)
    names = data.train.group_names, data.train.class_names
    return SplitFacts(data.digest(), len(data.train), names, tuple(data.test.group_sizes().tolist()))


def forget_splits() -> None:
    """Let files of data be read again, which may have changed since."""
    split.cache_clear()
    split_facts.cache_clear()


_ONE_AT_A_TIME = threading.Lock()


def train_cell(key: str, cell: Training, threads: int | None) -> tuple[str, CellResult]:
    """Train one cell in this process. The process that sent it keeps the result."""
    # Torch's generator of initial weights and its number of threads are one for all threads of a process.
    with _ONE_AT_A_TIME:
        if threads is not None:
            torch.set_num_threads(threads)
        return key, cell.train(split(cell.source, cell.seed))


def run_cells(
    cells: Sequence[Training],
    folder: Path,
    jobs: int | None = None,
    on_cell: Callable[[Training, CellResult], None] = lambda cell, result: None,
) -> list[CellResult]:
    """Train the cells that are not in a folder yet, keep each as it finishes, and return all results.

    Only this process writes into the folder, so workers need no shared disk. A cell without a key, for code
    without source, is trained each time.

    Args:
        cells: cells to train.
        folder: folder of kept results.
        jobs: processes; see `spread`.
        on_cell: called with each that was trained.

    Raises:
        SettingError: a process died.
    """
    store, results = Store(folder), dict[str, CellResult]()
    keys = [cell.key or f"not-kept-{secrets.token_hex(8)}" for cell in cells]
    missing: dict[str, Training] = {}
    for key, cell in zip(keys, cells, strict=True):
        result = CellResult.kept(store, key)
        if result is None:
            missing[key] = cell
        else:
            results[key] = result
    for key, result in spread(train_cell, missing.items(), jobs):
        if not key.startswith("not-kept-"):
            result.keep(store, key)
        results[key] = result
        on_cell(missing[key], result)
    return [results[key] for key in keys]


def spread(function: Callable[..., Any], calls: Any, jobs: int | None = None) -> Iterator[Any]:
    """Yield `function(*arguments, threads)` for each call, as they finish, on joblib's active backend.

    Args:
        function: its last argument is the number of torch threads of each. None: as many as torch has.
        calls: arguments of each call.
        jobs: calls at a time. None: the number from `joblib.parallel_config`, or all of the backend.

    Raises:
        SettingError: a process died.
    """
    calls = [tuple(each) for each in calls]
    backend, configured = get_active_backend()
    number = max(1, min(joblib.effective_n_jobs(jobs or configured or -1), len(calls)))
    threads = None
    if isinstance(backend, BACKENDS["loky"]):
        threads = max(1, min(torch.get_num_threads(), int(joblib.cpu_count()) // number))
    options: dict[str, Any] = {"n_jobs": number, "batch_size": 1, "pre_dispatch": "n_jobs"}
    size = 4 * number  # a backend without generators gives results all at once
    if getattr(backend, "supports_return_generator", False):
        options, size = {**options, "return_as": "generator_unordered"}, max(1, len(calls))
    try:
        for at in range(0, len(calls), size):
            tasks = (joblib.delayed(function)(*each, threads) for each in calls[at : at + size])
            yield from joblib.Parallel(**options)(tasks)
    except Exception as error:
        if isinstance(error, BrokenExecutor) or type(error).__module__.startswith("distributed"):
            raise SettingError(
                f"a worker process died ({error}); most often, memory is too small. Finished runs are kept: "
                "give it more memory, or fewer processes (jobs), and start the same again.",
                field="jobs",
            ) from error
        raise


def renew_processes() -> None:
    """End the processes that joblib keeps for later calls; new ones read code from its files again."""
    get_reusable_executor().shutdown(wait=True)
