"""Boosted trees on a table: they read the rows and columns that networks read, and their results are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score, log_loss

from equidp.comparison import cells, references
from equidp.comparison.references import BoostedTrees, takes_boosted_trees
from equidp.comparison.workers import Workers, spread
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.evaluation.predictions import Cut


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
    predicted = found.predictions(data.test, Cut()).probabilities
    assert predicted == pytest.approx(shares, abs=1e-6)


def test_results_are_kept_and_taken_for_equal_data_and_seed_only(tmp_path, monkeypatch):
    trees = [BoostedTrees(Squares(), seed) for seed in (0, 1)]

    def trained():
        return cells.train_all(
            trees, tmp_path, lambda function, calls: spread(function, calls, Workers(1, None)), None
        )

    first = trained()
    monkeypatch.setattr(references.BoostedTrees, "train", lambda *_: pytest.fail("it trained"))
    again = trained()
    for one, other in zip(first, again, strict=True):
        assert one.results.equals(other.results)
    assert len({trees[0].key, trees[1].key, BoostedTrees(Squares(n=420), 0).key}) == 3
    assert BoostedTrees(Squares(), 0, {"yes": 2.0}).key != trees[0].key


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
    found = BoostedTrees(Squares(), 0).train(DataSplit(train, test)).predictions(test, Cut())
    assert np.isfinite(found.probabilities).all()
    assert found.probabilities[:, 2].max() < 1e-9


def test_trees_are_for_rows_of_numbers_and_classes_alone():
    table = Squares().split(0).train
    assert takes_boosted_trees(table)
    for inputs in (torch.zeros(300, 1, 4, 4), torch.zeros(300, 2, dtype=torch.int64), (table.inputs,)):
        assert not takes_boosted_trees(replace(table, inputs=inputs))
