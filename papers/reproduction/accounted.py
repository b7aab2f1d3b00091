"""Studies of the privacy of single examples (Yu et al. 2023), which read raw data: for public data alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

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
    Individual,
    Ledger,
    Plan,
    Trainer,
    default_plan,
)
from equidp.accounting.planned import default_delta
from equidp.comparison.cells import split
from equidp.data import open_source
from equidp.data.dataset import ALL
from equidp.engines import dataset_norms
from equidp.evaluation.predictions import predict
from equidp.individual.accounts import cells_of, current_shares, shares_on_grid
from equidp.individual.epsilons import individual_epsilons
from equidp.kernel.event import Event
from equidp.training.build import build
from papers.membership import sensitive_success_rates
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
        per_epoch: how often all norms are taken in an epoch.
        held: examples whose norms are taken in every step, for their exact epsilons.
        attacked: whether membership is inferred from losses too.
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
    per_epoch: float = 1.0
    held: int = 0
    attacked: bool = False
    label: str = ""

    def rows(self, request: Request) -> tuple[pd.DataFrame, float]:
        """Train what is not kept; return a row per figure and seed, `COLUMNS`, and seconds of all runs."""
        parts = []
        for seed in request.seeds:
            parts.append(request.load_or_make(self, seed, self._one, code=(sys.modules[__name__],)))
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
        individual = None
        if self.method != "sgd":
            individual = Individual(per_epoch=self.per_epoch, clipping=self.clipped)
        held, medians = HeldExamples(data.train, self.held, COMPARED), MedianNorms(data.train)
        watching: list[Callback] = [medians, *([held] if individual and self.held else [])]
        checkpoints = Checkpoints(folder, how_to_resume="the same command")
        folder.mkdir(parents=True, exist_ok=True)
        with Ledger(folder / "ledger") as ledger:
            trainer = build(
                plan.for_method(self.method).resolve(len(data.train)), data.train,
                weights_seed=seed, seed=seed, callbacks=[*watching, checkpoints],
                individual=individual, ledger=ledger,
            )  # fmt: skip
            checkpoints.restore(trainer, missing_ok=True)
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
        if individual is not None:
            self._account(rows, trainer, losses, held if self.held else None)
        return pd.DataFrame(rows.rows)

    def _median(self, plan: Plan, data: DataSplit, seed: int) -> float:
        trainer = build(
            plan.for_method(self.method).resolve(len(data.train)), data.train, weights_seed=seed, seed=seed
        )
        chosen = torch.from_numpy(np.random.default_rng(seed).permutation(len(data.train))[:_INITIAL])
        few = data.train.subset(chosen)
        norms = dataset_norms(trainer.engine, few.inputs, few.targets)
        return float(norms.median())

    def _account(self, rows: _Rows, trainer: Trainer, losses: Tensor, held: HeldExamples | None) -> None:
        # Public data: releases cost nothing.
        report = replace(trainer.individual_report(accountant=_ACCOUNTANT), ledger=Ledger())
        own = report.sensitive_epsilons
        rows.add("epsilon", ALL, report.largest)
        for group in report.sensitive_by_group().to_dict("records"):
            rows.add("individual epsilon", group["group"], group["mean"])
        rows.add("share at the worst case", ALL, float((own >= _AT_WORST * report.largest).mean()))
        for share in np.linspace(0, 1, 41):
            rows.add("quantile of epsilon", ALL, float(np.quantile(own, share)), at=float(share))
        rows.add("correlation with log loss", ALL, loss_correlation(own, losses))
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
            exact = individual_epsilons(held.exact, held.grid, *at)
            estimates = {ALL: own[held.indices.numpy()]} | {
                passes(often): individual_epsilons(counts, held.grid, *at)
                for often, counts in held.estimates.items()
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
        rates = sensitive_success_rates(
            -np.concatenate([losses.numpy()[chosen], others.numpy()]),
            np.arange(len(chosen) + len(others)) < len(chosen),
            np.concatenate([data.train.groups.numpy()[chosen], data.test.groups.numpy()]),
            data.train.group_names,
        )
        for name, rate in rates.items():
            rows.add("success of membership inference", name, rate)


@final
class _Rows:
    """Collects rows of one run."""

    def __init__(self, method: str, seed: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._names = {"method": method, "seed": seed}

    def add(self, quantity: str, group: str, value: float, *, at: float = np.nan) -> None:
        self.rows.append({**self._names, "group": group, "quantity": quantity, "at": at, "value": value})


_PART = 128
"""Examples that are measured at a time."""
_MEDIAN_OF = 200
"""Most examples of a group that its median norm is taken of."""
COMPARED = (0.5, 3.0)
"""Passes an epoch of the estimates that are compared with exact values, beside the run's own."""


@final
class HeldExamples(Callback):
    """Exact histories of a few examples, and those from norms taken less often: estimates (Yu et al., 3.3).

    Args:
        data: that the run trains on.
        count: how many examples.
        per_epoch: how often an estimate takes norms, in passes an epoch; one estimate for each.

    Attributes:
        indices: of the examples, [count].
        grid: shares of the sensitivity, [cells].
    """

    grid = shares_on_grid(0.01)

    def __init__(self, data: GroupedDataset, count: int, per_epoch: tuple[float, ...] = ()) -> None:
        self.indices = torch.from_numpy(
            np.random.default_rng(0).choice(len(data), min(count, len(data)), replace=False)
        )
        self._data = data.subset(self.indices)
        self._groups = self._data.groups.numpy()
        self._per_epoch = per_epoch
        self._counts = np.zeros((1 + len(per_epoch), len(self.indices), len(self.grid)), dtype=np.uint32)
        self._norms = [np.empty(0) for _ in self._counts]

    @property
    def exact(self) -> npt.NDArray[Any]:
        """Steps of each example in each cell, from norms that are taken before every step."""
        return np.asarray(self._counts[0])

    @property
    def estimates(self) -> dict[float, npt.NDArray[Any]]:
        """The same from norms that are taken so many times an epoch."""
        return dict(zip(self._per_epoch, self._counts[1:], strict=True))

    def before_training(self, trainer: Trainer) -> None:
        self._counts[:, :, -1] += trainer.steps_done - int(self._counts[0, 0].sum())  # lost ones
        self._every = [1, *(max(1, round(1 / (trainer.sample_rate * each))) for each in self._per_epoch)]
        if not len(self._norms[0]):
            self._norms = [self._take_norms(trainer)] * len(self._counts)

    def after_step(self, trainer: Trainer) -> None:
        for norms, counts in zip(self._norms, self._counts, strict=True):
            many = trainer.num_groups or 1
            shares = current_shares(trainer.policy, trainer.policy_state, norms, self._groups, many)
            counts[np.arange(len(counts)), cells_of(shares, self.grid)] += 1
        now = self._take_norms(trainer)
        self._norms = [
            norms if trainer.steps_done % every else now
            for norms, every in zip(self._norms, self._every, strict=True)
        ]

    def _take_norms(self, trainer: Trainer) -> npt.NDArray[np.float64]:
        norms = dataset_norms(trainer.engine, self._data.inputs, self._data.targets, _PART)
        return np.asarray(norms.double())

    def sensitive_state_dict(self) -> dict[str, npt.NDArray[Any]]:
        return {"norms": np.stack(self._norms), "counts": self._counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._norms, self._counts = list(state["norms"]), state["counts"]


@final
class MedianNorms(Callback):
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

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rows = [*map(tuple, state["rows"])]


def loss_correlation(epsilons: npt.NDArray[np.float64], losses: Tensor) -> float:
    """Correlation of epsilons with log losses, [n] each (Yu et al., Figure 5); NaN where one is constant.

    A loss of less than 1.2e-7 counts as that, the least that single precision tells from 0.
    """
    logs = losses.detach().double().clamp_min(torch.finfo(torch.float32).eps).log().cpu().numpy()
    if np.ptp(logs) == 0 or np.ptp(epsilons) == 0:
        return float("nan")
    return float(np.corrcoef(epsilons, logs)[0, 1])


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
        randomness, taken, grid = np.random.default_rng(seed), 0.0, shares_on_grid(0.01)
        counts = np.zeros((self.examples, len(grid)), dtype=np.uint32)
        for _ in range(self.passes):
            shares = self._shares(randomness)
            began = time.perf_counter()
            counts[np.arange(self.examples), cells_of(shares, grid)] += self.steps
            taken += time.perf_counter() - began
        began = time.perf_counter()
        noise = self.noise_multiplier * (1 + seed / 1000)  # divergences of the seed before are remembered
        event = Event(self.batch_size / self.examples, noise)
        individual_epsilons(counts, grid, event, _COST_DELTA, "rdp")
        seconds = taken + time.perf_counter() - began
        return {"computations": float(len(grid) - 1), "seconds": seconds}

    def _measure_exact(self, seed: int) -> dict[str, float]:
        shares = self._shares(np.random.default_rng(seed))[:_TIMED]
        began = time.perf_counter()
        for share in shares:
            gaussian = GaussianDpEvent(float(self.noise_multiplier / share))
            RdpAccountant().compose(PoissonSampledDpEvent(self.batch_size / self.examples, gaussian))
        each = (time.perf_counter() - began) / len(shares)
        computations = float(self.examples * self.passes)
        return {"computations": computations, "seconds": computations * each}
