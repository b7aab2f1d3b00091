"""Private models of other packages as methods of a comparison, each with an accountant of its own.

A peer is trained on a table's raw columns, and is no policy: the package chooses its steps and its noise. Its
epsilon is what the package claims, which neither the ledger nor the accountant of equidp has worked out.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equidp._extras import require_extra
from equidp._provenance import versions
from equidp.comparison.cells import CellResult, split_facts
from equidp.comparison.plan import ComparisonPlan
from equidp.comparison.sweep import DP_EBM, label_of
from equidp.data.dataset import DataSource, DataSplit
from equidp.data.table import EncodedSource, Unencoded
from equidp.errors import DataError, SettingError
from equidp.store import FIGURES, key_of
from equidp.training.plan import Plan

with require_extra("tables"):
    import pandas as pd

_MISSING = "(missing)"


@final
@dataclass(frozen=True, eq=False)
class PrivateEBM:
    """One training of a differentially private explainable boosting machine (Nori et al., ICML 2021).

    It is `DPExplainableBoostingClassifier` of interpret-core with its own defaults. Numbers are binned within
    the public bounds of the recipe; columns without bounds between the smallest and the largest training
    value, which its epsilon does not cover. Missing numbers are the lower bound, or 0; missing texts a level.
    Noise follows from the seed, as that of all runs of a comparison.

    Attributes:
        source: where the split of `seed` comes from, a table.
        seed: of the split and of the model.
        epsilon, delta: as interpret-core accounts for them, by Gaussian differential privacy.
        setting: label of the epsilon, where several are compared.
        baseline: name of the baseline that costs are measured against.
    """

    source: EncodedSource
    seed: int
    epsilon: float
    delta: float
    setting: str = ""
    baseline: str = ""

    method: ClassVar[str] = DP_EBM
    accountant: ClassVar[str] = "interpret-core"
    steps: ClassVar[int] = 0
    parts: ClassVar[Mapping[str, Any]] = {}

    @property
    def names(self) -> dict[str, Any]:
        """Names of the training in tables of a comparison."""
        names = {"method": self.method, "setting": self.setting, "baseline": self.baseline}
        return {**names, "target_epsilon": self.epsilon, "seed": self.seed}

    @property
    def label(self) -> str:
        """Name of the training in messages."""
        return f"{self.method} {self.setting} seed={self.seed}".replace("  ", " ")

    @property
    def key(self) -> str:
        """Key of the results: equal for equal data, settings and code."""
        settings = [self.epsilon, self.delta, self.seed, _bounds(self.source), _version()]
        return key_of(self.method, *settings, split_facts(self.source, self.seed), FIGURES, versions())

    def train(self, data: DataSplit) -> CellResult:
        """Train on the split, and return metrics of its test set."""
        began = time.perf_counter()
        rows = self.source.split_rows(self.seed)
        columns = raw_columns(self.source, rows)
        model = self._fit(columns.iloc[rows.train], rows.targets[rows.train])
        shares = model.predict_proba(columns.iloc[rows.test])
        return CellResult.of_shares(
            shares,
            model.classes_,
            data.test,
            spent={"epsilon": self.epsilon, "epsilon_rdp": math.nan},
            seconds=time.perf_counter() - began,
        )

    def _fit(self, columns: pd.DataFrame, targets: Any) -> Any:
        kinds = ["continuous" if columns[each].dtype == float else "nominal" for each in columns]
        bounds = {name: range_ for name, range_ in _bounds(self.source).items() if name in columns}
        model = _ebm()(
            feature_names=list(columns),
            feature_types=kinds,
            epsilon=self.epsilon,
            delta=self.delta,
            privacy_bounds=bounds or None,
            random_state=self.seed,
            n_jobs=1,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a seed, and ranges without bounds: the docstring says both
            return model.fit(columns, np.asarray(targets))


PEERS: dict[str, type[PrivateEBM]] = {PrivateEBM.method: PrivateEBM}
"""Name among the methods of a comparison -> peer."""


def peers_of(
    asked: ComparisonPlan,
    plan: Plan,
    source: DataSource,
    data: DataSplit,
    seeds: Sequence[int],
    epsilons: Sequence[float],
    baseline: str,
) -> tuple[PrivateEBM, ...]:
    """Return the trainings of peers: for each method of `PEERS`, epsilon and seed.

    Args:
        asked: the comparison, which names the methods.
        plan: that the runs share, with the delta of all.
        source: of the data.
        data: split of the first seed.
        seeds: of the comparison.
        epsilons: targets.
        baseline: that costs are measured against.

    Raises:
        SettingError: a package that is not installed, no target epsilon, or a setting that peers do not have.
        DataError: data that a peer cannot be trained on.
    """
    if not asked.peers:
        return ()
    named = ", ".join(asked.peers)
    _check_settings(named, asked, plan)
    table = _checked_table(named, source, data)
    if not epsilons:
        raise SettingError(
            f"method {named} is calibrated to an epsilon; got a noise multiplier. Give target epsilons, or "
            "leave the method out.",
            field="epsilons",
        )
    _ebm()
    several = len(epsilons) > 1
    return tuple(
        PEERS[name](
            *(table, seed, epsilon, plan.delta or 0.0),
            label_of({"epsilon": epsilon}) if several else "",
            baseline,
        )
        for name in asked.peers
        for epsilon in epsilons
        for seed in seeds
    )


def _check_settings(named: str, asked: ComparisonPlan, plan: Plan) -> None:
    if asked.balanced or plan.class_weights:
        raise SettingError(
            f"method {named} has no weights of classes; leave the method or the weights out.",
            field="class_weight",
        )
    if plan.groups:
        raise SettingError(
            f"method {named} has no rates and bounds by group; leave the method out, or treat groups "
            "equally.",
            field=plan.groups.field,
        )
    if asked.base_rate_threshold:
        raise SettingError(
            f"method {named} counts no classes for a threshold at the base rate; give the base rate as a "
            "public number (--base-rate), or leave the method out.",
            field="base_rate_threshold",
        )


def _checked_table(named: str, source: DataSource, data: DataSplit) -> EncodedSource:
    if not isinstance(source, EncodedSource):
        raise DataError(
            f"method {named} reads columns of a table; got {source.name!r}. Leave the method out, or give a "
            "table.",
            field="methods",
        )
    if data.train.rows is not None or data.train.weights is not None:
        given = "several rows a person" if data.train.rows is not None else "weights of rows"
        raise DataError(
            f"method {named} protects single rows that count once; got {given}. Leave the method out.",
            field="methods",
        )
    if data.train.num_classes != 2:
        raise DataError(
            f"method {named} is for two classes; got {data.train.num_classes}. Leave the method out.",
            field="methods",
        )
    return source


def _bounds(source: Any) -> dict[str, tuple[float, float]]:
    """Public ranges of columns that the recipe of a table has."""
    bounds = getattr(getattr(source, "recipe", None), "bounds", ())
    return {name: (float(low), float(high)) for name, low, high in bounds}


def raw_columns(source: EncodedSource, rows: Unencoded) -> pd.DataFrame:
    """Return the columns that networks read, not encoded: numbers within their bounds, and texts, none of
    them missing. Target and groups are among them only where networks read them.

    Args:
        source: of the rows.
        rows: from its `split_rows`.
    """
    bounds, made = _bounds(source), {}
    for name in dict.fromkeys(each.name for each in source.exact_encoder(rows).columns):
        column = rows.features[name]
        if column.dtype == float:
            low, high = bounds.get(name, (-math.inf, math.inf))
            made[name] = column.fillna(low if math.isfinite(low) else 0.0).clip(low, high)
        else:
            made[name] = column.astype(object).where(column.notna(), _MISSING).astype(str)
    return pd.DataFrame(made, index=rows.features.index)


def _ebm() -> Any:
    with require_extra("peers"):
        from interpret.privacy import DPExplainableBoostingClassifier
    return DPExplainableBoostingClassifier


def _version() -> str:
    with require_extra("peers"):
        import interpret

    return str(interpret.__version__)
