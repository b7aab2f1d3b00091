"""What privacy cost each group, over methods and seeds: costs, gaps, their intervals, and tests.

Tables are in long form. `results` has one row per run and group (and one for group "all"), with the columns
method, setting, seed, group, count, accuracy, loss, epsilon; a run is one (method, setting, seed).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from equidp._validate import check_number
from equidp.data.dataset import ALL
from equidp.errors import DataError, SettingError
from equidp.evaluation.intervals import mean_interval

COSTS = ("privacy_cost", "excessive_risk")
METRICS = {
    "accuracy": (0.0, 1.0),
    "loss": (0.0, np.inf),
    "privacy_cost": (-1.0, 1.0),
    "excessive_risk": (-np.inf, np.inf),
}
"""Metric -> the range that it can lie in."""
RUN = ["method", "setting", "seed"]


def privacy_costs(results: pd.DataFrame, baseline: str = "sgd") -> pd.DataFrame:
    """Returns `results` with what each run lost against the baseline's run of the same seed, by group.

    privacy_cost = accuracy(baseline) - accuracy(run) (Xu et al.);
    excessive_risk = loss(run) - loss(baseline) (Tran et al.).

    Raises:
        DataError: a run has no baseline run of its seed.
    """
    reference = results[results["method"] == baseline].set_index(["seed", "group"])[["accuracy", "loss"]]
    if reference.index.has_duplicates:
        raise DataError(f"the results hold more than one {baseline!r} run of a seed; expected one.")
    keys = pd.MultiIndex.from_frame(results[["seed", "group"]])
    missing = keys.difference(reference.index)
    if len(missing):
        raise DataError(
            f"no {baseline!r} run for (seed, group) {missing[0]}; every run needs one of its seed."
        )
    paired = reference.loc[keys].reset_index(drop=True)
    costs = results.reset_index(drop=True).copy()
    costs["privacy_cost"] = paired["accuracy"] - costs["accuracy"]
    costs["excessive_risk"] = costs["loss"] - paired["loss"]
    return costs


def group_gaps(costs: pd.DataFrame) -> pd.DataFrame:
    """Returns the gaps between groups in each run, for every pair and the largest.

    Returns:
        Columns method, setting, seed, pair ("a | b", or "largest"), cost_gap = |pi_a - pi_b| and
        risk_gap = |R_a - R_b|, of privacy costs pi and excessive risks R.
    """
    rows = []
    for run, part in costs[costs["group"] != ALL].groupby(RUN, sort=False):
        values = part.set_index("group")[["privacy_cost", "excessive_risk"]]
        pairs = [
            (f"{a} | {b}", *(values.loc[a] - values.loc[b]).abs())
            for a, b in itertools.combinations(values.index, 2)
        ]
        if not pairs:
            raise DataError(f"run {run} has one group; gaps need two.")
        largest = ("largest", max(pair[1] for pair in pairs), max(pair[2] for pair in pairs))
        rows += [(*run, *pair) for pair in [*pairs, largest]]
    return pd.DataFrame(rows, columns=[*RUN, "pair", "cost_gap", "risk_gap"])


def check_tau(tau: float) -> None:
    check_number("(0, 1]", ", a share such as 0.05 for 5 points", tau=tau)


def summary(costs: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """Returns means and Student's intervals over seeds, by method, setting and group.

    Returns:
        Columns method, setting, group, seeds, epsilon; m_mean, m_low, m_high for each metric m of METRICS.
    """
    rows = []
    for (method, setting, group), part in costs.groupby(["method", "setting", "group"], sort=False):
        row: dict[str, Any] = {"method": method, "setting": setting, "group": group}
        row |= {"seeds": len(part), "epsilon": part["epsilon"].max()}
        for metric, within in METRICS.items():
            names = (f"{metric}_{end}" for end in ("mean", "low", "high"))
            row |= dict(zip(names, mean_interval(part[metric], level, within), strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def equal_cost(costs: pd.DataFrame, tau: float = 0.05, level: float = 0.95) -> pd.DataFrame:
    """Returns whether equal cost of privacy (Xu et al.: every gap <= tau) holds, judged over seeds.

    The statistic is the largest gap in privacy cost of each run. It "holds" or "fails" where the whole
    interval lies on one side of tau and is "undecided" elsewhere; a single seed gives no verdict.

    Returns:
        Columns method, setting, gap_mean, gap_low, gap_high, pair (the groups furthest apart on average),
        verdict.
    """
    check_tau(tau)
    gaps = group_gaps(costs)
    rows = []
    for (method, setting), part in gaps.groupby(["method", "setting"], sort=False):
        mean, low, high = mean_interval(part.loc[part["pair"] == "largest", "cost_gap"], level, (0.0, 2.0))
        by_pair = part[part["pair"] != "largest"].groupby("pair")["cost_gap"].mean()
        rows.append((method, setting, mean, low, high, by_pair.idxmax(), _verdict(low, high, tau)))
    return pd.DataFrame(
        rows, columns=["method", "setting", "gap_mean", "gap_low", "gap_high", "pair", "verdict"]
    )


def _verdict(low: float, high: float, tau: float) -> str:
    if np.isnan(low):
        return "one seed: no verdict"
    return "holds" if high <= tau else "fails" if low > tau else "undecided"


def wilcoxon_table(
    costs: pd.DataFrame, baseline: str = "sgd", pair: tuple[str, str] | None = None
) -> pd.DataFrame:
    """Tests whether a method has a smaller gap, by one-sided Wilcoxon signed ranks over seeds.

    Esipova et al. use the same test.

    Args:
        costs: from `privacy_costs`.
        baseline: left out, since its gap is 0 by definition.
        pair: two groups whose gap is compared; None: the largest gap of each run.

    Returns:
        Columns method, setting, other, other_setting, p (of "method's gap is not smaller than other's"),
        seeds, and smallest_possible_p = 2^-seeds: no result can be more significant.
    """
    name = "largest" if pair is None else " | ".join(pair)
    gaps = group_gaps(costs[costs["method"] != baseline])
    if pair is not None and not (gaps["pair"] == name).any():
        name = " | ".join(reversed(pair))
    chosen = gaps[gaps["pair"] == name]
    if chosen.empty and len(gaps):
        raise SettingError(
            f"pair={pair}: no such groups; known pairs: {', '.join(sorted(set(gaps['pair'])))}."
        )
    series = {
        key: part.set_index("seed")["cost_gap"].sort_index()
        for key, part in chosen.groupby(["method", "setting"], sort=False)
    }
    rows = []
    for (one, gaps_one), (other, gaps_other) in itertools.permutations(series.items(), 2):
        difference = (gaps_one - gaps_other).dropna()
        rows.append((*one, *other, _signed_rank(difference), len(difference), 0.5 ** len(difference)))
    return pd.DataFrame(
        rows, columns=["method", "setting", "other", "other_setting", "p", "seeds", "smallest_possible_p"]
    )


def _signed_rank(difference: pd.Series) -> float:
    if len(difference) < 2:
        return np.nan
    if not (difference != 0).any():
        return 1.0
    kind = "exact" if (difference != 0).all() else "auto"
    return float(stats.wilcoxon(difference, alternative="less", method=kind).pvalue)
