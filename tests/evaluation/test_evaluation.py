"""One evaluation holds all that is shown of a model, and can withhold figures of few people."""

from __future__ import annotations

import pytest
import torch
from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference
from torch import nn

from equidp.data.dataset import GroupedDataset
from equidp.errors import SettingError
from equidp.evaluation.evaluation import evaluate
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
