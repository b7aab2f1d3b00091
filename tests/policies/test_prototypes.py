"""Prototypes release, in one private step, the noisy sum of each class's features, scaled to norm 1."""

from __future__ import annotations

import pytest
import torch

import equidp
from equidp.accounting.target import Target
from equidp.advice.chosen_plan import METHOD, choose_plan
from equidp.data import open_source
from equidp.data.people import by_person
from equidp.errors import SettingError
from equidp.kernel.ledger import StepEvent
from equidp.policies.methods import check_not_fixed, fixed_options
from equidp.policies.table import METHODS
from equidp.training.build import build
from equidp.training.plan import Plan
from support.errors import raises_field
from support.toy import toy

N = 60


def class_sums(data: equidp.GroupedDataset, noise: float = 0.0) -> torch.Tensor:
    """Weights that a run releases, as sums."""
    plan = Plan(noise_multiplier=noise, epochs=7, learning_rate=0.3).resolve("prototypes", len(data))
    trained = build(plan, data, seed=0, secure=False).fit()
    weights: torch.Tensor = trained.model.linear.weight.detach() * len(data)  # type: ignore[union-attr]
    return weights


def test_a_run_releases_the_sum_of_unit_features_of_each_class():
    data = toy(N)
    unit = torch.nn.functional.normalize(data.one_tensor)
    expected = torch.stack([unit[data.targets == each].sum(0) for each in range(data.num_classes)])
    assert torch.allclose(class_sums(data), expected, atol=1e-4)


def test_noise_has_the_deviation_of_its_multiplier():
    """Of 10 numbers with a deviation of 50; outside 4 to 1 once in a million."""
    data = toy(N)
    noise = class_sums(data, 50.0) - class_sums(data)
    assert 15 < float(noise.std()) < 110


@pytest.mark.soak
def test_one_example_moves_the_sums_by_at_most_one_and_a_person_too():
    data = toy(N)
    assert float((class_sums(data) - class_sums(data.subset(torch.arange(1, N)))).norm()) == pytest.approx(
        1.0
    )
    people = torch.arange(N) // 4
    whole = by_person(data, people, most_rows=4)
    without = whole.subset(torch.arange(1, len(whole)))
    moved = float((class_sums(whole) - class_sums(without)).norm())
    unit = torch.nn.functional.normalize(data.one_tensor[:4])
    own = torch.zeros(2, unit.shape[1]).index_add(0, data.targets[:4], unit).norm()
    assert float(own) > 1.0  # so that it is shortened
    assert moved == pytest.approx(1.0, abs=1e-4)


def test_the_length_of_features_does_not_matter_and_zeros_add_nothing():
    data = toy(N)
    inputs = data.one_tensor.clone()
    inputs[0], inputs[1] = 1000 * inputs[0], 0.0
    changed = equidp.GroupedDataset(
        inputs, data.targets, data.groups, data.group_names, data.class_names, data.source
    )
    unit = torch.nn.functional.normalize(data.one_tensor)
    lacking = torch.zeros(2, unit.shape[1]).index_add(0, data.targets[1:2], unit[1:2])
    assert torch.allclose(class_sums(data) - class_sums(changed), lacking, atol=1e-4)


@pytest.mark.soak
def test_a_run_is_one_event_without_sampling_which_is_all_that_it_spends():
    data = toy(N)
    plan = Plan(delta=1e-3).resolve("prototypes", N, Target(1.0))
    trainer = build(plan, data, seed=0, secure=False)
    run = trainer.fit()
    assert run.entries == ((StepEvent(1.0, plan.noise_multiplier, None), 1),)
    assert run.epsilon() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.soak
def test_a_budget_is_charged_before_a_row_is_read(monkeypatch):
    data, budget = toy(N), equidp.PrivacyBudget(epsilon=0.5, delta=1e-3)
    plan = Plan(delta=1e-3).resolve("prototypes", N, Target(1.0))
    with pytest.raises(equidp.BudgetError):
        build(plan, data, seed=0, secure=False, budget=budget)
    assert budget.spent() == 0.0


def test_prediction_is_the_largest_cosine():
    data = toy(N)
    plan = Plan(noise_multiplier=0.0).resolve("prototypes", N)
    model = build(plan, data, seed=0, secure=False).fit().model.eval()
    with torch.no_grad():
        found = model(data.one_tensor).argmax(1)
    sums = torch.nn.functional.normalize(class_sums(data))
    assert torch.equal(found, (torch.nn.functional.normalize(data.one_tensor) @ sums.T).argmax(1))


def test_the_method_fixes_its_plan_for_itself_alone():
    plan = Plan("mlp", epochs=9, batch_size=16, recalibration=0.0)
    own, other = plan.resolve("prototypes", 1000), plan.resolve("dpsgd", 1000)
    assert (own.steps, own.sample_rate, own.plan.batch_size, own.plan.model) == (1, 1.0, 1000, "prototypes")
    assert (other.steps, other.plan.batch_size, other.plan.model) == (562, 16, "mlp")
    source = open_source("digits")
    chosen = choose_plan(source, source.split(0).train, 0, {"epochs": 3}, method="prototypes")
    assert {chosen.origin(name, "prototypes") for name in fixed_options("prototypes")} == {METHOD}


@pytest.mark.parametrize(("name", "value"), [("epochs", 5), ("model", "mlp"), ("batch_size", 16)])
def test_an_option_that_the_method_fixes_is_refused(name, value):
    with raises_field(SettingError, name):
        check_not_fixed({name: value, "delta": 1e-5}, "prototypes")
    check_not_fixed({name: fixed_options("prototypes")[name]}, "prototypes")
    check_not_fixed({name: value}, "dpsgd")


def test_fixed_options_are_options_of_a_plan():
    for name in METHODS:
        assert set(fixed_options(name)) <= Plan.names()
