"""Advice by kind of data follows from shapes alone, and gives its evidence where the user left it open."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, strategies as st

import equidp
from equidp import SettingError
from equidp.advice.advise import RULES, advise, images_of, normalised_features
from equidp.advice.chosen_plan import choose_plan
from equidp.comparison.compare import prepare
from equidp.comparison.plan import ComparisonPlan
from equidp.data import open_source
from equidp.data.features import WithFeatures
from equidp.policies.table import AUTO
from equidp.tables.recipe import Recipe
from equidp.training.plan import Plan
from support.errors import raises_field


def made_up(num_examples, *shape):
    targets = torch.arange(num_examples) % 2
    return equidp.GroupedDataset(torch.rand(num_examples, *shape), targets, targets, ("a", "b"), ("n", "y"))


@pytest.mark.soak
@given(st.integers(2, 3000))
def test_a_choice_can_be_trained_on_however_few_examples_there_are(num_examples):
    choice = advise(made_up(num_examples, 3))
    resolved = (
        choice.plan(Plan(noise_multiplier=2.0, delta=1e-6)).for_method(choice.method).resolve(num_examples)
    )
    assert 0 < resolved.sample_rate <= 1
    assert resolved.steps >= 1


def test_a_choice_follows_from_shapes_alone():
    one, other = made_up(100, 1, 8, 8), made_up(100, 1, 8, 8)
    assert advise(one) == advise(other)
    assert advise(one).features == "scattering"
    assert advise(made_up(100, 5)).features is None


def test_images_of_many_features_take_short_steps_and_those_of_few_take_global_adapt():
    grey, colour = (advise(made_up(10_000, channels, 28, 28)) for channels in (1, 3))
    assert (grey.method, grey.settings["clipping_bound"], grey.settings["learning_rate"]) == (
        "global-adapt", 1.0, 2.0,
    )  # fmt: skip
    assert (colour.method, colour.settings["clipping_bound"], colour.settings["learning_rate"]) == (
        "dpsgd", 0.1, 4.0,
    )  # fmt: skip


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


def test_features_that_were_asked_for_are_not_taken_of_features():
    asked = open_source("digits", features="scattering")
    chosen = choose_plan(asked, asked.split(0).train, 0, {})
    assert chosen.source(asked) is asked
    plain = asked.source
    assert choose_plan(plain, plain.split(0).train, 0, {}).source(plain) == asked


@pytest.mark.soak
def test_scattering_that_was_asked_for_is_settled_by_the_images(tmp_path):
    """Features have other shapes: those of MNIST look like a table."""
    asked = open_source("digits", features="scattering")
    images = images_of(asked, 0)
    assert images.input_shape == (1, 8, 8)
    plain, featured = (open_source("digits", features=name) for name in (None, "scattering"))
    assert images_of(plain, 0) is None
    assert images_of(WithFeatures(plain, torch.relu), 0) is None  # what they are of is unknown
    setups = [
        prepare(
            source,
            ComparisonPlan([AUTO], 1, epsilons=(1.0,), options={"epochs": 1}),
            directory=tmp_path,
        )
        for source in (plain, featured)
    ]
    plans = [setup.choice.shared.plan for setup in setups]
    assert plans[0] == plans[1] == advise(images).plan(Plan(delta=1e-4)).with_changes({"epochs": 1})
    assert advise(featured.split(0).train) != advise(images)


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


@pytest.mark.soak
def test_auto_spends_what_dp_sgd_spends_by_the_plan_of_a_comparison(tmp_path):
    plan = Plan(epochs=2, noise_multiplier=2.0, delta=1e-4, batch_size=512)
    asked = {"seeds": 1, "plan": plan, "directory": tmp_path, "jobs": 1}
    comparison = equidp.compare("digits", methods=["dpsgd", AUTO], **asked)
    spent = comparison.results.groupby("method")["epsilon"].first()
    assert spent["auto"] == pytest.approx(spent["dpsgd"], rel=0.01)
    assert spent["auto"] <= spent["dpsgd"] * (1 + 1e-6)
    features = {row.methods: row.value for row in comparison.setup.settings if row.name == "features"}
    assert "scattering" in str(features)


@pytest.mark.soak
def test_auto_meets_each_target_of_a_comparison(tmp_path):
    plan = Plan(epochs=1, delta=1e-4)
    asked = {"seeds": 1, "plan": plan, "directory": tmp_path, "jobs": 1, "epsilon": [1.0, 8.0]}
    comparison = equidp.compare("digits", methods=[AUTO], **asked)
    spent = comparison.results.query("method == 'auto'").groupby("target_epsilon")["epsilon"].first()
    assert spent.to_list() == pytest.approx([1.0, 8.0], rel=0.01)


def test_settings_of_the_plan_that_were_meant_for_other_methods_do_not_leak_into_a_choice():
    asked = Plan(momentum=0.5, method_settings={"clipping_bound": 7.0}, delta=1e-5)
    made = advise(open_source("digits").split(0).train).plan(asked)
    assert (made.method_settings["clipping_bound"], made.momentum, made.delta) == (1.0, 0.9, 1e-5)


def test_evidence_is_given_only_for_what_the_user_left_open():
    choice = advise(made_up(4000, 5))
    for asked in ({"clipping_bound": 9.0}, {"model": "mlp"}, {"clipping_bound": 9.0, "epochs": 3}):
        taken = choice.with_settings(asked, None, choice.method)
        (given,) = taken.reasons
        for name, value in asked.items():
            text = f"{name.replace('_', ' ')} {value:g}" if name != "model" else f"model {value}"
            assert text in given
    for asked in ({"clipping_bound": 2.0}, {"epochs": 3}):
        assert choice.with_settings(asked, None, choice.method).evidence == choice.evidence
    images = advise(made_up(400, 1, 8, 8))
    assert images.with_settings({}, None, images.method).evidence == ""  # features that were not taken
    assert images.with_settings({}, "scattering", "dpsgd-f").evidence == ""


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


@pytest.mark.parametrize(
    ("name", "found"), [("efficientnet-lite0@32", "efficientnet-lite0@32"), ("scattering", None)]
)
def test_features_of_norm_1_are_known_by_name(name, found):
    pytest.importorskip("efficientnet_lite_pytorch")
    assert normalised_features(open_source("digits", features=name)) == found
    assert normalised_features(open_source("digits")) is None
