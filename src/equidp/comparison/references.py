"""References without privacy of a comparison: candidates of the private models' own class, and boosted trees.

A class is a model with its inputs. For each class that private runs have, the baseline is trained as several
candidates: by the plan, and by the settings of each private run that it shares; also at multiples of their
learning rate, unless a sweep gave these settings. `choose_references` takes the best candidate of each class,
and the best model of all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from equidp._provenance import versions
from equidp.comparison.cells import CellResult, split_facts
from equidp.comparison.sweep import Variant, label_of
from equidp.data.dataset import ALL, DataSource, DataSplit, GroupedDataset
from equidp.data.features import WithFeatures
from equidp.data.table import encoding_of
from equidp.engines.units import by_row
from equidp.evaluation.groups import metrics_of
from equidp.evaluation.intervals import Floats
from equidp.evaluation.metrics import Metric
from equidp.policies.table import BASELINE
from equidp.store import FIGURES, key_of
from equidp.training.plan import Plan, ResolvedPlan

RATES = (1.0, 0.1, 0.3, 3.0, 10.0)
"""Multiples of a plan's learning rate that candidates are trained at."""
BOOSTING = "boosted trees"
"""Name of boosted trees among the methods of a comparison."""
_MOST_TREES = 1000
_TREES_WITHOUT_STOPPING = 100
_FEWEST_TO_STOP_BY = 20
"""Examples of the rarest class from which on a tenth of all is held out to stop by."""


@final
@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """One training of gradient-boosted trees, without privacy, on the training rows of a split.

    They are scikit-learn's `HistGradientBoostingClassifier` on the columns that networks read. A tenth of the
    rows is held out, and trees are added until its loss no longer falls; with fewer than 20 rows of a class
    there are 100 trees.

    Attributes:
        source: where the split of `seed` comes from.
        seed: of the split and of the trees.
        class_weight: class name -> weight of its rows; None: 1 each.
    """

    source: DataSource
    seed: int
    class_weight: Mapping[str, float] | None = None

    method: ClassVar[str] = BOOSTING
    steps: ClassVar[int] = 0
    parts: ClassVar[Mapping[str, Any]] = {}

    @property
    def names(self) -> dict[str, Any]:
        """Names of the training in tables of a comparison."""
        names = {"method": self.method, "setting": "", "reference": ""}
        return {**names, "target_epsilon": math.nan, "seed": self.seed}

    @property
    def label(self) -> str:
        """Name of the training in messages."""
        return f"{self.method} seed={self.seed}"

    @property
    def key(self) -> str:
        """Key of the results: equal for equal data, settings and code."""
        weights = None if self.class_weight is None else dict(self.class_weight)
        settings = [_MOST_TREES, _TREES_WITHOUT_STOPPING, _FEWEST_TO_STOP_BY, weights, self.seed]
        return key_of(self.method, *settings, split_facts(self.source, self.seed), FIGURES, versions())

    def train(self, data: DataSplit) -> CellResult:
        """Train on the split, and return figures of its test set."""
        began = time.perf_counter()
        outputs = torch.from_numpy(np.log(self._shares(data))).float()
        return CellResult(
            results=metrics_of(outputs, data.test).assign(epsilon=math.inf, epsilon_rdp=math.inf),
            epochs=pd.DataFrame(),
            individual=pd.DataFrame(),
            diagnosis={},
            outputs=outputs.numpy(),
            seconds=time.perf_counter() - began,
        )

    def _shares(self, data: DataSplit) -> Floats:
        """Predicted probability of each class for the test rows, [n, classes], and at least 1e-12."""
        rows, targets, weights = _single_rows(data.train)
        stops = int(np.bincount(targets)[np.unique(targets)].min()) >= _FEWEST_TO_STOP_BY
        trees = HistGradientBoostingClassifier(
            max_iter=_MOST_TREES if stops else _TREES_WITHOUT_STOPPING,
            early_stopping=stops,
            random_state=self.seed,
        )
        if self.class_weight is not None:
            by_class = np.array([self.class_weight.get(name, 1.0) for name in data.train.class_names])
            weights = by_class[targets] * (1.0 if weights is None else weights)
        trees.fit(rows, targets, sample_weight=weights)
        shares = np.full((len(data.test), data.test.num_classes), 0.0)
        shares[:, trees.classes_] = trees.predict_proba(data.test.one_tensor.cpu().numpy())
        floored: Floats = np.maximum(shares, 1e-12)
        return floored


def takes_boosted_trees(data: GroupedDataset) -> bool:
    """Return True for classes to predict from rows of a table: one vector of numbers each."""
    one = isinstance(data.inputs, Tensor) and data.inputs.is_floating_point()
    return one and data.target_bounds is None and len(data.input_shape) == 1


def _single_rows(train: GroupedDataset) -> tuple[Floats, np.ndarray, Floats | None]:
    """Inputs [n, d], targets [n] and weights [n] of the rows, also of people with several rows each."""
    inputs, targets, weights = train.one_tensor, train.targets, train.weights
    if train.rows is not None:
        inputs, targets, weights = by_row((inputs, targets, weights))
        present = weights > 0
        inputs, targets, weights = inputs[present], targets[present], weights[present]
    own = None if weights is None else weights.double().cpu().numpy()
    return inputs.cpu().numpy(), targets.cpu().numpy(), own


class ModelClass(NamedTuple):
    """Class of models: what a reference shares with the private runs that are measured against it.

    Attributes:
        model: as `Plan.model` has it.
        source: of the inputs that it reads.
    """

    model: Hashable
    source: DataSource


@dataclass(frozen=True)
class Candidate:
    """Candidate for the reference of a class.

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
        found = self.plan.resolve(BASELINE, num_train)
        return replace(found, learning_rate=self.factor * found.learning_rate)


@dataclass(frozen=True)
class ReferencePlan:
    """Plan of the references of a comparison: what is trained without privacy for which private runs.

    Attributes:
        plan: of the comparison.
        source: that the baseline reads by it.
        private: each private variant, and the source that it reads.
        searched: False where the only reference is the baseline by the plan.
    """

    plan: Plan
    source: DataSource
    private: Sequence[tuple[Variant, DataSource]]
    searched: bool = True

    def name_of(self, variant: Variant, source: DataSource) -> str:
        """Name of the reference that a private variant is measured against; "" for that of the plan."""
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
        found = list(dict.fromkeys(classes if self.searched else [self._own, *classes]))
        names: dict[ModelClass, str] = {}
        for each in found:
            parts: dict[str, Any] = {}
            if each.model != self._own.model:
                parts["model"] = each.model
            if each.source != self.source:
                read = each.source
                if (encoding := encoding_of(read)) is not None:
                    parts["encoding"] = encoding
                else:
                    parts["features"] = read.features if isinstance(read, WithFeatures) else read.name
            name = label_of(parts) if len(found) > 1 else ""
            alike = sum(other.partition(" #")[0] == name for other in names.values())
            names[each] = f"{name} #{alike + 1}" if alike else name
        return names

    def candidates(self, num_train: int) -> list[Candidate]:
        """Return the candidates for each reference.

        Args:
            num_train: training examples, by which equal settings are found.
        """
        by_plan = self.plan.for_method(BASELINE)
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
            usual, chosen = first.resolve(BASELINE, num_train).settings, dict[str, Candidate]()
            tried = [(first, factor) for factor in RATES]
            tried += [(plan, rate) for plan, swept in others for rate in ((1.0,) if swept else RATES)]
            for plan, factor in tried:
                candidate = Candidate(kind.source, plan, factor, self._names[kind])
                settings = candidate.resolve(num_train).settings
                shown = {"learning_rate": settings["learning_rate"]}
                for each in Plan.options():
                    if settings[each.name] != usual[each.name]:
                        shown[each.name] = settings[each.name]
                chosen.setdefault(_key_of_settings(settings), replace(candidate, label=label_of(shown)))
            found += chosen.values()
        return found


def _class_of(variant: Variant, source: DataSource) -> ModelClass:
    return ModelClass(variant.plan.for_method(variant.method).model, source)


def _key_of_settings(settings: Mapping[str, Any]) -> str:
    """Key of a baseline's settings, equal where they train alike."""
    return key_of(
        {name: value for name, value in settings.items() if name not in ("method", "recalibration")}
    )


def choose_references(runs: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the rows of runs without privacy, with the columns `chosen` and `best`.

    Chosen are the candidates of each class that are best by the metric over all examples, on average over
    seeds; a candidate that is not finite in some seed comes after all others. The best model is the best of
    all, boosted trees among them. Both are chosen by the test set, so costs are never too low for that.

    Args:
        runs: results of baseline and boosted trees: method, setting, reference (name of the class), seed,
            group, loss and the metric.
        metric: the metric of costs.
    """
    overall = runs[runs["group"] == ALL]
    finite = np.isfinite(overall["loss"]) & np.isfinite(overall[metric.name])
    scores = overall.assign(score=(metric.sign * overall[metric.name]).where(finite), lost=~finite)
    kinds = ["method", "reference", "setting"]
    means = scores.groupby(kinds, sort=False).agg(score=("score", "mean"), lost=("lost", "sum"))
    order = means.sort_values(["lost", "score"], ascending=[True, False], kind="stable").reset_index()
    first = order[order["method"] == BASELINE].drop_duplicates("reference")
    keys = pd.MultiIndex.from_frame(runs[kinds])
    return runs.assign(
        chosen=keys.isin(pd.MultiIndex.from_frame(first[kinds])),
        best=keys.isin(pd.MultiIndex.from_frame(order[kinds].head(1))),
    )


def keep_chosen(rows: pd.DataFrame, references: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of private runs and of chosen references, whose setting is then the name of the class.

    Args:
        rows: of runs, with method, setting and reference.
        references: from `choose_references`.
    """
    kinds = ["method", "reference", "setting"]
    if rows.empty:
        return rows
    chosen = pd.MultiIndex.from_frame(references.loc[references["chosen"], kinds].drop_duplicates())
    own = rows["method"] == BASELINE
    kept = ~rows["method"].isin([BASELINE, BOOSTING]) | pd.MultiIndex.from_frame(rows[kinds]).isin(chosen)
    return rows.assign(setting=rows["setting"].where(~own, rows["reference"]))[kept].reset_index(drop=True)
