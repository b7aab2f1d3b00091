"""Non-private baselines of a comparison: candidates of the private models' own class, and boosted trees.

A class is a model with its inputs. For each class that private runs have, the baseline is tried as several
candidates: by the plan, and by the settings of each private run that it shares; also at multiples of their
learning rate, unless a sweep gave these settings. All candidates are trained on the first seed, and the best
of each class there, by the metric over all test examples, is trained on the others (`BaselineSearch`). A
candidate whose loss is above that of a constant prediction, as of one step of enormous length, comes after
all others. The choice reads the test set of one seed, which favours baselines alone.
`choose_baselines` names the baseline of each class, and the best model of all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Generator, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from equidp._extras import require_extra
from equidp._provenance import versions
from equidp.comparison.cells import (
    Cell,
    CellResult,
    DecisionRule,
    Train,
    Training,
    kept_results,
    split,
    split_facts,
)
from equidp.comparison.sweep import Variant, label_of
from equidp.data.class_counts import balanced_class_weights, count_classes
from equidp.data.dataset import ALL, DataSource, DataSplit
from equidp.data.features import WithFeatures
from equidp.data.table import binning_of, with_binning
from equidp.data.targets import weights_of_classes
from equidp.evaluation.intervals import Floats
from equidp.evaluation.metrics import Metric, measure_metric
from equidp.evaluation.reference import (
    FEWEST_TO_STOP_BY,
    MOST_TREES,
    TREES_WITHOUT_STOPPING,
    fit_trees,
    single_rows,
)
from equidp.policies.table import BASELINE
from equidp.store import FIGURES, key_of
from equidp.tables.intervals import STANDARD
from equidp.training.plan import Plan
from equidp.training.resolved import ResolvedPlan

with require_extra("tables"):
    import pandas as pd
    from sklearn.ensemble import HistGradientBoostingClassifier

RATES = (1.0, 0.1, 0.3, 3.0, 10.0)
"""Multiples of a plan's learning rate that candidates are trained at."""
_NEAR = 2.0
"""Factor from another rate within which a multiple is not tried, with the same settings otherwise."""
BOOSTING = "boosted trees"
"""Name of boosted trees among the methods of a comparison."""


@final
@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """One training of gradient-boosted trees, without privacy, on the training rows of a split.

    They are those of `fit_trees` on the columns that networks read.

    Attributes:
        source: where the split of `seed` comes from.
        seed: of the split and of the trees.
        class_weight: class name -> weight of its rows; None: 1 each.
        balanced: weigh the rows of each class by one over their number instead.
    """

    source: DataSource
    seed: int
    class_weight: Mapping[str, float] | None = None
    balanced: bool = False

    method: ClassVar[str] = BOOSTING
    steps: ClassVar[int] = 0
    parts: ClassVar[Mapping[str, Any]] = {}

    @property
    def names(self) -> dict[str, Any]:
        """Names of the training in tables of a comparison."""
        names = {"method": self.method, "setting": "", "baseline": ""}
        return {**names, "target_epsilon": math.nan, "seed": self.seed}

    @property
    def label(self) -> str:
        """Name of the training in messages."""
        return f"{self.method} seed={self.seed}"

    @property
    def key(self) -> str:
        """Key of the results: equal for equal data, settings and code."""
        weights = None if self.class_weight is None else dict(self.class_weight)
        settings: list[Any] = [MOST_TREES, TREES_WITHOUT_STOPPING, FEWEST_TO_STOP_BY, weights, self.seed]
        settings += ["balanced"] if self.balanced else []
        return key_of(self.method, *settings, split_facts(self.source, self.seed), FIGURES, versions())

    def train(self, data: DataSplit) -> CellResult:
        """Train on the split, and return metrics of its test set."""
        began = time.perf_counter()
        trees = self._fit(data)
        return CellResult.of_shares(
            trees.predict_proba(data.test.one_tensor.cpu().numpy()),
            trees.classes_,
            data.test,
            spent={"epsilon": math.inf, "epsilon_rdp": math.inf},
            seconds=time.perf_counter() - began,
        )

    def _fit(self, data: DataSplit) -> HistGradientBoostingClassifier:
        """Fit trees to the training rows."""
        rows, targets, weights = single_rows(data.train)
        of_classes = self.class_weight
        if self.balanced:
            of_classes = balanced_class_weights(count_classes(data.train), 0.0)
        if of_classes is not None:
            by_class = np.array([of_classes.get(name, 1.0) for name in data.train.class_names])
            weights = by_class[targets] * (1.0 if weights is None else weights)
        return fit_trees(rows, targets, weights, seed=self.seed)


def source_of_trees(source: DataSource, seed: int) -> DataSource | None:
    """Return the source that boosted trees read, of inputs before fixed features and scaled as for networks.

    None unless classes are predicted from rows of a table: one vector of numbers each.

    Args:
        source: of the private models.
        seed: of a split to look at.
    """
    source = source.source if isinstance(source, WithFeatures) else source
    data = split(source, seed).train
    one = isinstance(data.inputs, Tensor) and data.inputs.is_floating_point()
    if not one or len(data.input_shape) != 1:
        return None
    return source if binning_of(source) is None else with_binning(source, STANDARD)


class ModelClass(NamedTuple):
    """Class of models: what a baseline shares with the private runs that are measured against it.

    Attributes:
        model: as `Plan.model` has it.
        source: of the inputs that it reads.
    """

    model: Hashable
    source: DataSource


@dataclass(frozen=True)
class Candidate:
    """Candidate for the baseline of a class.

    Attributes:
        source: of its inputs.
        plan: how to train, without settings of methods.
        factor: multiple of the plan's learning rate.
        name: of the class.
        label: of the settings that tell it from others of the class; "" for the only one.
    """

    source: DataSource
    plan: Plan
    factor: float = 1.0
    name: str = ""
    label: str = ""

    def resolve(self, num_train: int) -> ResolvedPlan:
        """Return the plan of the baseline for `num_train` examples."""
        found = self.plan.for_method(BASELINE).resolve(num_train)
        rate = self.factor * found.learning_rate
        return replace(found, learning_rate=rate, plan=replace(found.plan, learning_rate=rate))


@dataclass(frozen=True)
class BaselinePlan:
    """Plan of the baselines of a comparison: what is trained without privacy for which private runs.

    Attributes:
        plan: of the comparison.
        source: that the baseline reads by it.
        private: each private variant, and the source that it reads.
        searched: False where the only baseline is plain SGD by the plan.
    """

    plan: Plan
    source: DataSource
    private: Sequence[tuple[Variant, DataSource]]
    searched: bool = True

    def name_of(self, variant: Variant, source: DataSource) -> str:
        """Name of the baseline that a private variant is measured against; "" for the plan's baseline."""
        return self._names[_class_of(variant, source)] if self.searched else ""

    @property
    def other_classes(self) -> dict[str, str]:
        """Label of each private variant of another class than the plan's -> name of its class."""
        classes = {variant.kind.label: _class_of(variant, read) for variant, read in self.private}
        return {label: self._names[kind] for label, kind in classes.items() if kind != self._own}

    @property
    def _own(self) -> ModelClass:
        return ModelClass(self.plan.for_method(BASELINE).model, self.source)

    @cached_property
    def _names(self) -> dict[ModelClass, str]:
        """Name of each class: "" for the plan's, or for the only one; else what differs from the plan's."""
        classes = [_class_of(*each) for each in self.private]
        found = list(dict.fromkeys(classes if self.searched and classes else [self._own, *classes]))
        names: dict[ModelClass, str] = {}
        for each in found:
            parts: dict[str, Any] = {}
            if each.model != self._own.model:
                parts["model"] = each.model
            if each.source != self.source:
                read = each.source
                if (binning := binning_of(read)) is not None:
                    parts["binning"] = binning
                else:
                    parts["features"] = read.label if isinstance(read, WithFeatures) else read.name
            name = label_of(parts) if len(found) > 1 else ""
            alike = sum(other.partition(" #")[0] == name for other in names.values())
            names[each] = f"{name} #{alike + 1}" if alike else name
        return names

    def candidates(self, num_train: int) -> list[Candidate]:
        """Return the candidates for each baseline.

        Args:
            num_train: training examples, by which equal settings are found.
        """
        by_plan = replace(self.plan.for_method(BASELINE), method_settings={})
        if not self.searched:
            return [Candidate(self.source, by_plan)]
        options = {each.name for each in Plan.options()}
        plans: dict[ModelClass, list[tuple[Plan, bool]]] = {kind: [] for kind in self._names}
        if self._own in plans:
            plans[self._own].append((by_plan, False))
        for variant, read in self.private:
            shared = replace(variant.plan.for_method(variant.method), method_settings={})
            plans[_class_of(variant, read)].append((shared, not options.isdisjoint(variant.swept)))
        found: list[Candidate] = []
        for kind, ((first, _), *others) in plans.items():
            usual, rates = first.for_method(BASELINE).resolve(num_train).settings, dict[str, list[float]]()
            tried = [(first, factor) for factor in RATES]
            tried += [(plan, rate) for plan, swept in others for rate in ((1.0,) if swept else RATES)]
            for plan, factor in tried:
                candidate = Candidate(kind.source, plan, factor, self._names[kind])
                settings = candidate.resolve(num_train).settings
                rate = settings["learning_rate"]
                had = rates.setdefault(_key_of_settings(settings), [])
                if rate in had or (factor != 1 and any(_NEAR > each / rate > 1 / _NEAR for each in had)):
                    continue
                had.append(rate)
                shown = {"learning_rate": rate}
                for each in Plan.options():
                    if settings[each.name] != usual[each.name]:
                        shown[each.name] = settings[each.name]
                found.append(replace(candidate, label=label_of(shown)))
        return found


def _class_of(variant: Variant, source: DataSource) -> ModelClass:
    return ModelClass(variant.plan.for_method(variant.method).model, source)


def _key_of_settings(settings: Mapping[str, Any]) -> str:
    """Key of a baseline's settings, equal where they train alike but for the learning rate."""
    left_out = ("method", "learning_rate")
    return key_of({name: value for name, value in settings.items() if name not in left_out})


_Stages = Generator[list[Cell], Sequence[CellResult], None]


class Place(NamedTuple):
    """Place of a candidate among others; the larger one is better.

    Attributes:
        informed: True for a loss that is no larger than that of the shares of classes as a constant
            prediction.
        score: metric over all test examples, where a larger value is better; -inf: it diverged.
    """

    informed: bool
    score: float


_DIVERGED = Place(False, -math.inf)


@final
@dataclass(frozen=True)
class BaselineSearch:
    """Search for the baseline of each class: all candidates on the first seed, then the best on the others.

    Where that one diverges on another seed, the next best follows it.

    Attributes:
        runs: of each candidate, one for each seed.
        metric: that candidates are compared by, over all test examples of the first seed.
        decision: of the metric.
    """

    runs: tuple[tuple[Cell, ...], ...]
    metric: Metric
    decision: DecisionRule

    @property
    def first(self) -> list[Cell]:
        """Runs of the first seed."""
        return [runs[0] for runs in self.runs]

    def run(self, train: Train, beside: Sequence[Training] = ()) -> list[tuple[Training, CellResult]]:
        """Train by `train`, and return each training with its results.

        Args:
            train: trains all that it is given, in any order.
            beside: trained with the first candidates, and returned after all of them.
        """
        stages, found, others = self._stages(), list[tuple[Training, CellResult]](), list(beside)
        cells, of_others = next(stages), list[tuple[Training, CellResult]]()
        with suppress(StopIteration):
            while True:
                sent: list[Training] = [*cells, *others]
                results = train(sent)
                found += zip(cells, results[: len(cells)], strict=True)
                of_others += zip(others, results[len(cells) :], strict=True)
                others = []
                cells = stages.send(results[: len(cells)])
        return [*found, *of_others]

    def expected_cells(self, folder: Path | None) -> list[Cell]:
        """Return the runs that a search trains, as far as results that are kept in a folder tell.

        Before all candidates of the first seed are kept, the first of each class stands for the chosen one;
        so it does without a folder.
        """
        stages, found = self._stages(), list[Cell]()
        cells = next(stages)
        with suppress(StopIteration):
            while True:
                found += cells
                kept = [] if folder is None else kept_results(cells, folder)
                if len(kept) < len(cells):
                    break
                cells = stages.send(kept)
        if found == self.first:
            first = {runs[0].baseline: runs for runs in reversed(self.runs)}
            found += [cell for runs in first.values() for cell in runs[1:]]
        return found

    def _stages(self) -> _Stages:
        """Yield runs to be trained, and take their results."""
        results = yield self.first
        places = dict(zip(self.runs, map(self._place, self.first, results), strict=True))
        ranked: dict[str, list[tuple[Cell, ...]]] = {}
        for runs in sorted(self.runs, key=places.__getitem__, reverse=True):
            ranked.setdefault(runs[0].baseline, []).append(runs)
        ranked = {
            name: [runs for runs in each if places[runs] > _DIVERGED] or each[:1]
            for name, each in ranked.items()
        }
        while others := [cell for each in ranked.values() for cell in each[0][1:]]:
            results = yield others
            lost = {
                cell.baseline for cell, result in zip(others, results, strict=True) if _has_diverged(result)
            }
            ranked = {name: each[1:] for name, each in ranked.items() if name in lost and len(each) > 1}

    def _place(self, cell: Cell, result: CellResult) -> Place:
        """Place of a run among candidates."""
        if _has_diverged(result):
            return _DIVERGED
        train, test = (data := split(cell.source, cell.seed)).train, data.test
        decision = self.decision.decision_of(cell)
        value = self.metric.sign * measure_metric(self.metric, result.predictions(test, decision))[0]
        if not np.isfinite(value):
            return _DIVERGED
        loss, weights = _overall_loss(result), cell.class_weights(train)
        if weights is None:
            return Place(loss <= _least_constant_loss(np.bincount(test.targets.numpy()) / len(test)), value)
        of_rows = weights_of_classes(weights, tuple(test.class_names)).double()[test.targets]
        outputs = torch.from_numpy(np.array(result.outputs)).double()
        losses = nn.functional.cross_entropy(outputs, test.targets, reduction="none")
        loss = float((of_rows * losses).sum() / of_rows.sum())
        shares = np.bincount(test.targets.numpy(), of_rows.numpy()) / float(of_rows.sum())
        return Place(loss <= _least_constant_loss(shares), value)

    def find_uninformed(self, trained: Sequence[tuple[Training, CellResult]]) -> set[tuple[str, str]]:
        """Class and setting of each candidate whose loss a constant prediction beats on the first seed."""
        first = {cell.seed for cell in self.first}
        return {
            (cell.baseline, cell.setting)
            for cell, result in trained
            if isinstance(cell, Cell) and cell.method == BASELINE and cell.seed in first
            if not self._place(cell, result).informed
        }


def _overall_loss(result: CellResult) -> float:
    """Loss over all test examples, as the results have it."""
    return float(result.results.set_index("group").at[ALL, "loss"])


def _has_diverged(result: CellResult) -> bool:
    """Return True for a loss that is not a number: it follows from the results, without the data."""
    return not math.isfinite(_overall_loss(result))


def _least_constant_loss(shares: Floats) -> float:
    """Loss of the best constant prediction: the entropy of the classes' shares."""
    return float(-(shares * np.log(np.maximum(shares, 1e-300))).sum())


def choose_baselines(
    runs: pd.DataFrame, metric: Metric, uninformed: Collection[tuple[str, str]] = ()
) -> pd.DataFrame:
    """Return the rows of runs without privacy, with the columns `chosen` and `best`.

    Chosen is, for each class, the candidate that was trained on all seeds; of several, the one that is finite
    in more seeds, then one that a constant prediction does not beat, then the one that is better by the
    metric over all examples, on average over seeds. The best model is the best of the chosen ones and
    boosted trees, in the same order.

    Args:
        runs: results of baseline and boosted trees: method, setting, baseline (name of the class), seed,
            group, loss and the metric.
        metric: the metric of costs.
        uninformed: class and setting of candidates that a constant prediction beats.
    """
    overall = runs[runs["group"] == ALL]
    finite = np.isfinite(overall["loss"]) & np.isfinite(overall[metric.name])
    scores = overall.assign(score=(metric.sign * overall[metric.name]).where(finite), lost=~finite)
    kinds = ["method", "baseline", "setting"]
    means = scores.groupby(kinds, sort=False).agg(
        score=("score", "mean"), lost=("lost", "sum"), seeds=("seed", "nunique")
    )
    whole = means[means["seeds"] == overall["seed"].nunique()]
    beaten = [each in uninformed for each in whole.index.droplevel("method")]
    order = whole.assign(beaten=beaten).sort_values(
        ["lost", "beaten", "score"], ascending=[True, True, False], kind="stable"
    )
    order = order.reset_index()
    first = order[order["method"] == BASELINE].drop_duplicates("baseline")
    keys = pd.MultiIndex.from_frame(runs[kinds])
    return runs.assign(
        chosen=keys.isin(pd.MultiIndex.from_frame(first[kinds])),
        best=keys.isin(pd.MultiIndex.from_frame(order[kinds].head(1))),
    )


def keep_chosen(rows: pd.DataFrame, baselines: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of private runs and of chosen baselines, whose setting is then the name of the class.

    Args:
        rows: of runs, with method, setting and baseline.
        baselines: from `choose_baselines`.
    """
    kinds = ["method", "baseline", "setting"]
    if rows.empty:
        return rows
    chosen = pd.MultiIndex.from_frame(baselines.loc[baselines["chosen"], kinds].drop_duplicates())
    own = rows["method"] == BASELINE
    kept = ~rows["method"].isin([BASELINE, BOOSTING]) | pd.MultiIndex.from_frame(rows[kinds]).isin(chosen)
    return rows.assign(setting=rows["setting"].where(~own, rows["baseline"]))[kept].reset_index(drop=True)
