"""A baseline is judged before anything is judged against it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from equidp.evaluation.baselines import judge_baselines
from equidp.evaluation.costs import NO_VERDICT, equal_cost, privacy_costs


def results(
    baseline: tuple[float, float], private: tuple[float, float], *, seeds: int = 3, **changes: object
) -> pd.DataFrame:
    """Accuracies of groups a and b without privacy and with; `changes`: columns of the baseline's rows."""
    rows = []
    for method, accuracies in (("sgd", baseline), ("dpsgd", private)):
        for seed in range(seeds):
            for group, value in zip(
                ("a", "b", "all"), (*accuracies, float(np.mean(accuracies))), strict=True
            ):
                row = {"method": method, "setting": "", "seed": seed, "group": group, "accuracy": value}
                row |= {"loss": 1 - value, "epsilon": 1.0, "informative": True, "baseline": ""}
                rows.append(row | (changes if method == "sgd" else {}))
    return pd.DataFrame(rows)


def judged(table: pd.DataFrame):
    return judge_baselines(privacy_costs(table), 0.05)[""]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_seed_without_a_finite_loss_is_a_divergence(value):
    table = results((0.9, 0.8), (0.89, 0.81))
    table.loc[(table["method"] == "sgd") & (table["seed"] == 1), "loss"] = value
    found = judged(table)
    assert (found.fault, found.seeds, found.of) == ("diverged", 1, 3)


def test_half_of_the_runs_no_better_than_a_constant_are_enough():
    table = results((0.9, 0.8), (0.89, 0.81), seeds=4)
    own = table["method"] == "sgd"
    table.loc[own & (table["seed"] < 1), "informative"] = False
    assert judged(table).serves
    table.loc[own & (table["seed"] < 2), "informative"] = False
    found = judged(table)
    assert (found.fault, found.seeds, found.of) == ("constant", 2, 4)


def test_a_baseline_is_beaten_in_every_group_and_every_seed_or_not_at_all():
    found = judged(results((0.8, 0.7), (0.82, 0.72)))
    assert (found.fault, found.by, found.seeds) == ("beaten", (("dpsgd", ""),), 3)
    assert judged(results((0.8, 0.7), (0.79, 0.78))).serves  # group a loses
    assert judged(results((0.8, 0.7), (0.803, 0.703))).serves  # by less than a tenth of the tolerance
    one_seed_is_worse = results((0.8, 0.7), (0.82, 0.72))
    whole = (one_seed_is_worse["method"] == "dpsgd") & (one_seed_is_worse["group"] == "all")
    one_seed_is_worse.loc[whole & (one_seed_is_worse["seed"] == 2), "accuracy"] = 0.74
    assert judged(one_seed_is_worse).serves


def test_a_group_of_few_people_neither_saves_nor_spoils_a_baseline():
    table = results((0.8, 0.7), (0.82, 0.72))
    few = table[table["group"] == "a"].assign(group="c", few_people=True)
    few.loc[few["method"] == "dpsgd", "accuracy"] = 0.1
    assert judged(pd.concat([table.assign(few_people=False), few])).fault == "beaten"


def test_runs_are_measured_against_the_baseline_of_their_own_kind_and_each_is_judged():
    one = results((0.9, 0.8), (0.85, 0.75))
    other = results((0.6, 0.5), (0.7, 0.6)).assign(baseline="model=mlp", setting="model=mlp")
    costs = privacy_costs(pd.concat([one, other]))
    whole = costs[costs["group"] == "all"].groupby(["method", "setting"])["privacy_cost"].mean()
    assert whole.to_dict() == pytest.approx(
        {("sgd", ""): 0.0, ("sgd", "model=mlp"): 0.0, ("dpsgd", ""): 0.05, ("dpsgd", "model=mlp"): -0.1}
    )
    assert {name: each.fault for name, each in judge_baselines(costs, 0.05).items()} == {
        "": "",
        "model=mlp": "beaten",
    }
    verdicts = equal_cost(costs).set_index(["method", "setting"])["verdict"]
    assert (verdicts["dpsgd", ""], verdicts["dpsgd", "model=mlp"]) == ("within tolerance", NO_VERDICT)
