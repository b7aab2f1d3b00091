"""Settings for cut columns follow from public numbers: noise moves logits by the same amount everywhere."""

import dataclasses
import itertools
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

import equidp
from equidp.advice.advise import advise
from equidp.advice.chosen_plan import RULE, choose_plan
from equidp.data import open_source
from equidp.errors import SettingError
from equidp.tables.intervals import CUT
from equidp.tables.recipe import Recipe
from equidp.training.plan import Plan
from equidp.training.trainer import Trainer

SIZES, EPSILONS = (1_000, 40_000, 1_000_000), (0.5, 3.0, 8.0)


def made_up(num_examples, columns=3, **changes):
    targets = torch.arange(num_examples) % 2
    inputs = torch.rand(num_examples, columns)
    return equidp.GroupedDataset(inputs, targets, targets, ("a", "b"), ("n", "y"), **changes)


@cache
def settings_of(num_examples, epsilon):
    return advised(num_examples, epsilon)


def advised(num_examples, epsilon, given=None, **changes):
    return advise(made_up(num_examples, **changes), {"epsilon": epsilon}, given, CUT)


def way(settings, num_examples):
    """Sum of the learning rates: rate, over 1 - momentum, times steps."""
    steps = settings["epochs"] * num_examples / settings["batch_size"]
    return settings["learning_rate"] / (1 - settings["momentum"]) * steps


@pytest.fixture(scope="module")
def ways():
    return {
        (count, epsilon): way(settings_of(count, epsilon).settings, count)
        for count, epsilon in itertools.product(SIZES, EPSILONS)
    }


@pytest.mark.soak
def test_steps_are_shorter_the_fewer_examples_and_the_less_epsilon(ways):
    for count, (less, more) in itertools.product(SIZES, itertools.pairwise(EPSILONS)):
        assert ways[count, less] <= ways[count, more]
    for epsilon, (fewer, more) in itertools.product(EPSILONS, itertools.pairwise(SIZES)):
        assert ways[fewer, epsilon] <= ways[more, epsilon]
    assert ways[1_000, 0.5] < 0.05 * ways[40_000, 3.0]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("count", SIZES)
def test_settings_can_be_trained_by_and_stay_within_bounds(count, epsilon):
    advice = settings_of(count, epsilon)
    assert 0 < advice.settings["learning_rate"] <= 10
    assert 0.5 < advice.settings["clipping_bound"] < 2
    resolved = advice.plan(Plan()).for_method(advice.method).with_usual_noise().resolve(count)
    assert 0 < resolved.sample_rate <= 1
    assert resolved.steps >= 60


def test_the_number_of_columns_changes_nothing():
    assert advised(6_000, 1.0, columns=2) == advised(6_000, 1.0, columns=60)


@pytest.mark.soak
def test_noise_moves_predictions_by_the_deviation_that_the_rule_states():
    """It is that of 2,000 weights that no gradient moves, within four standard errors (p below 1e-4)."""
    count, width = 500, 2_001
    rows = torch.zeros(count, width)
    rows[:, 0] = 1.0
    targets = torch.arange(count) % 2
    data = equidp.GroupedDataset(rows, targets, targets, ("a", "b"), ("n", "y"))
    advice = advise(data, {"epsilon": 1.0}, {}, CUT)
    plan = advice.plan(Plan()).with_changes(epsilon=1.0, accountant="rdp").resolve(count)
    model = torch.nn.Sequential(torch.nn.Linear(width, 2, bias=False))
    torch.nn.init.zeros_(model[0].weight)
    own = plan.settings
    optimizer = torch.optim.SGD(model.parameters(), lr=own["learning_rate"], momentum=own["momentum"])
    trainer = Trainer(
        model, optimizer, data, method=plan.policy, batch_size=own["batch_size"], steps=plan.steps,
        noise_multiplier=plan.noise_multiplier, delta=plan.delta, schedule=own["schedule"],
        average=own["average"], average_share=own["average_share"],
    )  # fmt: skip
    weights = trainer.fit().model[0].weight.detach()[:, 1:]
    moved = weights[1] - weights[0]
    assert moved.std().item() == pytest.approx(0.6, rel=0.065)


def test_given_settings_are_what_the_learning_rate_suits():
    shorter, longer = (advised(6_000, 1.0, {"clipping_bound": bound}).settings for bound in (0.6, 1.2))
    assert shorter["clipping_bound"] == 0.6
    assert shorter["learning_rate"] == pytest.approx(2 * longer["learning_rate"], rel=0.01)
    noisier, quieter = (
        advise(made_up(6_000), {}, {"noise_multiplier": noise}, CUT).settings for noise in (8.0, 4.0)
    )
    assert quieter["learning_rate"] == pytest.approx(2 * noisier["learning_rate"], rel=0.01)


def test_the_bound_of_people_is_that_of_a_row():
    rows = made_up(500)
    people = dataclasses.replace(
        rows,
        inputs=torch.rand(500, 4, 3),
        targets=rows.targets[:, None].expand(500, 4),
    )
    assert people.rows == 4
    assert advise(people, {"epsilon": 3.0}, {}, CUT).settings["clipping_bound"] == 1.2


@pytest.mark.parametrize(("count", "epsilon"), [(50, 0.5), (30, 1.0)])
def test_so_few_rows_that_nothing_can_be_learnt_are_refused_before_anything_is_spent(count, epsilon):
    with pytest.raises(SettingError) as caught:
        advised(count, epsilon)
    assert caught.value.field == "epsilon"
    assert advised(count, epsilon, {"learning_rate": 0.1}).settings["learning_rate"] < 0.1


@pytest.mark.soak
def test_few_rows_are_cautioned_of():
    few, many = (advised(count, 0.5).caution for count in (600, 40_000))
    assert "Few rows for this budget" in few
    assert many == ""


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    age = rng.uniform(18, 80, 1_000)
    answers = np.where((age - 50) ** 2 < 200, "yes", "no")
    frame = pd.DataFrame({"age": age, "sex": rng.choice(["f", "m"], 1_000), "income": answers})
    frame.to_csv(tmp_path / "people.csv", index=False)
    return open_source(str(tmp_path / "people.csv"), recipe=Recipe(target="income", group=("sex",)))


@pytest.mark.soak
def test_a_table_is_cut_unless_a_model_or_an_encoding_is_given(table):
    train = table.split(0).train
    chosen = choose_plan(table, train, 0, {})
    assert (chosen.binning, chosen.plan.model, chosen.origin("binning")) == (CUT, "additive", RULE)
    assert choose_plan(table, train, 0, {"model": "mlp"}).binning == "standard"
    assert choose_plan(table, train, 0, {}, swept=("model",)).binning == "standard"
    scaled = dataclasses.replace(table, binning="standard")
    assert choose_plan(scaled, train, 0, {}).plan.model == "logistic"
    finer = dataclasses.replace(table, binning="cut:8")
    assert (choose_plan(finer, train, 0, {}).binning, choose_plan(finer, train, 0, {}).plan.model) == (
        "cut:8", "additive",
    )  # fmt: skip


def test_all_examples_may_be_one_batch():
    assert (
        advised(6_000, 3.0, {"batch_size": 0}).settings == advised(6_000, 3.0, {"batch_size": 6_000}).settings
    )


def test_a_method_that_fixes_its_settings_is_neither_refused_nor_explained_by_those_of_the_rule(table):
    train = table.split(0).train.subset(torch.arange(40))
    with pytest.raises(SettingError):
        choose_plan(table, train, 0, {}, level={"epsilon": 0.5})
    chosen = choose_plan(table, train, 0, {}, level={"epsilon": 0.5}, method="prototypes")
    assert chosen.advice.settings["model"] == "prototypes"
    assert chosen.advice.evidence == ""
