"""Differences from a named method are paired by seed, and their tests are corrected for their number."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from equidp.evaluation.costs import privacy_costs
from equidp.evaluation.differences import GAP, OVERALL, WORST_GROUP, holm, paired_differences
from equidp.evaluation.intervals import mean_interval
from equidp.evaluation.metrics import METRICS

REACHED = {
    ("sgd", 0): (0.90, 0.80),
    ("sgd", 1): (0.92, 0.84),
    ("sgd", 2): (0.91, 0.82),
    ("dpsgd", 0): (0.85, 0.70),
    ("dpsgd", 1): (0.86, 0.71),
    ("dpsgd", 2): (0.87, 0.75),
    ("mine", 0): (0.84, 0.78),
    ("mine", 1): (0.86, 0.74),
    ("mine", 2): (0.86, 0.81),
}


def costs_of(reached, *, metric="accuracy", **columns) -> pd.DataFrame:
    rows = [
        {"method": method, "setting": "", "seed": seed, "group": group, metric: value, "loss": 0.0, **columns}
        for (method, seed), (a, b) in reached.items()
        for group, value in (("a", a), ("b", b), ("all", (a + b) / 2))
    ]
    return privacy_costs(pd.DataFrame(rows), metric=METRICS[metric])


def test_differences_are_those_of_runs_of_one_seed():
    found = paired_differences(costs_of(REACHED), "dpsgd").set_index("quantity")
    assert set(found["method"]) == {"mine"}
    by_hand = {
        OVERALL: [0.035, 0.015, 0.025],
        WORST_GROUP: [0.08, 0.03, 0.06],
        GAP: [0.04 - 0.05, 0.04 - 0.07, 0.04 - 0.03],
    }
    for quantity, differences in by_hand.items():
        row = found.loc[quantity]
        assert tuple(row[["mean", "low", "high"]]) == pytest.approx(mean_interval(differences))
        assert row["p"] == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
        assert row["seeds"] == 3
    assert found["corrected_p"].to_numpy() == pytest.approx(holm(found["p"].to_numpy()))


def test_a_group_of_few_people_is_never_the_worst():
    costs = costs_of(REACHED)
    few = privacy_costs(
        costs.drop(columns=["privacy_cost", "excessive_risk"]).assign(few_people=costs["group"] == "b")
    )
    with_a = paired_differences(few, "dpsgd").set_index("quantity").loc[WORST_GROUP]
    assert with_a["mean"] == pytest.approx(np.mean([-0.01, 0.0, -0.01]))


def test_a_single_seed_and_equal_differences_have_no_test_and_no_difference_has_p_1():
    single = paired_differences(costs_of({k: v for k, v in REACHED.items() if k[1] == 0}), "dpsgd")
    assert single[["p", "corrected_p", "low", "high"]].isna().all(axis=None)
    shifted = {
        ("mine", seed): (a + 0.01, b) for (method, seed), (a, b) in REACHED.items() if method == "dpsgd"
    }
    found = paired_differences(costs_of(REACHED | shifted), "dpsgd").set_index("quantity")
    assert np.isnan(found.loc[OVERALL, "p"])
    assert found.loc[WORST_GROUP, "p"] == 1.0
