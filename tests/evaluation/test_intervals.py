"""Metrics and costs by group over test examples, with intervals that hold what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import recall_score

from equidp.errors import SettingError
from equidp.evaluation.groups import group_metrics
from equidp.evaluation.intervals import (
    blind_spots,
    group_intervals,
    paired_costs,
    paired_interval,
    recalls,
    wilson,
)

NAMES = ("a", "b", "nobody")


def outputs(n: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets, groups = torch.randint(3, (n,), generator=generator), torch.arange(n) % 2
    logits = torch.randn(n, 3, generator=generator) + 1.5 * torch.nn.functional.one_hot(targets, 3)
    return logits, targets, groups


def test_figures_are_those_of_group_metrics_inside_their_intervals():
    logits, targets, groups = outputs()
    table = group_intervals(logits, targets, groups, NAMES).set_index("group")
    plain = group_metrics(logits, targets, groups, NAMES).set_index("group")
    for metric in ("accuracy", "loss"):
        np.testing.assert_allclose(table[metric], plain[metric])
        there = table.drop(index="nobody")
        assert (there[f"{metric}_low"] < there[metric]).all()
        assert (there[metric] < there[f"{metric}_high"]).all()
    assert math.isnan(table.loc["nobody", "accuracy_low"])


def test_recalls_are_those_of_scikit_learn_in_each_group():
    logits, targets, groups = outputs()
    classes = ("x", "y", "z")
    table = recalls(logits, targets, groups, NAMES, classes)
    assert list(table["group"].unique()) == ["a", "b", "all"]
    answers = logits.argmax(1)
    for name, members in [("a", groups == 0), ("b", groups == 1), ("all", groups >= 0)]:
        part = table[table["group"] == name]
        assert list(part["class"]) == list(classes)
        np.testing.assert_allclose(
            part["recall"], recall_score(targets[members], answers[members], average=None)
        )
        assert list(part["count"]) == torch.bincount(targets[members], minlength=3).tolist()
    first = table.iloc[0]
    found = round(first["recall"] * first["count"])
    assert tuple(first[["recall", "recall_low", "recall_high"]]) == wilson(found, first["count"], 0.95)


def test_recall_lost_is_what_the_reference_found_and_the_model_did_not():
    logits, targets, groups = outputs()
    better = logits + 3 * torch.nn.functional.one_hot(targets, 3)
    table = recalls(logits, targets, groups, NAMES, ("x", "y", "z"), reference=better)
    other = recalls(better, targets, groups, NAMES, ("x", "y", "z"))
    np.testing.assert_allclose(table["recall_cost"], other["recall"] - table["recall"])
    assert (table["recall_cost_low"] > 0).all()


def test_recalls_leave_out_classes_without_examples_and_what_accuracy_says_already():
    logits, targets, groups = outputs()
    targets[groups == 0] = 2
    table = recalls(logits, targets, groups, NAMES, ("x", "y", "z"))
    assert list(table[table["group"] == "a"]["class"]) == ["z"]
    assert recalls(logits, targets, targets, ("0", "1", "2"), ("x", "y", "z")).empty
    assert recalls(logits[:0], targets[:0], groups[:0], NAMES, ("x", "y", "z")).empty


@pytest.mark.parametrize(("successes", "count"), [(0, 5), (5, 5), (3, 17), (960, 1000)])
def test_wilsons_interval_is_the_closed_form(successes, count):
    """Wilson 1927: centre (p + z^2 / 2n) / (1 + z^2 / n)."""
    z, share = 1.959963984540054, successes / count
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    expected = (share, max(0.0, centre - half), min(1.0, centre + half))
    assert wilson(successes, count, 0.95) == pytest.approx(expected, abs=1e-12)


def test_costs_are_paired_differences():
    private, targets, groups = outputs(seed=1)
    reference, _, _ = outputs(seed=1)
    assert (paired_costs(private, reference, targets, groups, NAMES)["privacy_cost"].dropna() == 0).all()
    better = reference + 3 * torch.nn.functional.one_hot(targets, 3)
    costs = paired_costs(private, better, targets, groups, NAMES).set_index("group")
    for name, index in (("a", 0), ("b", 1)):
        members = groups == index
        hits = [(logits.argmax(1) == targets)[members].double().mean() for logits in (better, private)]
        assert costs.loc[name, "privacy_cost"] == pytest.approx(float(hits[0] - hits[1]))
        assert costs.loc[name, "privacy_cost_low"] > 0
        assert 0 < costs.loc[name, "excessive_risk_low"] < costs.loc[name, "excessive_risk"]


def test_intervals_cover_the_truth_as_often_as_they_say():
    """500 samples of 50 at 90%: fewer than 85% would occur once in 10,000 if they did; Wilson's coverage at
    0.8 is 0.89."""
    generator = np.random.default_rng(0)
    covered = [
        low <= 0.8 <= high
        for _, low, high in (wilson(int(k), 50, 0.9) for k in generator.binomial(50, 0.8, 500))
    ]
    assert np.mean(covered) > 0.85


def test_a_level_that_is_none_is_refused():
    with pytest.raises(SettingError, match=r"level=1\.0"):
        group_intervals(*outputs(), NAMES, level=1.0)


def test_few_examples_on_which_two_models_agree_are_not_certain():
    mean, low, high = paired_interval(np.zeros(3), 0.95)
    assert mean == 0.0
    assert low < -0.3
    assert high > 0.3
    assert paired_interval(np.ones(3), 0.95)[2] <= 1.0
    many = paired_interval(np.zeros(3000), 0.95)
    assert -0.001 < many[1] < 0 < many[2] < 0.001


def test_paired_intervals_cover_the_truth_about_as_often_as_they_say():
    generator = np.random.default_rng(0)
    shares = [0.05, 0.85, 0.10]  # worse, alike, better
    hits = 0
    for _ in range(1000):
        differences = generator.choice([-1.0, 0.0, 1.0], size=25, p=shares)
        _, low, high = paired_interval(differences, 0.95)
        hits += low <= 0.05 <= high
    assert 930 <= hits <= 990


def test_what_accuracy_hides_is_said():
    outputs = torch.tensor([[2.0, 1.0, 0.0]] * 4)
    targets = torch.tensor([0, 0, 0, 2])
    share, never = blind_spots(outputs, targets, ["well", "ill", "dead"])
    assert share == "Always answering 'well' would be right for 75.0% of the test examples."
    assert never == "The model answers 'ill', 'dead' for none of them."
    assert blind_spots(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), ["a", "b", "c"]) == []
    assert len(blind_spots(torch.eye(3), torch.tensor([0, 1, 2]), ["a", "b", "c"])) == 1
