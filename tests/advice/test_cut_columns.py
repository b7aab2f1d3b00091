"""Settings for cut columns follow from public numbers: noise moves logits by the same amount everywhere."""

import dataclasses

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


def made_up(num_examples, columns=3, **changes):
    targets = torch.arange(num_examples) % 2
    inputs = torch.rand(num_examples, columns)
    return equidp.GroupedDataset(inputs, targets, targets, ("a", "b"), ("n", "y"), **changes)


def advised(num_examples, epsilon, given=None, **changes):
    return advise(made_up(num_examples, **changes), {"epsilon": epsilon}, given, CUT)


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
