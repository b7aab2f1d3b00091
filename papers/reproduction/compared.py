"""Studies that compare methods: `equidp.compare`, and its figures as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from equidp import Comparison, Diagnostics, Policy, compare, default_plan
from equidp.comparison.cells import ExampleEpsilons
from equidp.data.dataset import ALL
from papers import ablation
from papers.reproduction.fairlens import FairLens
from papers.reproduction.item import COLUMNS, Request

_OWN: Mapping[str, type[Policy]] = {"FairLens": FairLens}
"""Methods that equidp does not have."""


@final
@dataclass(frozen=True)
class Compared:
    """Methods compared on one dataset.

    Attributes:
        data: name of the source.
        methods: to compare; plain SGD is always there.
        hours: about how long one seed takes on one core.
        changes: of the data's published plan.
        sweep: one setting and its values, which become `at`.
        final: columns of the costs to take; "change" is accuracy less that without privacy.
        by_epoch: columns of the epochs' records to take, with the epoch as `at`; also "change".
        followed: groups to take these of; none: all.
        last: columns of the epochs' records to take, of the last epoch.
        diagnosed: columns of the diagnosis to take, with the epoch as `at`.
        pairs: columns of the diagnosis of pairs of groups to take; their group is "one less other".
        diagnosis: what to diagnose, and when.
        individual: whether to account for each example, and take the mean epsilon of each group.
        label: what rows call the data; default: its name.
    """

    data: str
    methods: tuple[str, ...]
    hours: float
    changes: Mapping[str, Any] = field(default_factory=dict)
    sweep: tuple[str, tuple[float, ...]] | None = None
    final: tuple[str, ...] = ("accuracy", "change", "epsilon")
    by_epoch: tuple[str, ...] = ()
    followed: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    diagnosed: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    diagnosis: Diagnostics | None = None
    individual: bool = False
    label: str = ""

    def rows(self, request: Request) -> tuple[pd.DataFrame, float]:
        """Train what is not kept; return a row per figure and seed, `COLUMNS`, and seconds of all runs."""
        comparison = compare(
            self.data,
            methods=[_OWN.get(name, name) for name in self.methods],
            seeds=request.seeds,
            plan="published",
            changes=[] if self.sweep is None else [{self.sweep[0]: value} for value in self.sweep[1]],
            directory=request.directory,
            jobs=request.jobs,
            device=request.device,
            callbacks=[] if self.diagnosis is None else [self.diagnosis],
            individual=self.individual,
            **self.changes,
        )
        parts = [*self._final(comparison), *self._epochs(comparison), *self._further(comparison)]
        rows = pd.concat(parts, ignore_index=True).assign(data=self.label or self.data)
        return rows[COLUMNS], comparison.seconds

    def _at(self, table: pd.DataFrame) -> pd.Series | float:
        return np.nan if self.sweep is None else table[self.sweep[0]]

    def _final(self, comparison: Comparison) -> list[pd.DataFrame]:
        costs = comparison.costs()
        costs = costs.assign(change=-costs["privacy_cost"], at=self._at(costs))
        parts = long(costs, [name for name in self.final if name != "epsilon"])
        if "epsilon" in self.final:
            parts += long(costs[costs["group"] == ALL], ["epsilon"])
        return parts

    def _epochs(self, comparison: Comparison) -> list[pd.DataFrame]:
        epochs = _with_change(comparison.epochs) if "change" in self.by_epoch else comparison.epochs
        followed = epochs[epochs["group"].isin(self.followed)] if self.followed else epochs
        followed = followed.assign(at=followed["epoch"])
        parts = long(followed, [name for name in self.by_epoch if name != "epsilon"])
        if "epsilon" in self.by_epoch:  # of the run, and so the same for all groups
            one = followed[followed["group"] == followed["group"].iloc[0]]
            parts += long(one.assign(group=ALL, epsilon=one["epsilon_of_steps_taken"]), ["epsilon"])
        if self.last:
            latest = epochs["epoch"] == epochs.groupby(["method", "seed", "setting"])["epoch"].transform(
                "max"
            )
            parts += long(epochs[latest].assign(at=self._at(epochs[latest])), self.last)
        return parts

    def _further(self, comparison: Comparison) -> list[pd.DataFrame]:
        parts = []
        if comparison.sensitive_diagnosis is not None:
            parts += _diagnosis_rows(comparison.sensitive_diagnosis.sensitive_groups, self.diagnosed)
            if self.pairs:
                pairs = comparison.sensitive_diagnosis.sensitive_pairs
                named = pairs["group"] + " less " + pairs["other"]
                parts += _diagnosis_rows(pairs.assign(group=named), self.pairs)
        if self.individual:
            own = comparison.tables[ExampleEpsilons.name].rename(columns={"mean": "individual epsilon"})
            parts += long(own.assign(at=self._at(own)), ["individual epsilon"])
        return parts


@final
@dataclass(frozen=True)
class Ablated:
    """Training with one error of clipping at a time, without noise: its method is the error.

    Attributes:
        data: name of the source.
        errors: to train with.
        hours: about how long one seed takes on one core.
        changes: of the data's published plan.
        label: what rows call the data; default: its name.
    """

    data: str
    errors: tuple[str, ...]
    hours: float
    changes: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def rows(self, request: Request) -> tuple[pd.DataFrame, float]:
        """Train what is not kept; return a row per figure and seed, `COLUMNS`, and seconds of all runs."""
        parts = [
            request.load_or_make(
                replace(self, errors=(error,)), seed, partial(self._one, error), code=(ablation,)
            )
            for seed in request.seeds
            for error in self.errors
        ]
        rows = pd.concat([part for part, _ in parts], ignore_index=True)
        return rows.assign(data=self.label or self.data)[COLUMNS], sum(seconds for _, seconds in parts)

    def _one(self, error: str, seed: int, _folder: Path) -> pd.DataFrame:
        plan = default_plan(self.data).with_changes(dict(self.changes))
        table = ablation.ablate(self.data, error, seed, plan).assign(method=error, seed=seed)
        last = table[table["epoch"] == table["epoch"].max()].assign(at=np.nan)
        curves = table.assign(at=table["epoch"])
        return pd.concat(long(last, ["accuracy", "loss"]) + long(curves, ["accuracy"]), ignore_index=True)


def _with_change(epochs: pd.DataFrame) -> pd.DataFrame:
    """Accuracy less that without privacy after as many epochs, of the same seed."""
    key = ["seed", "group", "epoch"]
    plain = epochs[epochs["method"] == "sgd"][[*key, "accuracy"]].rename(columns={"accuracy": "plain"})
    both = epochs.merge(plain, on=key, validate="many_to_one")
    return both.assign(change=both["accuracy"] - both["plain"])


def _diagnosis_rows(table: pd.DataFrame, columns: Sequence[str]) -> list[pd.DataFrame]:
    named = table.rename(columns=lambda name: name.removeprefix("sensitive_"))
    return long(named.assign(at=named["epoch"].round(3)), columns)


def long(table: pd.DataFrame, columns: Sequence[str]) -> list[pd.DataFrame]:
    """Columns of a table that has method, group, at and seed, as rows of one quantity each."""
    return [
        table[["method", "group", "at", "seed"]].assign(quantity=name, value=table[name].astype(float))
        for name in columns
    ]
