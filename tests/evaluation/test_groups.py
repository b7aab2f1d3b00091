"""Metrics and costs of a model by group, against scikit-learn and values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import recall_score
from torch import nn

from equidp.data.dataset import GroupedDataset
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.evaluation.groups import group_metrics
from equidp.evaluation.intervals import wilson

NAMES = ("a", "b", "nobody")
CLASSES = ("x", "y", "z")


def test_group_metrics_by_hand():
    outputs = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    test = GroupedDataset(
        outputs, torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1]), ("x", "y", "z"), ("no", "yes")
    )
    table = group_metrics(outputs, test)
    table = table.set_index("group")
    assert table["count"].to_dict() == {"x": 2, "y": 1, "z": 0, "all": 3}
    assert table.loc["x", "accuracy"] == 0.5
    assert table.loc["x", "loss"] == pytest.approx((math.log(1 + math.exp(-2)) + math.log(1 + math.e)) / 2)
    assert table.loc["all", "accuracy"] == pytest.approx(2 / 3)
    assert math.isnan(table.loc["z", "accuracy"])


def dataset(logits, targets, groups) -> GroupedDataset:
    return GroupedDataset(logits, targets, groups, NAMES, CLASSES)


def examples(n: int = 400, seed: int = 0) -> tuple[torch.Tensor, GroupedDataset]:
    generator = torch.Generator().manual_seed(seed)
    targets, groups = torch.randint(3, (n,), generator=generator), torch.arange(n) % 2
    logits = torch.randn(n, 3, generator=generator) + 1.5 * nn.functional.one_hot(targets, 3)
    return logits, dataset(logits, targets, groups)


class Fixed(nn.Module):
    """A model that gives the same logits whatever it is given."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("logits", logits)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.logits[: len(inputs)]


def evaluated(logits: torch.Tensor, test: GroupedDataset, base: torch.Tensor | None = None) -> Evaluation:
    return evaluate(Fixed(logits), test, baseline=None if base is None else Fixed(base))


def test_recalls_are_those_of_scikit_learn_in_each_group():
    logits, test = examples()
    table = evaluated(logits, test).recalls
    assert list(table["group"].unique()) == ["a", "b", "all"]
    for name, members in [("a", test.groups == 0), ("b", test.groups == 1), ("all", test.groups >= 0)]:
        part = table[table["group"] == name]
        assert list(part["class"]) == list(CLASSES)
        targets, answers = test.targets[members], logits.argmax(1)[members]
        np.testing.assert_allclose(part["recall"], recall_score(targets, answers, average=None))
        assert list(part["count"]) == torch.bincount(targets, minlength=3).tolist()
    first = table.iloc[0]
    found = round(first["recall"] * first["count"])
    assert tuple(first[["recall", "recall_low", "recall_high"]]) == wilson(found, first["count"], 0.95)


def test_costs_are_paired_differences():
    logits, test = examples(seed=1)
    assert (evaluated(logits, test, logits).costs["privacy_cost"].dropna() == 0).all()
    better = logits + 3 * nn.functional.one_hot(test.targets, 3)
    costs = evaluated(logits, test, better).costs.set_index("group")
    for name, index in (("a", 0), ("b", 1)):
        members = test.groups == index
        hits = [(each.argmax(1) == test.targets)[members].double().mean() for each in (better, logits)]
        assert costs.loc[name, "privacy_cost"] == pytest.approx(float(hits[0] - hits[1]))
        assert costs.loc[name, "privacy_cost_low"] > 0
        assert 0 < costs.loc[name, "excessive_risk_low"] < costs.loc[name, "excessive_risk"]
