"""Costs of privacy to each group, over methods and seeds: costs, gaps, their intervals, and tests.

Tables are in long form. `results` has one row per run and group (and one for group "all"), with the columns
method, setting, seed, group, count, loss, epsilon and metrics, such as accuracy. A run is one (method,
setting, seed). If the baseline has several settings, the column "baseline" has the setting of the baseline
runs that a run is measured against.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import numpy as np

from equidp._extras import require_extra
from equidp._validate import check_number
from equidp.data.dataset import ALL
from equidp.errors import DataError
from equidp.evaluation.baselines import baseline_names, informative, judge_baselines
from equidp.evaluation.intervals import mean_interval
from equidp.evaluation.metrics import METRICS, Metric

with require_extra("tables"):
    import pandas as pd

COSTS = ("privacy_cost", "excessive_risk")
"""Columns of what a run lost against its baseline."""
TOTAL_COSTS = ("model_cost", "total_cost")
"""Columns of what a run's baseline, and the run, lost against the best model without privacy."""
WITHIN_TOLERANCE = "within tolerance"
"""Verdict on gaps whose whole interval is at most the tolerance."""
EXCEEDS_TOLERANCE = "exceeds tolerance"
"""Verdict on gaps whose whole interval is above the tolerance."""
INCONCLUSIVE = "inconclusive"
"""Verdict on gaps whose interval has the tolerance inside."""
UNINFORMATIVE = "uninformative"
"""Verdict on costs that are equal because models predict one constant for everything."""
NO_VERDICT = "no verdict"
"""Verdict on costs against a baseline that does not serve."""
RUN = ["method", "setting", "seed"]


def privacy_costs(
    results: pd.DataFrame,
    baseline: str = "sgd",
    metric: Metric = METRICS["accuracy"],
    best: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return `results` with what each run lost against its baseline: the baseline method's run of the same
    seed.

    privacy_cost = metric(baseline) - metric(run), with the opposite sign if lower is better; for accuracy, it
    is the cost of Xu et al. excessive_risk = loss(run) - loss(baseline) (Tran et al.). With results of the
    best non-private model, model_cost = metric(best) - metric(baseline), and total_cost = model_cost +
    privacy_cost. All are NaN if the column `few_people` says that a run was tested on too few people of a
    group. No gap, mean or verdict uses such groups.

    Args:
        results: results of the baseline and of private runs.
        baseline: method without privacy.
        metric: metric of costs.
        best: results of the best model without privacy, with a row for each seed and group. None: not known.

    Raises:
        DataError: a run has no baseline run of its seed, or several.
    """
    costs = results.reset_index(drop=True)
    keys = pd.MultiIndex.from_arrays([baseline_names(costs), costs["seed"], costs["group"]])
    is_baseline = (costs["method"] == baseline).to_numpy()
    measured = costs.loc[is_baseline, list({metric.name, "loss"})].set_index(keys[is_baseline])
    if measured.index.has_duplicates:
        raise DataError(
            f"the results hold more than one {baseline!r} run of a seed; expected one.", field="results"
        )
    if len(missing := keys.difference(measured.index)):
        raise DataError(
            f"no {baseline!r} run for (seed, group) {missing[0][1:]}; every run needs one of its seed.",
            field="results",
        )
    paired = measured.loc[keys].reset_index(drop=True)
    costs["privacy_cost"] = metric.sign * (paired[metric.name] - costs[metric.name])
    costs["excessive_risk"] = costs["loss"] - paired["loss"]
    if best is not None:
        reached = best.set_index(["seed", "group"])[metric.name]
        reached = reached.loc[pd.MultiIndex.from_frame(costs[["seed", "group"]])].reset_index(drop=True)
        costs["model_cost"] = metric.sign * (reached - paired[metric.name])
        costs["total_cost"] = costs["model_cost"] + costs["privacy_cost"]
    if "few_people" in costs:
        shown = [name for name in (*COSTS, *TOTAL_COSTS) if name in costs]
        costs.loc[costs["few_people"].astype(bool), shown] = np.nan
    return costs


def group_gaps(costs: pd.DataFrame) -> pd.DataFrame:
    """Return the gaps between groups in each run, for every pair and the largest.

    Returns:
        Columns method, setting, seed, pair ("a | b", or "largest") and cost_gap = |pi_a - pi_b|, of privacy
        costs pi, or NaN if a group has none.
    """
    rows = []
    for run, part in costs[costs["group"] != ALL].groupby(RUN, sort=False):
        values = part.set_index("group")["privacy_cost"]
        pairs = {f"{a} | {b}": abs(values[a] - values[b]) for a, b in itertools.combinations(values.index, 2)}
        if not pairs:
            raise DataError(f"run {run} has one group; gaps need two.", field="results")
        pairs["largest"] = np.fmax.reduce([*pairs.values()])
        rows += [(*run, *pair) for pair in pairs.items()]
    return pd.DataFrame(rows, columns=[*RUN, "pair", "cost_gap"])


def check_gap_tolerance(gap_tolerance: float) -> None:
    check_number("(0, 1]", ", a share such as 0.05 for 5 points", gap_tolerance=gap_tolerance)


EPSILON_OF_GROUP = "epsilon_of_group"
"""Column of results with the epsilon of each group, if rates or bounds differ by group."""


def ranges(metric: Metric, columns: Collection[str]) -> dict[str, tuple[float, float]]:
    """Return the range of each metric among the columns, and of the costs in one of them."""
    known = {**{each.name: each.range for each in METRICS.values()}, metric.name: metric.range}
    return {
        **{name: ends for name, ends in known.items() if name in columns},
        "loss": (0.0, np.inf),
        **{name: (-metric.width, metric.width) for name in ("privacy_cost", *TOTAL_COSTS) if name in columns},
        "excessive_risk": (-np.inf, np.inf),
        **({EPSILON_OF_GROUP: (0.0, np.inf)} if EPSILON_OF_GROUP in columns else {}),
    }


def summary(costs: pd.DataFrame, level: float = 0.95, metric: Metric = METRICS["accuracy"]) -> pd.DataFrame:
    """Return means and Student's intervals over seeds, by method, setting and group.

    Seeds in which a metric is not defined are left out.

    Returns:
        Columns method, setting, group, seeds, epsilon; m_mean, m_low, m_high for each m of `ranges`.
    """
    rows = []
    for (method, setting, group), part in costs.groupby(["method", "setting", "group"], sort=False):
        row: dict[str, Any] = {"method": method, "setting": setting, "group": group}
        row |= {"seeds": len(part), "epsilon": part["epsilon"].max()}
        for name, within in ranges(metric, costs.columns).items():
            names = (f"{name}_{end}" for end in ("mean", "low", "high"))
            row |= dict(zip(names, mean_interval(part[name].dropna(), level, within), strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def equal_cost(
    costs: pd.DataFrame,
    gap_tolerance: float = 0.05,
    level: float = 0.95,
    metric: Metric = METRICS["accuracy"],
    baseline: str = "sgd",
) -> pd.DataFrame:
    """Return whether equal cost of privacy (Xu et al.: every gap <= tau) holds, judged over seeds.

    The statistic is the largest gap in privacy cost of each run. It is "within tolerance" or "exceeds
    tolerance" if the whole interval is on one side of the tolerance, and otherwise "inconclusive". A single
    seed gives no verdict. A gap within tolerance is "uninformative" if most runs of the method are no better
    than one constant prediction (the column "informative"), because such costs are equal regardless of
    privacy. Otherwise there is "no verdict" if the baseline is not meaningful
    (`equidp.evaluation.baselines.judge_baselines`).

    Returns:
        Columns method, setting, gap_mean, gap_low, gap_high, pair (the groups furthest apart on average),
        informative, verdict.
    """
    check_gap_tolerance(gap_tolerance)
    gaps, judged = group_gaps(costs), judge_baselines(costs, gap_tolerance, baseline)
    kinds = [costs["method"], costs["setting"]]
    useful = informative(costs).groupby(kinds).mean() > 0.5
    names = baseline_names(costs).groupby(kinds).first()
    rows = []
    for kind, part in gaps.groupby(["method", "setting"], sort=False):
        largest = part.loc[part["pair"] == "largest", "cost_gap"].dropna()
        mean, low, high = mean_interval(largest, level, (0.0, 2 * metric.width))
        by_pair = part[part["pair"] != "largest"].groupby("pair")["cost_gap"].mean()
        pair = "" if by_pair.isna().all() else by_pair.idxmax()
        tells, serves = bool(useful[kind]), judged[names[kind]].serves
        rows.append((*kind, mean, low, high, pair, tells, _verdict(low, high, gap_tolerance, tells, serves)))
    columns = ["method", "setting", "gap_mean", "gap_low", "gap_high", "pair", "informative", "verdict"]
    return pd.DataFrame(rows, columns=columns)


def _verdict(low: float, high: float, gap_tolerance: float, tells: bool, serves: bool) -> str:
    if not serves and (tells or not high <= gap_tolerance):
        return NO_VERDICT
    if np.isnan(low):
        return "one seed: no verdict"
    if high <= gap_tolerance:
        return WITHIN_TOLERANCE if tells else UNINFORMATIVE
    return EXCEEDS_TOLERANCE if low > gap_tolerance else INCONCLUSIVE
