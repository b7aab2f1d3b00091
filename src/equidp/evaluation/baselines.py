"""Judgement of non-private baselines: whether what private runs lose against one says anything.

A baseline reverses costs, gaps and all choices by them if it diverged, is no better than one constant
prediction, or loses to private runs in every group. Tables are as in `equidp.evaluation.costs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from equidp._extras import require_extra
from equidp.data.dataset import ALL
from equidp.evaluation.intervals import LEVEL, mean_interval

with require_extra("tables"):
    import pandas as pd

NEGLIGIBLE = 0.1
"""Share of the tolerance: a difference in the metric by less counts as none, however sure the value is.

No verdict turns on so little, and noise that acts as a regulariser can be worth as much: costs are then shown
below 0."""

Fault = Literal["", "diverged", "constant", "beaten"]


@dataclass(frozen=True)
class Judgement:
    """Judgement of one baseline.

    Attributes:
        baseline: setting of the baseline method's runs, or "" if the baseline has one setting.
        fault: "" if the baseline is meaningful. "diverged": its loss is not finite in some seed. "constant":
            half of its runs or more are no better than one constant prediction. "beaten": some kind of
            private run is better over all examples, on average by more than a tenth of the tolerance, and on
            average in every group. It must be so in each seed, or the 95% interval of the mean must be beyond
            0.
        seeds: number of seeds with that fault.
        of: number of seeds.
        by: (method, setting) of each kind of private run that beats it.
    """

    baseline: str
    fault: Fault = ""
    seeds: int = 0
    of: int = 0
    by: tuple[tuple[str, str], ...] = ()

    @property
    def serves(self) -> bool:
        """True if costs and gaps against the baseline are meaningful."""
        return not self.fault


def baseline_names(results: pd.DataFrame) -> pd.Series:
    """Return the baseline of each row: the column "baseline", or "" for all if there is none."""
    if "baseline" in results:
        return results["baseline"]
    return pd.Series("", results.index, name="baseline")


def judge_baselines(costs: pd.DataFrame, gap_tolerance: float, baseline: str = "sgd") -> dict[str, Judgement]:
    """Return the judgement of each baseline by its name, from `equidp.evaluation.costs.privacy_costs`.

    Example:
        >>> rows = [("sgd", 0.10, 2.3, False, 0.0), ("dpsgd", 0.84, 0.5, True, -0.74)]
        >>> names = ["method", "accuracy", "loss", "informative", "privacy_cost"]
        >>> costs = pd.DataFrame(rows, columns=names).assign(setting="", seed=0, group=ALL)
        >>> judge_baselines(costs, 0.05)[""].fault
        'constant'
    """
    names = baseline_names(costs)
    is_baseline = costs["method"] == baseline
    return {
        name: _judge(
            name, costs[is_baseline & (names == name)], costs[~is_baseline & (names == name)], gap_tolerance
        )
        for name in names.unique()
    }


def _judge(name: str, baseline: pd.DataFrame, private: pd.DataFrame, gap_tolerance: float) -> Judgement:
    overall = baseline[baseline["group"] == ALL]
    seeds, diverged, constant = len(overall), ~np.isfinite(overall["loss"]), ~informative(overall)
    if diverged.any():
        return Judgement(name, "diverged", int(diverged.sum()), seeds)
    if seeds and constant.mean() >= 0.5:
        return Judgement(name, "constant", int(constant.sum()), seeds)
    kinds = private.groupby(["method", "setting"], sort=False)
    by = tuple(
        (str(method), str(setting)) for (method, setting), part in kinds if _beats(part, gap_tolerance)
    )
    return Judgement(name, "beaten", seeds, seeds, by) if by else Judgement(name, of=seeds)


def informative(rows: pd.DataFrame) -> pd.Series:
    """Return whether the run of each row is better than one constant prediction; True if not known."""
    return rows["informative"].astype(bool) if "informative" in rows else pd.Series(True, rows.index)


def _beats(private: pd.DataFrame, gap_tolerance: float) -> bool:
    overall = private.loc[private["group"] == ALL, "privacy_cost"].dropna()
    by_group = private[private["group"] != ALL].groupby("group")["privacy_cost"].mean().dropna()
    mean, _, high = mean_interval(overall, LEVEL)
    sure = (overall < 0).all() or high < 0
    return bool(sure and mean < -NEGLIGIBLE * gap_tolerance and (by_group < 0).all())
