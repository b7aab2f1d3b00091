"""Differences of methods from a named one, paired over seeds, with intervals and corrected tests.

Tables are as in `equidp.evaluation.costs`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from equidp._extras import require_extra
from equidp.data.dataset import ALL
from equidp.evaluation.costs import RUN, group_gaps
from equidp.evaluation.intervals import Floats, mean_interval
from equidp.evaluation.metrics import METRICS, Metric

with require_extra("tables"):
    import pandas as pd

OVERALL, WORST_GROUP, GAP = "overall", "worst group", "gap"
QUANTITIES = (OVERALL, WORST_GROUP, GAP)
"""Quantities of a run that are compared: the metric over all examples and in its worst group, and the largest
gap in privacy cost."""


def paired_differences(
    costs: pd.DataFrame,
    against: str,
    *,
    swept: Sequence[str] = (),
    baseline: str = "sgd",
    metric: Metric = METRICS["accuracy"],
    level: float = 0.95,
) -> pd.DataFrame:
    """Return the differences of each private method from a named one, of runs of one seed.

    Two kinds of run are paired if they have the same target epsilon and the same values of the columns
    `swept` that both have. A difference is the method's value minus the named method's value. A better metric
    has the sign of `Metric.sign`, and a smaller gap is below 0. The baseline is left out, because differences
    from it are privacy costs.

    Returns:
        Columns method, setting, against, against_setting, quantity (of `QUANTITIES`), mean, low, high
        (Student's interval), p (two-sided t-test of pairs), corrected_p (Holm's, for all rows of the table)
        and seeds. p is NaN for a single seed, and for equal differences other than 0.

    Example:
        >>> rows = [("dpsgd", 0, 0.80), ("dpsgd", 1, 0.81), ("mine", 0, 0.83), ("mine", 1, 0.85)]
        >>> runs = pd.DataFrame(rows, columns=["method", "seed", "accuracy"]).assign(setting="")
        >>> costs = pd.concat([runs.assign(group=group) for group in ("a", "b", ALL)])
        >>> costs = costs.assign(privacy_cost=0.0, excessive_risk=0.0)
        >>> paired_differences(costs, "dpsgd")[["method", "quantity", "mean", "p"]].round(3)
          method     quantity   mean     p
        0   mine      overall  0.035  0.09
        1   mine  worst group  0.035  0.09
        2   mine          gap  0.000  1.00
    """
    private = costs[costs["method"] != baseline]
    columns = [name for name in ("target_epsilon", *swept) if name in private]
    settings = private.groupby(["method", "setting"], sort=False)[["seed", *columns]].first()
    values = run_quantities(private, metric).sort_index()
    rows: list[dict[str, Any]] = []
    for one, other in itertools.permutations(settings.index, 2):
        if one[0] == against or other[0] != against:
            continue
        if not _comparable(settings.loc[one, columns], settings.loc[other, columns]):
            continue
        differences = values.loc[one] - values.loc[other]
        names = {"method": one[0], "setting": one[1], "against": against, "against_setting": other[1]}
        for quantity in QUANTITIES:
            difference = differences[quantity].dropna()
            mean, low, high = mean_interval(difference, level)
            row = {**names, "quantity": quantity, "mean": mean, "low": low, "high": high}
            rows.append({**row, "p": _paired_test(difference), "seeds": len(difference)})
    table = pd.DataFrame(rows, columns=[*_COLUMNS, "seeds"])
    table.insert(len(_COLUMNS), "corrected_p", holm(table["p"].to_numpy(dtype=float)))
    return table


_COLUMNS = ["method", "setting", "against", "against_setting", "quantity", "mean", "low", "high", "p"]


def run_quantities(costs: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the columns of `QUANTITIES` for each run, indexed by method, setting and seed.

    Groups of too few people, which have no privacy cost, are neither worst nor in a gap.
    """
    of_groups = costs[(costs["group"] != ALL) & costs["privacy_cost"].notna()]
    signed = metric.sign * of_groups.set_index(RUN)[metric.name]
    overall = costs[costs["group"] == ALL].set_index(RUN)[metric.name]
    gaps = group_gaps(costs).query("pair == 'largest'").set_index(RUN)["cost_gap"]
    worst = metric.sign * signed.groupby(RUN).min()
    return pd.DataFrame({OVERALL: overall, WORST_GROUP: worst, GAP: gaps}).reindex(overall.index)


def _comparable(one: pd.Series, other: pd.Series) -> bool:
    """True if values that both kinds have are equal: a target epsilon, swept settings."""
    return all(a == b or pd.isna(a) or pd.isna(b) for a, b in zip(one, other, strict=True))


def _paired_test(difference: pd.Series) -> float:
    if len(difference) < 2:
        return np.nan
    if not (difference != 0).any():
        return 1.0
    if difference.std(ddof=1) <= 1e-12 * difference.abs().max():
        return np.nan
    return float(stats.ttest_1samp(difference, 0.0).pvalue)


def holm(p: Floats) -> Floats:
    """Return p values corrected for the number of tests (Holm, 1979). NaN does not count as a test.

    >>> holm(np.array([0.01, 0.04, np.nan, 0.03])).round(3).tolist()
    [0.03, 0.06, nan, 0.06]
    """
    corrected = np.full(len(p), np.nan)
    order = [at for at in np.argsort(p) if not np.isnan(p[at])]
    largest = 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p[at]))
        corrected[at] = largest
    return corrected
