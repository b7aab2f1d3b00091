"""A baseline is the best of several candidates of its class of models; boosted trees join on a table."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score, log_loss

import equidp
from equidp.comparison import baselines, cells
from equidp.comparison.baselines import (
    RATES,
    BaselinePlan,
    BaselineSearch,
    BoostedTrees,
    choose_baselines,
    keep_chosen,
    source_of_trees,
)
from equidp.comparison.compare import prepare
from equidp.comparison.plan import ComparisonPlan
from equidp.comparison.sweep import named_methods, sweep_variants
from equidp.comparison.workers import Workers, spread
from equidp.data import open_source
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.data.features import WithFeatures
from equidp.evaluation.metrics import METRICS
from equidp.evaluation.predictions import Decision
from equidp.training.plan import Plan


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


def test_figures_by_group_are_those_of_scikit_learn_on_the_same_rows():
    data = Squares().split(3)
    found = BoostedTrees(Squares(), 3).train(data)
    trees = HistGradientBoostingClassifier(max_iter=1000, early_stopping=True, random_state=3)
    trees.fit(data.train.inputs.numpy(), data.train.targets.numpy())
    shares, targets = trees.predict_proba(data.test.inputs.numpy()), data.test.targets.numpy()
    rows = found.results.set_index("group")
    for group, members in (("many", data.test.groups.numpy() == 0), ("all", np.ones(100, dtype=bool))):
        accuracy = accuracy_score(targets[members], shares[members].argmax(axis=1))
        assert rows.at[group, "accuracy"] == accuracy
        assert rows.at[group, "loss"] == pytest.approx(log_loss(targets[members], shares[members]), abs=1e-6)
        assert rows.at[group, "epsilon"] == np.inf
    assert rows.at["all", "accuracy"] > 0.85
    predicted = found.predictions(data.test, Decision()).probabilities
    assert predicted == pytest.approx(shares, abs=1e-6)


@pytest.mark.soak
def test_results_are_kept_and_taken_for_equal_data_and_seed_only(tmp_path, monkeypatch):
    trees = [BoostedTrees(Squares(), seed) for seed in (0, 1)]

    def trained():
        return cells.train_all(
            trees, tmp_path, lambda function, calls: spread(function, calls, Workers(1, None)), None
        )

    first = trained()
    monkeypatch.setattr(baselines.BoostedTrees, "train", lambda *_: pytest.fail("it trained"))
    again = trained()
    for one, other in zip(first, again, strict=True):
        assert one.results.equals(other.results)
    assert len({trees[0].key, trees[1].key, BoostedTrees(Squares(n=420), 0).key}) == 3
    assert BoostedTrees(Squares(), 0, {"yes": 2.0}).key != trees[0].key


@pytest.mark.soak
def test_rows_of_people_and_their_weights_are_those_of_training():
    """A row of weight 0 fills up a person, and is no row."""
    data = Squares().split(0)
    inputs, targets = data.train.inputs, data.train.targets
    padded = torch.stack([inputs, torch.full_like(inputs, 50.0)], dim=1)
    weights = torch.stack([torch.ones(300), torch.zeros(300)], dim=1)
    people = replace(
        data.train, inputs=padded, targets=torch.stack([targets, 1 - targets], 1), weights=weights
    )
    alone, filled = (
        BoostedTrees(Squares(), 0).train(replace(data, train=train)).outputs for train in (data.train, people)
    )
    assert filled == pytest.approx(alone, abs=1e-9)
    heavy = replace(data.train, weights=torch.where(targets == 1, 9.0, 1.0))
    by_row = BoostedTrees(Squares(), 0).train(replace(data, train=heavy)).outputs
    by_class = BoostedTrees(Squares(), 0, {"yes": 9.0}).train(data).outputs
    assert by_row == pytest.approx(by_class, abs=1e-9)
    assert (by_row != alone).any()


def test_a_class_of_few_rows_or_none_in_training_is_predicted_all_the_same():
    data = Squares().split(0)
    rare = torch.where(data.train.targets == 1, 1, 0)
    rare[torch.nonzero(rare)[3:, 0]] = 0
    train = replace(data.train, targets=rare, class_names=("no", "yes", "never"))
    test = replace(data.test, class_names=("no", "yes", "never"))
    found = BoostedTrees(Squares(), 0).train(DataSplit(train, test)).predictions(test, Decision())
    assert np.isfinite(found.probabilities).all()
    assert found.probabilities[:, 2].max() < 1e-9


def test_trees_are_for_rows_of_numbers_and_classes_alone():
    table = Squares().split(0)
    assert source_of_trees(Squares(), 0) == Squares()
    for inputs in (torch.zeros(300, 1, 4, 4), torch.zeros(300, 2, dtype=torch.int64), (table.train.inputs,)):
        data = DataSplit(replace(table.train, inputs=inputs), table.test)
        assert source_of_trees(Given(data), 0) is None


@dataclass(frozen=True, eq=False)
class Given:
    """A source of one split."""

    data: DataSplit

    def split(self, seed: int) -> DataSplit:
        return self.data


def double(inputs):
    return 2 * inputs.flatten(1)


def test_trees_read_inputs_before_fixed_features():
    assert source_of_trees(WithFeatures(open_source("digits"), double), 0) is None
    assert source_of_trees(WithFeatures(Squares(), double), 0) == Squares()


PLAN = Plan(model="logistic", learning_rate=0.5, batch_size=60, epochs=2, delta=1e-4)


def planned(sweep=None, *, plan: Plan = PLAN, searched: bool = True) -> BaselinePlan:
    variants = sweep_variants(named_methods(["dpsgd", "dpsgd-f"]), plan, [1.0, 3.0], sweep or {})
    private = [(each, Squares()) for each in variants if each.name != "sgd"]
    return BaselinePlan(plan, Squares(), private, searched)


def rates(found: BaselinePlan) -> list[float]:
    return [each.resolve(300).learning_rate for each in found.candidates(300)]


def test_candidates_have_multiples_of_the_rate_and_the_first_is_the_plans():
    assert rates(planned()) == [factor * 0.5 for factor in RATES]
    assert RATES[0] == 1.0
    assert min(RATES) < 1 < max(RATES)
    first = planned().candidates(300)[0].resolve(300)
    assert first.settings == PLAN.for_method("sgd").resolve(300).settings
    by_steps = planned(plan=replace(PLAN, learning_rate=None))
    assert rates(by_steps) == pytest.approx([factor * 10**-0.5 for factor in RATES])
    assert rates(planned(searched=False)) == [0.5]


@pytest.mark.soak
def test_each_value_of_a_shared_setting_is_a_candidate_and_those_of_methods_are_not():
    swept = planned({"learning_rate": [0.5, 2.0], "epochs": [2, 4], "clipping_bound": [0.1, 1.0]})
    found = [(each.plan.epochs, each.resolve(300).learning_rate) for each in swept.candidates(300)]
    assert found == [*((2, factor * 0.5) for factor in RATES), (4, 0.5), (2, 2.0), (4, 2.0)]
    assert len({each.label for each in swept.candidates(300)}) == len(found)
    own = replace(PLAN, by_method={"dpsgd-f": {"momentum": 0.9, "learning_rate": 2.0}})
    of_method = [each for each in planned(plan=own).candidates(300) if each.plan.momentum == 0.9]
    assert [each.resolve(300).learning_rate for each in of_method] == [factor * 2.0 for factor in RATES]


@pytest.mark.soak
def test_a_multiple_near_a_rate_that_is_tried_is_left_out_and_a_rate_of_a_run_never():
    for own, others in ((0.6, [0.6]), (2.0, [2.0, 20.0]), (50.0, [50.0, 15.0, 150.0, 500.0])):
        plan = replace(PLAN, by_method={"dpsgd-f": {"learning_rate": own}})
        assert rates(planned(plan=plan)) == pytest.approx([*(factor * 0.5 for factor in RATES), *others])


@pytest.mark.soak
def test_each_model_that_private_runs_have_is_a_class_with_candidates_of_its_own():
    found = planned({"model": ["logistic", "mlp"]})
    names = {found.name_of(*each) for each in found.private}
    assert names == {"", "model=mlp"}
    for name, model in (("", "logistic"), ("model=mlp", "mlp")):
        own = [each for each in found.candidates(300) if each.name == name]
        assert [each.plan.model for each in own] == [model] * len(RATES)
    assert set(found.other_classes.values()) == {"model=mlp"}
    alone = planned({"model": ["mlp"]})
    assert {each.name for each in alone.candidates(300)} == {""}
    assert {each.plan.model for each in alone.candidates(300)} == {"mlp"}
    by_plan = replace(found, searched=False)
    assert {by_plan.name_of(*each) for each in by_plan.private} == {""}
    assert by_plan.other_classes == found.other_classes


def test_two_functions_of_one_name_are_two_classes():
    def make(width):
        def model(shape, classes):
            return torch.nn.Sequential(torch.nn.Linear(shape[0], width), torch.nn.Linear(width, classes))

        return model

    found = planned({"model": [make(2), make(3)]})
    assert len({found.name_of(*each) for each in found.private}) == 2


def runs(scores: dict[tuple[str, str, str], list[float]]) -> pd.DataFrame:
    """Rows of models without privacy: (method, class, setting) -> accuracies by seed; NaN: it diverged."""
    return pd.DataFrame(
        [
            {"method": method, "baseline": name, "setting": setting, "seed": seed, "group": group,
             "accuracy": accuracy, "loss": np.nan if np.isnan(accuracy) else 1.0}
            for (method, name, setting), accuracies in scores.items()
            for seed, accuracy in enumerate(accuracies)
            for group in ("a", "all")
        ]
    )  # fmt: skip


def test_what_was_trained_on_all_seeds_is_chosen_for_each_class_and_the_best_of_all():
    found = choose_baselines(
        runs(
            {
                ("sgd", "", "on one seed"): [0.99],
                ("sgd", "", "two"): [0.7, 0.72],
                ("sgd", "", "lost"): [0.99, np.nan],
                ("sgd", "model=mlp", "one"): [0.75, 0.75],
                ("boosted trees", "", ""): [0.9, 0.9],
            }
        ),
        METRICS["accuracy"],
    )
    assert set(found[found["chosen"]]["setting"] + found[found["chosen"]]["baseline"]) == {
        "two",
        "onemodel=mlp",
    }
    assert set(found[found["best"]]["method"]) == {"boosted trees"}
    private = runs({("dpsgd", "", "epsilon=1"): [0.6, 0.6]})
    kept = keep_chosen(pd.concat([found, private]), found)
    assert list(dict.fromkeys(zip(kept["method"], kept["setting"], strict=True))) == [
        ("sgd", ""),
        ("sgd", "model=mlp"),
        ("dpsgd", "epsilon=1"),
    ]
    lower = choose_baselines(
        runs({("sgd", "", "one"): [0.8], ("sgd", "", "two"): [0.7]}).rename(columns={"accuracy": "brier"}),
        METRICS["brier"],
    )
    assert set(lower[lower["chosen"]]["setting"]) == {"two"}


def finished(loss: float) -> cells.CellResult:
    """Return results of a run with this loss, of whose outputs nothing is read."""
    rows, nothing = pd.DataFrame([{"group": "all", "loss": loss}]), pd.DataFrame()
    return cells.CellResult(rows, nothing, nothing, {}, np.zeros((0, 2)), 0.0)


@pytest.mark.soak
def test_divergence_on_further_seeds_is_found_without_splitting_data_again(monkeypatch, tmp_path):
    asked, read = ComparisonPlan(["dpsgd"], 3, PLAN, epsilons=[3.0]), []
    search = prepare(Squares(), asked, directory=tmp_path).baselines
    split = baselines.split
    monkeypatch.setattr(baselines, "split", lambda source, seed: read.append(seed) or split(source, seed))
    monkeypatch.setattr(baselines, "measure_metric", lambda metric, found: (0.5, ""))
    monkeypatch.setattr(cells.CellResult, "predictions", lambda result, test, decision: None)
    search.run(lambda sent: [finished(0.5) for _ in sent])
    assert set(read) == {0}


def searched(monkeypatch, tmp_path, accuracies: dict[float, list[float]], *, seeds: int = 3):
    """Return (rate, seed) of the runs of each stage; accuracies are by rate and seed, NaN: it diverged."""
    asked = ComparisonPlan(["dpsgd"], seeds, PLAN, epsilons=[3.0])
    search = prepare(Squares(), asked, directory=tmp_path).baselines

    def place(_, cell, result):
        reached = accuracies[round(cell.plan.learning_rate, 6)][cell.seed]
        return baselines.Place(bool(reached < 1), np.nan_to_num(reached, nan=-np.inf))

    monkeypatch.setattr(BaselineSearch, "_place", place)
    stages: list[list[tuple[float, int]]] = []

    def train(sent):
        stages.append([(round(cell.plan.learning_rate, 6), cell.seed) for cell in sent])
        return [finished(accuracies[rate][seed]) for rate, seed in stages[-1]]

    found = search.run(train)
    assert len(found) == sum(map(len, stages))
    return stages


OTHERS = {0.05: [0.1] * 3, 0.15: [0.1] * 3}


@pytest.mark.soak
def test_all_candidates_are_trained_on_the_first_seed_and_the_best_alone_on_the_others(monkeypatch, tmp_path):
    stages = searched(monkeypatch, tmp_path, OTHERS | {0.5: [0.8] * 3, 1.5: [0.9, 0.1, 0.1], 5.0: [0.7] * 3})
    assert stages == [[(factor * 0.5, 0) for factor in RATES], [(1.5, 1), (1.5, 2)]]


@pytest.mark.soak
def test_a_candidate_that_diverges_on_another_seed_is_followed_by_the_next_best(monkeypatch, tmp_path):
    lost = [0.9, 0.9, np.nan]
    stages = searched(monkeypatch, tmp_path, OTHERS | {0.5: [0.6] * 3, 1.5: lost, 5.0: [0.8, 0.8, 0.8]})
    assert stages[1:] == [[(1.5, 1), (1.5, 2)], [(5.0, 1), (5.0, 2)]]
    on_first = [np.nan, 0.9, 0.9]
    stages = searched(monkeypatch, tmp_path, dict.fromkeys((0.05, 0.15, 0.5, 1.5, 5.0), on_first))
    assert stages[1:] == [[(0.5, 1), (0.5, 2)]]  # of none that is finite, the plan's own


@pytest.mark.soak
def test_a_candidate_whose_loss_is_above_a_constant_answers_comes_after_all_others(monkeypatch, tmp_path):
    accuracies = OTHERS | {0.5: [0.6] * 3, 1.5: [0.8] * 3, 5.0: [1.0] * 3}
    assert searched(monkeypatch, tmp_path, accuracies)[1] == [(1.5, 1), (1.5, 2)]
    monkeypatch.undo()
    asked = ComparisonPlan(["dpsgd"], 1, PLAN, epsilons=[3.0])
    search = prepare(Squares(), asked, directory=tmp_path).baselines
    targets = Squares().split(0).test.targets
    placed = []
    for length in (0.5, 50.0):  # of logits: two of three answers are right
        right = torch.arange(100) % 3 > 0
        outputs = length * torch.nn.functional.one_hot(torch.where(right, targets, 1 - targets)).float()
        loss = torch.nn.functional.cross_entropy(outputs, targets).item()
        rows = pd.DataFrame([{"group": "all", "loss": loss}])
        result = cells.CellResult(rows, pd.DataFrame(), pd.DataFrame(), {}, outputs.numpy(), 0.0)
        placed.append(search._place(search.first[0], result))
    assert placed == [(True, 0.66), (False, 0.66)]
    rows["loss"] = np.nan
    assert search._place(search.first[0], result) == (False, -np.inf) < placed[1] < placed[0]


@pytest.mark.soak
def test_on_one_seed_a_candidate_that_a_constant_answer_beats_is_no_baseline_where_another_is_not(tmp_path):
    search = prepare(
        Squares(), ComparisonPlan(["dpsgd"], 1, PLAN, epsilons=[3.0]), directory=tmp_path
    ).baselines
    test, trained = Squares().split(0).test, []
    right = torch.arange(100) % 4 > 0
    for number, cell in enumerate(search.first):  # the better of the first is so sure that its loss is large
        answers = torch.where(
            right if number else right | (torch.arange(100) % 8 == 0), test.targets, 1 - test.targets
        )
        outputs = (50.0 if number == 0 else 1.0) * torch.nn.functional.one_hot(answers).float()
        rows = cells.CellResult.of_shares(
            outputs.softmax(1).double().numpy(), np.arange(2), test, spent={}, seconds=0
        )
        trained.append((cell, replace(rows, outputs=outputs.numpy())))
    beaten = search.find_uninformed(trained)
    assert beaten == {(search.first[0].baseline, search.first[0].setting)}
    runs = pd.DataFrame(
        [{**cell.names, **row} for cell, result in trained for row in result.results.to_dict("records")]
    )
    for given, chosen in (((), 0), (beaten, 1)):
        found = choose_baselines(runs, search.metric, given)
        assert set(found.loc[found["chosen"], "setting"]) == {search.first[chosen].setting}


@pytest.mark.soak
def test_with_weights_of_classes_a_constant_answer_is_weighed_too(tmp_path):
    weights = {"class_weight": {"no": 1.0, "yes": 9.0}}
    asked = ComparisonPlan(["dpsgd"], 1, replace(PLAN, **weights), epsilons=[3.0])
    search = prepare(Squares(), asked, directory=tmp_path).baselines
    cell, test = search.first[0], Squares().split(0).test
    assert cell.class_weights(Squares().split(0).train) == weights["class_weight"]
    # Weighted, a constant predictions "yes" by .9. This model is better by these weights, and worse without
    # them.
    yes = np.where(test.targets.numpy() == 1, 0.92, 0.85)
    shares = np.stack([1 - yes, yes], axis=1)
    result = cells.CellResult.of_shares(shares, np.arange(2), test, spent={}, seconds=0.0)
    plain = prepare(Squares(), replace(asked, plan=PLAN), directory=tmp_path).baselines
    assert search._place(cell, result).informed
    assert not plain._place(plain.first[0], result).informed


@pytest.mark.soak
def test_a_dry_run_counts_candidates_once_baselines_and_boosted_trees(tmp_path):
    asked = ComparisonPlan(["dpsgd"], 3, PLAN, epsilons=[3.0])
    prepared = prepare(Squares(), asked, directory=tmp_path)
    found = prepared.count_runs()
    assert (found.runs, found.missing) == (3 + len(RATES) + 2 + 3,) * 2
    assert [kind.label for kind in prepared.kinds] == ["sgd (learning_rate=0.5)", "dpsgd"]
    compared(tmp_path, seeds=3)
    again = prepare(Squares(), asked, directory=tmp_path).count_runs()
    assert (again.runs, again.missing) == (found.runs, 0)
    fresh = prepare(Squares(), asked, directory=tmp_path).count_runs(fresh=True)
    assert (fresh.runs, fresh.missing) == (found.runs, found.runs)


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
    trees = found.baselines[found.baselines["method"] == "boosted trees"].set_index(["seed", "group"])
    for row in costs[costs["method"] == "dpsgd"].itertuples():
        assert row.total_cost == pytest.approx(trees.at[(row.seed, row.group), "accuracy"] - row.accuracy)
    assert trees["best"].all()
    overall = costs[(costs["group"] == "all") & (costs["method"] == "sgd")]
    assert overall["model_cost"].mean() > 0.2
    chosen = found.baselines[found.baselines["chosen"]]
    own = found.results[found.results["method"] == "sgd"]
    assert own["accuracy"].tolist() == chosen["accuracy"].tolist()
    tried = found.baselines.query("method == 'sgd' and group == 'all'")
    first, later = (part.set_index("setting")["accuracy"] for _, part in tried.groupby("seed"))
    assert len(first) == len(RATES)
    assert list(later.index) == [first.idxmax()]
    assert own[own["group"] == "all"]["accuracy"].tolist() == [first.max(), later.iloc[0]]
    assert set(found.epochs["method"]) == {"sgd", "dpsgd"}
    assert not found.epochs.duplicated(["method", "seed", "epoch", "group"]).any()
    found.to_json(tmp_path / "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    assert {"model_cost", "privacy_cost", "total_cost"} <= content["results"][0].keys()
    assert len(content["baselines"]) == len(found.baselines)
    assert content["judgements"][0]["fault"] in ("", "constant", "beaten")
    assert content["settings"]["search"] == "best"


@pytest.mark.soak
def test_by_the_plan_alone_there_is_one_baseline_and_no_model_cost(tmp_path):
    found = compared(tmp_path, baseline="plan")
    assert found.baselines.empty
    assert "model_cost" not in found.costs()
    assert "overall_costs" not in found.table_names
    wide = compared(tmp_path, seeds=1)
    found = compared(tmp_path, seeds=1, baseline="plan")
    plans = wide.baselines[wide.baselines["setting"] == "learning_rate=0.5"]
    own = found.results[found.results["method"] == "sgd"]
    assert own["accuracy"].tolist() == plans["accuracy"].tolist()
    with pytest.raises(equidp.errors.SettingError):
        found.table("overall_costs")


@pytest.mark.soak
def test_balanced_weights_are_by_exact_counts_without_privacy_and_by_released_ones_with_it(tmp_path):
    asked = ComparisonPlan(["dpsgd"], 1, PLAN, epsilons=[3.0], balanced=True, counts_share=0.2)
    prepared = prepare(Squares(), asked, directory=tmp_path)
    data = Squares().split(0)
    counts = np.bincount(data.train.targets.numpy())
    weights = {
        cell.method: cell.class_weights(data.train) for cell in (prepared.first[0], prepared.first[-1])
    }
    exact = dict(zip(("no", "yes"), 300 / (2 * counts), strict=True))
    assert weights["sgd"] == pytest.approx(exact)
    assert weights["dpsgd"] != weights["sgd"]
    assert weights["dpsgd"] == pytest.approx(exact, rel=0.3)
    by_plan = prepare(Squares(), replace(asked, balanced=False, counts_share=None), directory=tmp_path)
    noise = [each.first[-1].plan.noise_multiplier for each in (prepared, by_plan)]
    assert noise[0] > noise[1]
    spent = [kind.entries for kind in prepared.kinds]
    assert [len(entries) for entries in spent] == [1, 2]
    by_class = BoostedTrees(Squares(), 0, exact).train(data).outputs
    assert prepared.trees[0].train(data).outputs == pytest.approx(by_class, abs=1e-9)
    assert prepared.trees[0].key != by_plan.trees[0].key
    assert len({cell.key for cell in (prepared.first[-1], by_plan.first[-1])}) == 2


@pytest.mark.soak
def test_a_plan_whose_rate_is_too_large_without_clipping_does_not_make_the_baseline_weak(tmp_path):
    wild = replace(PLAN, model="mlp", learning_rate=10.0, batch_size=30, epochs=6)
    found = compared(tmp_path, plan=wild, methods=["automatic"])
    tried = found.baselines.query("group == 'all' and method == 'sgd' and seed == 0").set_index("setting")
    assert tried.at["learning_rate=10", "accuracy"] < tried["accuracy"].max() - 0.1
    reached = found.results.query("group == 'all' and method == 'sgd' and seed == 0")["accuracy"]
    assert reached.tolist() == [tried["accuracy"].max()]
