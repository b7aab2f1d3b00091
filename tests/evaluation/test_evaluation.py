"""One evaluation holds all that is shown of a model, and can withhold figures of few people."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference
from torch import nn

from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError, SettingError
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.evaluation.groups import group_intervals, paired_costs, recalls


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


def test_gaps_leave_out_groups_of_few_people():
    test = examples((120, 4, 90))
    large = test.subset(torch.nonzero(test.groups != 1).flatten())
    assert evaluate(identity(), test).withholding(5).gaps == fairlearns_gaps(large)
    assert shown((2, 3)).gaps == {}


def test_plain_values_are_json_with_costs_where_there_is_a_reference():
    found = evaluate(identity(), examples(), reference=nn.Linear(2, 2))
    content = json.loads(json.dumps(found.plain()))
    assert set(content) == {"metrics", "recalls", "gaps", "costs"}
    assert content["metrics"][0]["accuracy"] == pytest.approx(found.groups["accuracy"][0])
    assert "costs" not in evaluate(identity(), examples()).plain()


def test_a_model_or_level_that_does_not_fit_is_refused():
    with pytest.raises(DataError, match="one logit per class"):
        evaluate(nn.Linear(2, 1), examples())
    with pytest.raises(SettingError, match=r"level=1\.0"):
        evaluate(identity(), examples(), level=1.0)
