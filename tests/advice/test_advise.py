"""Advice by kind of data follows from shapes alone."""

import numpy as np
import pandas as pd
import pytest
import torch

import equidp
from equidp import SettingError
from equidp.advice.advise import RULES, advise
from equidp.comparison.compare import prepare
from equidp.comparison.plan import ComparisonPlan
from equidp.data import open_source
from equidp.policies.table import AUTO
from equidp.tables.recipe import Recipe
from equidp.training.plan import Plan
from support.errors import raises_field


def made_up(num_examples, *shape):
    targets = torch.arange(num_examples) % 2
    return equidp.GroupedDataset(torch.rand(num_examples, *shape), targets, targets, ("a", "b"), ("n", "y"))


def test_a_choice_follows_from_shapes_alone():
    one, other = made_up(100, 1, 8, 8), made_up(100, 1, 8, 8)
    assert advise(one) == advise(other)
    assert advise(one).features == "scattering"
    assert advise(made_up(100, 5)).features is None


def test_where_no_runs_stand_behind_a_choice_the_plan_stays_as_it_was_asked_for():
    inputs = {"age": torch.rand(100, 1), "text": torch.zeros(100, 4)}
    targets = torch.arange(100) % 2
    data = equidp.GroupedDataset(inputs, targets, targets, ("a", "b"), ("n", "y"))
    choice, asked = advise(data), Plan(learning_rate=0.3)
    assert choice.plan(asked) == asked
    assert "no benchmark runs" in choice.evidence
    tokens = equidp.GroupedDataset(torch.zeros(100, 4).long(), targets, targets, ("a", "b"), ("n", "y"))
    assert advise(tokens).plan(asked) == asked
    assert advise(made_up(100, 3, 2, 2)).features is None  # too small for scattering


@pytest.mark.soak
def test_auto_takes_a_batch_that_the_training_part_of_every_seed_holds(tmp_path):
    """Rows are split by their content, so seeds train on different numbers of them."""
    people = pd.DataFrame({"age": np.arange(200) % 61, "pay": np.arange(200) % 97})
    people["sex"], people["rich"] = np.where(people.age % 2, "f", "m"), np.where(people.pay > 48, "yes", "no")
    people.to_csv(tmp_path / "people.csv", index=False)
    source = open_source(tmp_path / "people.csv", recipe=Recipe(target="rich", group=("sex",)))
    sizes = [len(source.split(seed).train) for seed in range(5)]
    assert sizes[0] > min(sizes)
    for own in ({}, {"plan": Plan(batch_size=64, delta=1e-4)}):
        asked = ComparisonPlan([AUTO], 5, epsilons=(1.0,), **own)
        prepared = prepare(source, asked, directory=tmp_path)
        (batch,) = {prepared.cells(each, [0])[0].plan.plan.batch_size for each in prepared.private}
        assert batch == min(sizes)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_each_rule_has_settings_that_can_be_trained_by(rule):
    assert rule.evidence
    plan = Plan().with_changes(rule.settings).for_method(rule.method)
    assert plan.with_changes(noise_multiplier=1.0).resolve(20_000).steps > 0


def test_normalised_features_have_the_learning_rate_at_which_noise_moves_logits_by_one_deviation():
    vectors = made_up(20_000, 12)
    small, large = (advise(vectors, {"epsilon": each}, features="efficientnet-lite0") for each in (0.5, 3.0))
    assert (small.features, small.settings["clipping_bound"]) == ("efficientnet-lite0", 1.4)
    assert small.settings["learning_rate"] < large.settings["learning_rate"] <= 10
    assert advise(vectors).settings["learning_rate"] == 10
    assert "deviation of 1" in small.evidence
    with raises_field(SettingError, "epsilon"):
        advise(made_up(50, 12), {"epsilon": 0.02}, features="efficientnet-lite0")
