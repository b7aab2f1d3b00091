"""The reference is plain SGD at the best of several rates; boosted trees join on a table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score, log_loss

import equidp
from equidp.comparison.cells import Trees
from equidp.comparison.compare import prepare
from equidp.comparison.plan import RATES, ComparisonPlan
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.evaluation.predictions import Decision
from equidp.training.plan import Plan

PLAN = Plan(batch_size=60, epochs=3, delta=1e-4, learning_rate=0.5)


@dataclass(frozen=True)
class Squares:
    """Classes that no line separates: whether two numbers have one sign."""

    name: str = "squares"
    highlighted_groups: tuple[str, str] | None = None
    n: int = 400

    def split(self, seed: int) -> DataSplit:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(self.n, 2, generator=generator)
        targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
        groups = (torch.rand(self.n, generator=generator) < 0.3).long()
        whole = GroupedDataset(inputs, targets, groups, ("many", "few"), ("no", "yes"))
        return DataSplit(whole.subset(torch.arange(300)), whole.subset(torch.arange(300, self.n)))


def test_figures_of_trees_by_group_are_those_of_scikit_learn_on_the_same_rows():
    data = Squares().split(3)
    result = Trees(Squares(), 3).train(data)
    trees = HistGradientBoostingClassifier(max_iter=1000, early_stopping=True, random_state=3)
    trees.fit(data.train.inputs.numpy(), data.train.targets.numpy())
    shares, targets = trees.predict_proba(data.test.inputs.numpy()), data.test.targets.numpy()
    rows = result.results.set_index("group")
    for group, members in (("many", data.test.groups.numpy() == 0), ("all", np.ones(100, dtype=bool))):
        accuracy = accuracy_score(targets[members], shares[members].argmax(axis=1))
        assert rows.at[group, "accuracy"] == accuracy
        assert rows.at[group, "loss"] == pytest.approx(log_loss(targets[members], shares[members]), abs=1e-6)
        assert rows.at[group, "epsilon"] == np.inf
    predicted = result.predictions(data.test, Decision()).probabilities
    assert predicted == pytest.approx(shares, abs=1e-6)
    keys = {Trees(Squares(), 0).key, Trees(Squares(), 1).key, Trees(Squares(n=420), 0).key}
    assert len(keys | {Trees(Squares(), 0, {"yes": 2.0}).key}) == 4


def compared(tmp_path, **given) -> equidp.Comparison:
    asked = {"methods": ["dpsgd"], "seeds": 2, "plan": PLAN, "epsilon": 3.0, "jobs": 1}
    return equidp.compare(Squares(), directory=tmp_path, **{**asked, **given})


@pytest.mark.soak
def test_costs_of_model_and_privacy_add_up_and_trees_take_what_a_line_cannot(tmp_path):
    found = compared(tmp_path)
    assert list(found.results["method"].unique()) == ["sgd", "dpsgd"]
    costs = found.costs()
    assert costs["total_cost"].to_numpy() == pytest.approx(
        (costs["model_cost"] + costs["privacy_cost"]).to_numpy()
    )
    trees = found.references[found.references["method"] == "boosted trees"].set_index(["seed", "group"])
    for row in costs[costs["method"] == "dpsgd"].itertuples():
        assert row.total_cost == pytest.approx(trees.at[(row.seed, row.group), "accuracy"] - row.accuracy)
    assert trees["best"].all()
    overall = costs[(costs["group"] == "all") & (costs["method"] == "sgd")]
    assert overall["model_cost"].mean() > 0.2
    assert set(found.epochs["method"]) == {"sgd", "dpsgd"}
    assert not found.epochs.duplicated(["method", "seed", "epoch", "group"]).any()


@pytest.mark.soak
def test_all_rates_are_tried_on_the_first_seed_and_the_best_is_the_reference_and_said(tmp_path):
    wild = replace(PLAN, model="mlp", learning_rate=10.0, batch_size=30, epochs=6)
    found = compared(tmp_path, plan=wild, methods=["automatic"])
    tried = found.references.query("method == 'sgd' and group == 'all'")
    first, later = (part.set_index("rate")["accuracy"] for _, part in tried.groupby("seed"))
    assert len(first) == len(RATES)
    assert first[10.0] < first.max() - 0.1  # the rate that was asked for would have made it weak
    assert list(later.index) == [first.idxmax()]
    own = found.results.query("method == 'sgd' and group == 'all'")["accuracy"]
    assert own.tolist() == [first.max(), later.iloc[0]]
    rows = {row.name: row.value for row in found.setup.settings if row.methods == ("sgd",)}
    assert rows["learning_rate used"] == first.idxmax()


@pytest.mark.soak
def test_balanced_weights_are_by_exact_counts_without_privacy_and_by_released_ones_with_it(tmp_path):
    asked = ComparisonPlan(["dpsgd"], 1, PLAN, epsilons=(3.0,), balanced=True, counts_share=0.2)
    plain = replace(asked, balanced=False, counts_share=None)
    prepared, by_plan = (prepare(Squares(), each, directory=tmp_path) for each in (asked, plain))
    data = Squares().split(0)
    counts = np.bincount(data.train.targets.numpy())
    exact = dict(zip(("no", "yes"), 300 / (2 * counts), strict=True))
    reference, *_, private = prepared.first_cells()
    assert reference.class_weights(data.train) == pytest.approx(exact)
    assert private.class_weights(data.train) != reference.class_weights(data.train)
    assert private.class_weights(data.train) == pytest.approx(exact, rel=0.3)
    *_, other = by_plan.first_cells()
    assert private.plan.noise_multiplier > other.plan.noise_multiplier
    assert private.key != other.key
    (_, _, _, spent, _) = prepared.check()[-1]
    assert 2.9 < spent <= 3.0
    by_class = Trees(Squares(), 0, exact).train(data).outputs
    assert prepared.trees[0].train(data).outputs == pytest.approx(by_class, abs=1e-9)
