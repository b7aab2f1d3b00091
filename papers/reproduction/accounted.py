"""Studies of the privacy of single examples (Yu et al. 2023), which read raw data: for public data alone."""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, final
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from torch import Tensor
from torch.nn.functional import multi_margin_loss

from equidp import (
    Callback,
    Checkpoints,
    DataSplit,
    GroupedDataset,
    IndividualAccountant,
    IndividualClipping,
    LedgerFile,
    Plan,
    Trainer,
    default_plan,
)
from equidp.accounting.planned import default_delta
from equidp.comparison.cells import split
from equidp.data import open_source
from equidp.data.dataset import ALL
from equidp.engines import dataset_norms
from equidp.errors import CheckpointError
from equidp.evaluation.predictions import predict
from equidp.extend import write_whole
from equidp.individual.epsilons import individual_epsilons
from equidp.individual.histories import Histories
from equidp.individual.step_counts import current_shares
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.training.build import build
from equidp.training.checkpoint import SENSITIVE, KeptCallback
from papers.membership import sensitive_attack_table
from papers.reproduction.item import COLUMNS, Request

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
RELEASED_AT = (0.1, 1e-5)
"""Epsilon and delta of a release (Yu et al., Table 2)."""
_ACCOUNTANT = "rdp"
"""Accountant of the paper; "pld" finds less."""
_POINTS = 400
"""Examples that a plot of points shows."""
_INITIAL = 1000
"""Examples that the median norm at initialization is taken of."""
_AT_WORST = 0.99
"""An example is at the worst case from this share of it on."""


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """The multi-class hinge loss of each example, [n], from outputs [n, classes] (Yu et al., appendix F)."""
    return multi_margin_loss(outputs, targets, reduction="none")


@final
@dataclass(frozen=True)
class Accounted:
    """One method with the epsilon of each example.

    Attributes:
        data: name of the source.
        hours: about how long one seed takes on one core.
        method: to train with.
        changes: of the data's published plan.
        median_bound: the clipping bound is so many times the median gradient norm at initialization, which
            nothing here pays for; None: the plan's.
        longest_step: learning rate times clipping bound; None: the plan's learning rate.
        features: of the images, a name from `equidp.data.features.FEATURES`; None: pixels.
        clipped: whether examples are clipped at the norms that they are accounted at.
        per_epoch: how often all norms are taken in an epoch; without `clipped`, norms are those of draws too.
        held: examples whose norms are taken in every step, for their exact epsilons.
        attacked: whether membership is inferred from losses too.
        quick_epochs: of the short form.
        label: what rows call the data; default: its name.
    """

    data: str
    hours: float
    method: str = "dpsgd"
    changes: Mapping[str, Any] = field(default_factory=dict)
    median_bound: float | None = None
    longest_step: float | None = None
    features: str | None = None
    clipped: bool = False
    per_epoch: float = 0.1
    held: int = 0
    attacked: bool = False
    quick_epochs: float = 1
    label: str = ""

    def shorten(self) -> Accounted:
        """Return the short form: fewer epochs, and few examples held."""
        changes = {**self.changes, "epochs": self.quick_epochs}
        return replace(self, changes=changes, held=min(self.held, 50))

    def rows(self, request: Request) -> tuple[pd.DataFrame, float]:
        """Train what is not kept; return a row per figure and seed, `COLUMNS`, and seconds of all runs."""
        parts = []
        for done, seed in enumerate(request.seeds, start=1):
            parts.append(request.load_or_make(self, seed, self._one, code=(sys.modules[__name__],)))
            if request.on_progress is not None:
                request.on_progress(done, len(request.seeds))
        rows = pd.concat([part for part, _ in parts], ignore_index=True)
        return rows.assign(data=self.label or self.data)[COLUMNS], sum(seconds for _, seconds in parts)

    def _one(self, seed: int, folder: Path) -> pd.DataFrame:
        data = split(open_source(self.data, features=self.features), seed)
        plan = default_plan(self.data).with_changes(dict(self.changes))
        plan = plan.with_changes({"delta": plan.delta or default_delta(len(data.train))})
        if self.median_bound is not None:
            plan = plan.with_changes({"clipping_bound": self.median_bound * self._median(plan, data, seed)})
        if self.longest_step is not None:
            bound = plan.method_settings["clipping_bound"]
            plan = plan.with_changes({"learning_rate": self.longest_step / bound})
        account: IndividualAccountant | IndividualClipping | None = None
        if self.method != "sgd":
            account = (
                IndividualClipping(per_epoch=self.per_epoch)
                if self.clipped
                else IndividualAccountant("sampled", per_epoch=self.per_epoch)
            )
        held, medians = HeldExamples(data.train, self.held, COMPARED), MedianNorms(data.train)
        checkpoints = Checkpoints(folder, how_to_resume="the same command")
        callbacks: list[Callback] = [medians, checkpoints]
        if account is not None:
            callbacks = [account, medians, *([held] if self.held else []), checkpoints]
        folder.mkdir(parents=True, exist_ok=True)
        with LedgerFile(folder / "ledger") as ledger:
            trainer = build(
                plan.resolve(self.method, len(data.train)), data.train, seed=seed, secure=False,
                callbacks=callbacks, ledger=ledger,
            )  # fmt: skip
            if any(folder.glob("checkpoint-*.pt")):
                checkpoints.restore(trainer)
            run = trainer.fit()
        metrics = run.metrics(data.test)
        rows = _Rows(self.method, seed)
        for group, accuracy in zip(metrics["group"], metrics["accuracy"], strict=True):
            rows.add("accuracy", group, accuracy)
        for epoch, group, median in medians.rows:
            rows.add("median norm", group, median, at=epoch)
        losses = trainer.loss(predict(trainer.model, data.train.inputs), data.train.targets).detach()
        if self.attacked:
            self._attack(rows, trainer, data, losses)
        if account is not None:
            self._account(rows, trainer, account, losses, held if self.held else None)
        return pd.DataFrame(rows.rows)

    def _median(self, plan: Plan, data: DataSplit, seed: int) -> float:
        trainer = build(plan.resolve(self.method, len(data.train)), data.train, seed=seed, secure=False)
        chosen = torch.from_numpy(np.random.default_rng(seed).permutation(len(data.train))[:_INITIAL])
        few = data.train.subset(chosen)
        norms = dataset_norms(trainer.engine, few.inputs, few.targets)
        return float(norms.median())

    def _account(
        self,
        rows: _Rows,
        trainer: Trainer,
        account: IndividualAccountant | IndividualClipping,
        losses: Tensor,
        held: HeldExamples | None,
    ) -> None:
        # Public data: releases cost nothing.
        report = replace(account.report(trainer, accountant=_ACCOUNTANT), ledger=MemoryLedger())
        own = report.sensitive_epsilons
        rows.add("epsilon", ALL, report.largest)
        for group in report.sensitive_by_group().to_dict("records"):
            rows.add("individual epsilon", group["group"], group["mean"])
        rows.add("share at the worst case", ALL, float((own >= _AT_WORST * report.largest).mean()))
        for share in np.linspace(0, 1, 41):
            rows.add("quantile of epsilon", ALL, float(np.quantile(own, share)), at=float(share))
        rows.add("correlation with log loss", ALL, report.sensitive_loss_correlation(losses))
        for place in np.random.default_rng(0).permutation(len(own))[:_POINTS]:
            rows.add("final loss", ALL, max(1e-6, float(losses[place])), at=float(place))
            rows.add("epsilon of an example", ALL, float(own[place]), at=float(place))
        released = report.release_quantiles(list(QUANTILES), *RELEASED_AT)
        true = np.quantile(own, QUANTILES)
        for share, value, right in zip(QUANTILES, released, true, strict=True):
            rows.add("released quantile", ALL, value, at=share)
            rows.add("true quantile", ALL, float(right), at=share)
        mean = report.release_mean(*RELEASED_AT)
        rows.add("released mean", ALL, mean)
        rows.add("true mean", ALL, float(own.mean()))
        errors = np.divide([mean, *released], [own.mean(), *true]) - 1
        rows.add("mean error of releases", ALL, float(np.abs(errors).mean()))
        if held is not None:
            at = trainer.event, trainer.delta, _ACCOUNTANT
            exact = individual_epsilons(held.exact, *at)
            estimates = {ALL: own[held.indices.numpy()]} | {
                passes(often): individual_epsilons(histories, *at)
                for often, histories in held.estimates.items()
            }
            for place, value in enumerate(exact[:_POINTS]):
                rows.add("exact epsilon", ALL, float(value), at=float(place))
            for name, estimated in estimates.items():
                with np.errstate(invalid="ignore"):  # NaN where epsilons are all the same
                    rows.add("correlation with exact", name, float(np.corrcoef(exact, estimated)[0, 1]))
                rows.add("mean error of estimates", name, float(np.abs(exact - estimated).mean()))
                quantity = "estimated epsilon" if name == ALL else f"estimated epsilon, {name}"
                for place, value in enumerate(estimated[:_POINTS]):
                    rows.add(quantity, ALL, float(value), at=float(place))

    def _attack(self, rows: _Rows, trainer: Trainer, data: DataSplit, losses: Tensor) -> None:
        """Infer membership from losses, with as many members as others in each group."""
        others = trainer.loss(predict(trainer.model, data.test.inputs), data.test.targets).detach()
        generator, members = np.random.default_rng(0), []
        for group in range(data.train.num_groups):
            mine = np.flatnonzero(data.train.groups.numpy() == group)
            count = min(len(mine), int((data.test.groups == group).sum()))
            members.append(generator.choice(mine, count, replace=False))
        chosen = np.concatenate(members)
        table = sensitive_attack_table(
            -np.concatenate([losses.numpy()[chosen], others.numpy()]),
            np.arange(len(chosen) + len(others)) < len(chosen),
            np.concatenate([data.train.groups.numpy()[chosen], data.test.groups.numpy()]),
            data.train.group_names,
        )
        for group in table.to_dict("records"):
            rows.add("success of membership inference", group["group"], group["success_rate"])


@final
class _Rows:
    """Collects rows of one run."""

    def __init__(self, method: str, seed: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._names = {"method": method, "seed": seed}

    def add(self, quantity: str, group: str, value: float, *, at: float = np.nan) -> None:
        self.rows.append({**self._names, "group": group, "quantity": quantity, "at": at, "value": value})


Arrays = dict[str, npt.NDArray[Any]]
_NAME = f"{SENSITIVE}watched-"
_PART = 128
"""Examples that are measured at a time."""
_MEDIAN_OF = 200
"""Most examples of a group that its median norm is taken of."""
COMPARED = (0.5, 3.0)
"""Passes an epoch of the estimates that are compared with exact values, beside the run's own."""


class _KeptArrays(KeptCallback):
    """A callback whose state is a few arrays, in a file for each checkpoint."""

    @abstractmethod
    def _arrays(self) -> Arrays:
        """The state after the steps so far."""

    @abstractmethod
    def _put_back(self, arrays: Mapping[str, npt.NDArray[Any]], lost: int) -> None:
        """Set the state; `lost` steps were spent after it."""

    def save(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        file = BytesIO()
        np.savez(file, allow_pickle=False, steps=trainer.steps_done, **self._arrays())
        write_whole(folder / f"{_NAME}{number}-{checkpoint}.npz", file.getvalue())

    def restore(self, trainer: Trainer, folder: Path, number: int, checkpoint: str) -> None:
        path = folder / f"{_NAME}{number}-{checkpoint}.npz"
        try:
            with np.load(path) as arrays:
                self._put_back(arrays, trainer.steps_done - int(arrays["steps"]))
        except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
            raise CheckpointError(
                f"{str(path)!r} is missing or damaged ({error}); delete {str(folder)!r}, and the run begins "
                "from the start."
            ) from error

    def drop(self, folder: Path, number: int, checkpoints: Collection[str]) -> None:
        for path in folder.glob(f"{_NAME}{number}-*.npz"):
            if path.stem.removeprefix(f"{_NAME}{number}-") not in checkpoints:
                path.unlink(missing_ok=True)


@final
class HeldExamples(_KeptArrays):
    """Exact histories of a few examples, and those from norms taken less often: estimates (Yu et al., 3.3).

    Args:
        data: that the run trains on.
        count: how many examples.
        per_epoch: how often an estimate takes norms, in passes an epoch; one estimate for each.

    Attributes:
        indices: of the examples, [count].
    """

    def __init__(self, data: GroupedDataset, count: int, per_epoch: tuple[float, ...] = ()) -> None:
        self.indices = torch.from_numpy(
            np.random.default_rng(0).choice(len(data), min(count, len(data)), replace=False)
        )
        self._data = data.subset(self.indices)
        self._groups = self._data.groups.numpy()
        self._per_epoch = per_epoch
        self._histories = [Histories(len(self.indices)) for _ in (None, *per_epoch)]
        self._norms = [np.empty(0) for _ in self._histories]

    @property
    def exact(self) -> Histories:
        """From norms that are taken before every step."""
        return self._histories[0]

    @property
    def estimates(self) -> dict[float, Histories]:
        """From norms that are taken so many times an epoch."""
        return dict(zip(self._per_epoch, self._histories[1:], strict=True))

    def before_training(self, trainer: Trainer) -> None:
        self._every = [1, *(max(1, round(1 / (trainer.sample_rate * each))) for each in self._per_epoch)]
        if not len(self._norms[0]):
            self._norms = [self._take_norms(trainer)] * len(self._histories)

    def after_step(self, trainer: Trainer) -> None:
        for norms, histories in zip(self._norms, self._histories, strict=True):
            shares = current_shares(trainer.policy, trainer.policy_state, norms, self._groups)
            histories.add(histories.cells(shares))
        now = self._take_norms(trainer)
        self._norms = [
            norms if trainer.steps_done % every else now
            for norms, every in zip(self._norms, self._every, strict=True)
        ]

    def _take_norms(self, trainer: Trainer) -> npt.NDArray[np.float64]:
        norms = dataset_norms(trainer.engine, self._data.inputs, self._data.targets, _PART)
        return np.asarray(norms.double())

    def _arrays(self) -> Arrays:
        counts = [histories.counts for histories in self._histories]
        return {"norms": np.stack(self._norms), "counts": np.stack(counts)}

    def _put_back(self, arrays: Mapping[str, npt.NDArray[Any]], lost: int) -> None:
        self._norms = list(arrays["norms"])
        for histories, counts in zip(self._histories, arrays["counts"], strict=True):
            histories.restore_table([counts], 1)
            histories.add_worst(lost)


@final
class MedianNorms(_KeptArrays):
    """The median gradient norm of a sample of each group, after each epoch.

    Attributes:
        rows: epoch, group and median.
    """

    def __init__(self, data: GroupedDataset) -> None:
        self.rows: list[tuple[float, str, float]] = []
        self._data = data
        members = (np.flatnonzero(data.groups.numpy() == group) for group in range(data.num_groups))
        self._samples = [torch.from_numpy(each[:_MEDIAN_OF]) for each in members]

    def after_epoch(self, trainer: Trainer) -> None:
        for name, sample in zip(self._data.group_names, self._samples, strict=True):
            if len(sample):
                few = self._data.subset(sample)
                norms = dataset_norms(trainer.engine, few.inputs, few.targets, _PART)
                self.rows.append((float(round(trainer.epoch)), name, float(norms.median())))

    def _arrays(self) -> Arrays:
        epochs, groups, medians = zip(*self.rows, strict=True) if self.rows else ((), (), ())
        return {"epochs": np.array(epochs), "groups": np.array(groups, str), "medians": np.array(medians)}

    def _put_back(self, arrays: Mapping[str, npt.NDArray[Any]], lost: int) -> None:
        columns = (arrays[name].tolist() for name in ("epochs", "groups", "medians"))
        self.rows = list(zip(*columns, strict=True))


def passes(per_epoch: float) -> str:
    """In words, as "0.5 passes an epoch"."""
    return f"{per_epoch:g} passes an epoch"


_TIMED = 20
"""Computations without rounding that are timed; all are as long."""
_COST_DELTA = 1e-5


@final
@dataclass(frozen=True)
class AccountingCosts:
    """Renyi divergences that the epsilons of all examples take, and their time, rounded and not.

    Attributes:
        hours: about how long one seed takes on one core.
        examples: n; of CIFAR-10.
        passes: times that all norms are taken; these give the paper's ten million computations.
        steps: between two passes.
        batch_size, noise_multiplier: of a step.
        data: none is read.
        label: what rows call it.
    """

    hours: float = 0.002
    examples: int = 50_000
    passes: int = 200
    steps: int = 12
    batch_size: int = 4096
    noise_multiplier: float = 3.0
    data: str = ""
    label: str = "CIFAR-10's size"

    def shorten(self) -> AccountingCosts:
        """Return this study: it takes a minute."""
        return self

    def rows(self, request: Request) -> tuple[pd.DataFrame, float]:
        """Measure both; return a row per figure and seed, `COLUMNS`, and seconds."""
        began = time.perf_counter()
        rows = [
            (self.label, method, ALL, quantity, np.nan, seed, value)
            for seed in request.seeds
            for method, figures in (
                ("rounded", self._measure_rounded(seed)),
                ("not rounded", self._measure_exact(seed)),
            )
            for quantity, value in figures.items()
        ]
        return pd.DataFrame(rows, columns=COLUMNS), time.perf_counter() - began

    def _shares(self, randomness: np.random.Generator) -> np.ndarray:
        return np.minimum(randomness.lognormal(-0.5, 0.6, self.examples), 1.0)

    def _measure_rounded(self, seed: int) -> dict[str, float]:
        histories, randomness, taken = Histories(self.examples), np.random.default_rng(seed), 0.0
        for _ in range(self.passes):
            shares = self._shares(randomness)
            began = time.perf_counter()
            histories.add(histories.cells(shares), self.steps)
            taken += time.perf_counter() - began
        began = time.perf_counter()
        noise = self.noise_multiplier * (1 + seed / 1000)  # divergences of the seed before are remembered
        event = StepEvent(self.batch_size / self.examples, noise)
        individual_epsilons(histories, event, _COST_DELTA, "rdp")
        seconds = taken + time.perf_counter() - began
        return {"computations": float(len(histories.shares) - 1), "seconds": seconds}

    def _measure_exact(self, seed: int) -> dict[str, float]:
        shares = self._shares(np.random.default_rng(seed))[:_TIMED]
        began = time.perf_counter()
        for share in shares:
            gaussian = GaussianDpEvent(float(self.noise_multiplier / share))
            RdpAccountant().compose(PoissonSampledDpEvent(self.batch_size / self.examples, gaussian))
        each = (time.perf_counter() - began) / len(shares)
        computations = float(self.examples * self.passes)
        return {"computations": computations, "seconds": computations * each}
