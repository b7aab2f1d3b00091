"""Studies of the privacy of single examples (Yu et al. 2023), which read raw data: for public data alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import multi_margin_loss

from equidp import (
    Callback,
    Checkpoints,
    DataSplit,
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
from equidp.evaluation.predict import predict
from equidp.individual.epsilons import individual_epsilons
from equidp.kernel.inputs import taken
from equidp.kernel.ledger import MemoryLedger
from equidp.training.build import build
from papers.membership import sensitive_attack_table
from papers.reproduction import watchers
from papers.reproduction.item import COLUMNS, Request
from papers.reproduction.runs import load_or_make
from papers.reproduction.watchers import COMPARED, HeldExamples, MedianNorms, passes

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
RELEASED_AT = (0.1, 1e-5)
"""Epsilon and delta of a release (Yu et al., Table 2)."""
_ACCOUNTANT = "rdp"
"""As the paper has it; "pld" finds less."""
_POINTS = 400
"""Examples that a picture of points shows."""
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
        """Trains what is not kept; returns a row per figure and seed, `COLUMNS`, and seconds of all runs."""
        parts = []
        for done, seed in enumerate(request.seeds, start=1):
            parts.append(load_or_make(self, seed, request, self._one, code=(sys.modules[__name__], watchers)))
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
        norms = dataset_norms(trainer.engine, *taken((data.train.inputs, data.train.targets), chosen))
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
        """Infers membership from losses, with as many members as others in each group."""
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
