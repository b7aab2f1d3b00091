"""One evaluation holds all that is shown of a model, and can withhold figures of few people."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference
from torch import nn

from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError, SettingError
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.evaluation.groups import group_intervals, paired_costs, recalls
from equidp.evaluation.metric import figure
from equidp.evaluation.metrics import METRICS
from equidp.evaluation.predictions import Cut, Predictions


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


def test_its_tables_are_those_of_the_models_outputs():
    test, reference = examples(), nn.Linear(2, 2)
    found = evaluate(identity(), test, level=0.9, reference=reference)
    with torch.no_grad():
        other = reference(test.inputs)
    pd.testing.assert_frame_equal(found.groups, group_intervals(test.inputs, test, 0.9))
    pd.testing.assert_frame_equal(found.recalls, recalls(test.inputs, test, 0.9, other))
    pd.testing.assert_frame_equal(found.costs, paired_costs(test.inputs, other, test, 0.9))
    assert evaluate(identity(), test).costs is None


def test_gaps_are_fairlearns_for_two_classes():
    test = examples((120, 90, 3))
    assert evaluate(identity(), test).gaps == fairlearns_gaps(test)
    assert evaluate(identity(3), examples(classes=3)).gaps == {}


def test_there_are_no_gaps_where_groups_are_classes():
    test = examples()
    alike = GroupedDataset(test.inputs, test.groups, test.groups, ("a", "b"), ("x", "y"))
    assert evaluate(identity(), alike).gaps == {}


def shown(sizes: tuple[int, ...]) -> Evaluation:
    test = examples(sizes)
    return evaluate(identity(), test, reference=nn.Linear(2, 2)).withholding(5)


def test_figures_of_few_people_are_withheld_and_their_number_is_not():
    found = shown((120, 4, 90))
    for table in (found.groups, found.costs):
        few = table.set_index("group").loc["b"]
        assert few["count"] == 4
        assert few.drop("count").isna().all()
        assert table.set_index("group").drop(index="b").notna().all(axis=None)
    assert (found.recalls["count"] >= 5).all()
    assert set(found.recalls["group"]) == {"a", "c", "all"}


def test_many_rows_of_a_few_people_are_withheld():
    """Group b has 90 rows of 4 people; in c, as many people as rows, 4 of them have all the rows of y."""
    test = examples((120, 90, 90))
    people = torch.arange(300)
    people[120:210] = torch.arange(90) % 4
    test.targets[210:] = (torch.arange(90) < 30).long()
    people[210:240] = 210 + torch.arange(30) % 4
    found = evaluate(identity(), replace(test, people=people), reference=nn.Linear(2, 2))
    plain, shown = evaluate(identity(), test).withholding(5), found.withholding(5)
    assert (found.people["b",], found.people["c",], found.people["c", "y"]) == (4, 64, 4)
    for table in (shown.groups, shown.costs):
        rows = table.set_index("group")
        assert rows.loc["b"].drop("count").isna().all()
        assert rows.drop(index="b").notna().all(axis=None)
    assert set(shown.recalls["group"] + shown.recalls["class"]) == {"ax", "ay", "cx", "allx", "ally"}
    assert set(shown.rates["group"]) == {"a", "c"}
    assert set(shown.calibration["group"]) == {"a", "all"}
    assert set(shown.figures.query("group == 'c'")["metric"]) == {"accuracy", "log_loss", "brier"}
    assert "b" not in set(shown.figures["group"])
    assert {"a", "b", "c", "all"} == set(plain.calibration["group"]) == set(found.calibration["group"])


def test_no_sentence_is_about_the_risks_of_a_few_people():
    test = examples((60, 60))
    shifted = replace(test, inputs=test.inputs + torch.tensor([0.0, 3.0]))
    people = torch.arange(120)
    people[60:] = 60 + torch.arange(60) % 3
    assert "group b" in evaluate(identity(), shifted).blind_spots[-1]
    said = evaluate(identity(), replace(shifted, people=people)).blind_spots[-1]
    assert "group a" in said
    assert "group b" not in said


def test_gaps_leave_out_groups_of_few_people():
    test = examples((120, 4, 90))
    large = test.subset(torch.nonzero(test.groups != 1).flatten())
    assert evaluate(identity(), test).withholding(5).gaps == fairlearns_gaps(large)
    assert shown((2, 3)).gaps == {}


def test_plain_values_are_json_with_costs_where_there_is_a_reference():
    found = evaluate(identity(), examples(), reference=nn.Linear(2, 2))
    content = json.loads(json.dumps(found.plain()))
    tables = {"metrics", "figures", "recalls", "calibration", "reliability", "costs"}
    measured = {"metric", "better_than_a_constant_answer", "positive", "threshold", "notes"}
    assert set(content) == tables | measured | {"gaps"}
    assert content["metrics"][0]["accuracy"] == pytest.approx(found.groups["accuracy"][0])
    assert "costs" not in evaluate(identity(), examples()).plain()


def test_a_model_or_level_that_does_not_fit_is_refused():
    with pytest.raises(DataError, match="one logit per class"):
        evaluate(nn.Linear(2, 1), examples())
    with pytest.raises(SettingError, match=r"level=1\.0"):
        evaluate(identity(), examples(), level=1.0)


def test_each_metric_of_the_task_is_there_by_group_as_the_table_has_it():
    test = examples((120, 90))
    found = evaluate(identity(), test, level=0.9, cut=Cut("x", 0.3))
    assert (found.positive, found.threshold) == ("x", 0.3)
    of_two = {name: metric for name, metric in METRICS.items() if "binary" in metric.tasks}
    assert set(found.figures["metric"]) == set(of_two)
    rows = found.figures.set_index(["group", "metric"])
    predictions = Predictions.of(test.inputs, test.targets, ("x", "y"), Cut("x", 0.3))
    for group, members in (("a", test.groups == 0), ("b", test.groups == 1), ("all", test.groups >= 0)):
        for name, metric in of_two.items():
            expected = figure(metric, predictions.take(members.numpy()), 0.9)
            assert tuple(rows.loc[(group, name), ["value", "low", "high", "reason"]]) == expected
    accuracies = found.groups.set_index("group")["accuracy"]
    assert rows.loc[("b", "accuracy"), "value"] == accuracies["b"]
    assert set(evaluate(identity(3), examples(classes=3)).figures["metric"]) == {
        *("accuracy", "balanced_accuracy", "log_loss", "brier"),
    }


@pytest.mark.soak
def test_costs_are_of_the_metric_and_positive_where_the_reference_is_better():
    test, worse = examples((400, 300)), nn.Linear(2, 2, bias=False)
    worse.load_state_dict({"weight": torch.tensor([[0.3, 0.2], [0.2, 0.3]])})
    theirs = Predictions.of(test.inputs, test.targets, ("x", "y"))
    with torch.no_grad():
        ours = Predictions.of(worse(test.inputs), test.targets, ("x", "y"))
    for name in ("brier", "log_loss"):
        row = evaluate(worse, test, reference=identity(), metric=name).costs.iloc[-1]
        assert row["privacy_cost"] == pytest.approx(
            METRICS[name].function(ours) - METRICS[name].function(theirs), abs=1e-12
        )
        assert row["privacy_cost_low"] > 0
    row = evaluate(worse, test, reference=identity(), metric="auc").costs.iloc[-1]
    assert row["privacy_cost"] == pytest.approx(0.0, abs=1e-12)  # the same ranking
    assert row["privacy_cost_low"] <= 0 <= row["privacy_cost_high"]


def test_a_model_that_never_says_yes_is_useless_by_accuracy_and_not_by_its_ranking():
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(2000, generator=generator) < 0.08).long()
    logits = torch.stack([torch.full((2000,), 4.0), targets + torch.randn(2000, generator=generator)], dim=1)
    test = GroupedDataset(logits, targets, torch.arange(2000) % 2, ("a", "b"), ("no", "yes"))
    by_accuracy, by_auc = (evaluate(identity(), test, metric=name) for name in ("accuracy", "auc"))
    assert not by_accuracy.useful
    assert by_auc.useful
    never, nothing, off = by_accuracy.blind_spots[1:]
    assert never == "The model answers 'yes' for none of them."
    assert nothing.startswith("By accuracy the model is no better than one constant answer")
    assert "Its ranking does tell something (AUC 0.7" in nothing
    assert off.startswith("Predicted risks of 'yes' are off: ")
    assert "larger clipping bound" in off
    assert not any("no better" in sentence for sentence in by_auc.blind_spots)


def test_the_card_hides_what_would_tell_the_class_of_a_few_people():
    test = examples((300, 40))
    test.targets[300:] = torch.tensor([1] * 38 + [0] * 2)
    found = evaluate(identity(), test).withholding(5)
    assert "b" not in set(found.calibration["group"])
    shown = set(found.figures[found.figures["group"] == "b"]["metric"])
    assert shown == {"accuracy", "log_loss", "brier"}
    assert found.reliability.empty


def test_reliability_has_all_examples_in_bins_that_groups_share():
    test = examples((300, 200))
    table = evaluate(identity(), test).reliability
    for name, size in (("a", 300), ("b", 200), ("all", 500)):
        part = table[table["group"] == name]
        assert part["count"].sum() == size
        assert (part["risk_from"] <= part["mean_predicted"]).all()
        assert (part["mean_predicted"] <= part["risk_to"]).all()
        assert part["observed"].between(part["observed_low"], part["observed_high"]).all()
    assert set(table.loc[table["group"] == "all", "count"]) == {50}


def test_a_metric_or_positive_class_that_the_task_has_not_is_refused():
    for given, message in (
        ({"metric": "auc"}, "auc"),
        ({"cut": Cut("x")}, "is for two classes"),
        ({"metric": "nowhere_at_all:Metric"}, "there is no module"),
        ({"metric": "math:sqrt"}, "expected an equidp.Metric"),
    ):
        with pytest.raises(SettingError, match=message):
            evaluate(identity(3), examples(classes=3), **given)
    with pytest.raises(SettingError, match="unknown positive class 'z'"):
        evaluate(identity(), examples(), cut=Cut("z"))
