"""Costs, gaps and tests over seeds, against values worked out by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from equidp.errors import DataError
from equidp.evaluation.costs import equal_cost, group_gaps, privacy_costs, summary
from equidp.evaluation.intervals import mean_interval
from support.errors import raises_field


def results(table: dict[tuple[str, int], dict[str, float]]) -> pd.DataFrame:
    """Accuracies by (method, seed) and group; loss is 1 - accuracy."""
    rows = []
    for (method, seed), accuracies in table.items():
        rows += [
            {
                "method": method,
                "setting": "",
                "seed": seed,
                "group": group,
                "count": 10,
                "accuracy": accuracy,
                "loss": 1 - accuracy,
                "epsilon": 1.0,
            }
            for group, accuracy in [*accuracies.items(), ("all", sum(accuracies.values()) / len(accuracies))]
        ]
    return pd.DataFrame(rows)


TWO = results(
    {
        ("sgd", 0): {"a": 0.90, "b": 0.80, "c": 0.70},
        ("sgd", 1): {"a": 0.92, "b": 0.82, "c": 0.72},
        ("dpsgd", 0): {"a": 0.88, "b": 0.70, "c": 0.20},
        ("dpsgd", 1): {"a": 0.90, "b": 0.74, "c": 0.30},
    }
)


def test_costs_gaps_and_verdicts_leave_out_groups_of_few_people():
    """Group c loses 50 points, of 4 people: the largest gap is that of a and b, of 8 and of 6 points."""
    few = TWO.assign(few_people=TWO["group"] == "c")
    costs = privacy_costs(few)
    assert costs.loc[costs["group"] == "c", "privacy_cost"].isna().all()
    assert costs.loc[costs["group"] != "c", "privacy_cost"].notna().all()
    largest = group_gaps(costs).query("method == 'dpsgd' and pair == 'largest'")["cost_gap"]
    assert largest.tolist() == pytest.approx([0.08, 0.06])
    assert equal_cost(costs, 0.5).set_index("method").loc["dpsgd", "pair"] == "a | b"


def test_costs_pair_runs_of_one_seed():
    costs = privacy_costs(TWO).set_index(["method", "seed", "group"]).sort_index()
    assert costs.loc[("dpsgd", 0, "c"), "privacy_cost"] == pytest.approx(0.5)
    assert costs.loc[("dpsgd", 1, "c"), "privacy_cost"] == pytest.approx(0.42)
    assert costs.loc[("dpsgd", 1, "b"), "excessive_risk"] == pytest.approx(0.08)
    assert (costs.loc["sgd", "privacy_cost"] == 0).all()


def test_a_run_without_its_baseline_is_refused():
    with raises_field(DataError, "results", "'sgd'"):
        privacy_costs(TWO[(TWO["method"] != "sgd") | (TWO["seed"] == 0)])
    with raises_field(DataError, "results"):
        privacy_costs(pd.concat([TWO, TWO]))


def test_gaps_of_every_pair_and_the_largest():
    gaps = group_gaps(privacy_costs(TWO))
    run = gaps[(gaps["method"] == "dpsgd") & (gaps["seed"] == 0)].set_index("pair")["cost_gap"]
    expected = {"a | b": 0.08, "a | c": 0.48, "b | c": 0.40, "largest": 0.48}
    assert run.to_dict() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("second_seed", "gap_tolerance", "verdict"),
    [(0.30, 0.05, "exceeds tolerance"), (0.21, 0.6, "within tolerance"), (0.60, 0.4, "inconclusive")],
)
def test_verdicts_follow_the_whole_interval(second_seed, gap_tolerance, verdict):
    table = results(
        {
            ("sgd", 0): {"a": 0.9, "c": 0.7},
            ("sgd", 1): {"a": 0.9, "c": 0.7},
            ("dpsgd", 0): {"a": 0.9, "c": 0.2 if verdict != "exceeds tolerance" else 0.29},
            ("dpsgd", 1): {"a": 0.9, "c": second_seed},
        }
    )
    row = equal_cost(privacy_costs(table), gap_tolerance).set_index("method").loc["dpsgd"]
    assert row["verdict"] == verdict
    assert row["pair"] == "a | c"


def test_summary_has_means_and_intervals():
    row = summary(privacy_costs(TWO)).set_index(["method", "setting", "group"]).loc[("dpsgd", "", "c")]
    assert row["seeds"] == 2
    assert row["privacy_cost_mean"] == pytest.approx(0.46)
    assert row["privacy_cost_low"] == pytest.approx(mean_interval([0.5, 0.42])[1])
