"""One evaluation holds all that is shown of a model, and can withhold figures of few people."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference
from torch import nn

from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError, SettingError
from equidp.evaluation.evaluation import BlindSpots, evaluate
from equidp.evaluation.metrics import METRICS, measure_with_interval
from equidp.evaluation.predictions import Decision, Predictions
from support.errors import raises_field


def identity(classes: int = 2) -> nn.Module:
    """A model whose outputs are its inputs."""
    model = nn.Linear(classes, classes, bias=False)
    model.load_state_dict({"weight": torch.eye(classes)})
    return model


def examples(sizes: tuple[int, ...] = (120, 90), classes: int = 2, seed: int = 0) -> GroupedDataset:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    targets = torch.randint(classes, (len(groups),), generator=generator)
    logits = torch.randn(len(groups), classes, generator=generator) + nn.functional.one_hot(targets, classes)
    return GroupedDataset(logits, targets, groups, tuple("abcd")[: len(sizes)], tuple("xyz")[:classes])


def fairlearns_gaps(test: GroupedDataset) -> dict[str, float]:
    given = {"y_true": test.targets, "y_pred": test.inputs.argmax(1), "sensitive_features": test.groups}
    return {
        "demographic_parity_difference": float(demographic_parity_difference(**given)),
        "equalized_odds_difference": float(equalized_odds_difference(**given)),
    }


@pytest.mark.soak
def test_gaps_are_fairlearns_for_two_classes():
    test = examples((120, 90, 40))
    assert evaluate(identity(), test).gaps == fairlearns_gaps(test)
    few = examples((120, 90, 3))
    large = few.subset(torch.nonzero(few.groups != 2).flatten())
    assert evaluate(identity(), few).gaps == fairlearns_gaps(large)
    assert evaluate(identity(3), examples(classes=3)).gaps == {}


def test_there_are_no_gaps_where_groups_are_classes():
    test = examples()
    alike = GroupedDataset(test.inputs, test.groups, test.groups, ("a", "b"), ("x", "y"))
    assert evaluate(identity(), alike).gaps == {}


@pytest.mark.soak
def test_no_sentence_is_about_the_risks_of_a_few_people():
    test = examples((60, 60, 60))
    shifted = replace(test, inputs=test.inputs + torch.tensor([0.0, 3.0]))
    people = torch.arange(180)
    people[60:120] = 60 + torch.arange(60) % 3
    whole = evaluate(identity(), shifted).calibration
    assert set(whole.loc[whole["off"], "group"]) == {"a", "b", "c", "all"}
    shown = evaluate(identity(), replace(shifted, people=people)).withholding().calibration
    assert set(shown.loc[shown["off"], "group"]) == {"a", "c", "all"}


@pytest.mark.parametrize(
    ("predicted", "observed", "off"),
    [
        (0.019, 0.072, True),
        (0.07, 0.072, False),
        (0.06, 0.072, False),
        (0.80, 0.95, True),
        (0.945, 0.95, False),
    ],
)
def test_risks_are_off_where_they_differ_by_a_fifth_and_by_more_than_chance(predicted, observed, off):
    targets = (torch.arange(1000) < round(1000 * observed)).long()
    logits = torch.tensor([1 - predicted, predicted]).log().expand(1000, -1)
    test = GroupedDataset(logits, targets, torch.arange(1000) % 2, ("a", "b"), ("x", "y"))
    row = evaluate(identity(), test).calibration.iloc[-1]
    assert (row["group"], bool(row["off"])) == ("all", off)
    assert (row["mean_predicted"], row["observed"]) == pytest.approx((predicted, observed))


def test_what_accuracy_hides_is_found():
    names, shares = ("well", "ill", "dead"), np.tile([0.7, 0.2, 0.1], (4, 1))
    few = Predictions(np.array([0, 0, 0, 2]), shares, names)
    assert BlindSpots.of(few, METRICS["accuracy"], 0.95) == BlindSpots("well", 0.75, ("ill", "dead"), True)
    perfect = Predictions(np.arange(60) % 3, np.tile(np.eye(3), (20, 1)), names)
    spots = BlindSpots.of(perfect, METRICS["accuracy"], 0.95)
    assert not spots.uninformative
    assert spots.never_predicted == ()


def test_plain_values_are_json_with_costs_where_there_is_a_baseline():
    found = evaluate(identity(), examples(), baseline=nn.Linear(2, 2))
    content = json.loads(json.dumps(found.plain()))
    tables = {"metrics", "values", "recalls", "calibration", "costs"}
    measured = {"metric", "better_than_a_constant_prediction", "positive", "threshold", "blind_spots"}
    measured |= {"not_shown", "combinations_not_shown", "classes_not_shown"}
    assert set(content) == tables | measured | {"gaps"}
    assert content["metrics"][0]["accuracy"] == pytest.approx(found.groups["accuracy"][0])
    assert evaluate(identity(), examples()).costs is None
    assert "costs" not in evaluate(identity(), examples()).plain()


def test_a_model_or_level_that_does_not_fit_is_refused():
    with raises_field(DataError, "model"):
        evaluate(nn.Linear(2, 1), examples())
    with raises_field(SettingError, "level", "1.0"):
        evaluate(identity(), examples(), level=1.0)


def test_each_metric_of_the_task_is_there_by_group_as_the_table_has_it():
    test = examples((120, 90))
    found = evaluate(identity(), test, level=0.9, decision=Decision("x", 0.3))
    assert (found.positive, found.threshold) == ("x", 0.3)
    of_two = {name: metric for name, metric in METRICS.items() if "binary" in metric.tasks}
    assert set(found.values["metric"]) == set(of_two)
    rows = found.values.set_index(["group", "metric"])
    predictions = Predictions.of(test.inputs, test.targets, ("x", "y"), Decision("x", 0.3))
    for group, members in (("a", test.groups == 0), ("b", test.groups == 1), ("all", test.groups >= 0)):
        for name, metric in of_two.items():
            expected = measure_with_interval(metric, predictions.take(members.numpy()), 0.9)
            assert tuple(rows.loc[(group, name), ["value", "low", "high", "reason"]]) == expected
    accuracies = found.groups.set_index("group")["accuracy"]
    assert rows.loc[("b", "accuracy"), "value"] == accuracies["b"]
    assert set(evaluate(identity(3), examples(classes=3)).values["metric"]) == {
        *("accuracy", "balanced_accuracy", "log_loss", "brier"),
    }


@pytest.mark.soak
def test_costs_are_of_the_metric_and_positive_where_the_baseline_is_better():
    test, worse = examples((400, 300)), nn.Linear(2, 2, bias=False)
    worse.load_state_dict({"weight": torch.tensor([[0.3, 0.2], [0.2, 0.3]])})
    theirs = Predictions.of(test.inputs, test.targets, ("x", "y"))
    with torch.no_grad():
        ours = Predictions.of(worse(test.inputs), test.targets, ("x", "y"))
    for name in ("brier", "log_loss"):
        row = evaluate(worse, test, baseline=identity(), metric=name).costs.iloc[-1]
        assert row["privacy_cost"] == pytest.approx(
            METRICS[name].function(ours) - METRICS[name].function(theirs), abs=1e-12
        )
        assert row["privacy_cost_low"] > 0
    row = evaluate(worse, test, baseline=identity(), metric="auc").costs.iloc[-1]
    assert row["privacy_cost"] == pytest.approx(0.0, abs=1e-12)  # the same ranking
    assert row["privacy_cost_low"] <= 0 <= row["privacy_cost_high"]


@pytest.mark.soak
def test_a_model_that_never_says_yes_is_useless_by_accuracy_and_not_by_its_ranking():
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(2000, generator=generator) < 0.08).long()
    logits = torch.stack([torch.full((2000,), 4.0), targets + torch.randn(2000, generator=generator)], dim=1)
    test = GroupedDataset(logits, targets, torch.arange(2000) % 2, ("a", "b"), ("no", "yes"))
    by_accuracy, by_auc = (evaluate(identity(), test, metric=name) for name in ("accuracy", "auc"))
    assert not by_accuracy.useful
    assert by_auc.useful
    assert by_accuracy.blind_spots.never_predicted == ("yes",)
    assert 0.7 < by_accuracy.blind_spots.ranking_auc < 0.8
    assert by_accuracy.calibration["off"].iloc[-1]
    assert by_auc.blind_spots.ranking_auc is None


def test_a_metric_or_positive_class_that_the_task_has_not_is_refused():
    for given, field in (
        ({"metric": "metric"}, "metric"),
        ({"decision": Decision("x")}, "positive"),
        ({"metric": "nowhere_at_all:Metric"}, "metric"),
        ({"metric": "math:sqrt"}, "metric"),
    ):
        with raises_field(SettingError, field):
            evaluate(identity(3), examples(classes=3), **given)
    with raises_field(SettingError, "positive class", "'z'"):
        evaluate(identity(), examples(), decision=Decision("z"))
