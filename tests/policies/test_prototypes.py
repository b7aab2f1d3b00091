"""Prototypes release, in one private step, the noisy sum of each class's features, scaled to norm 1."""

from __future__ import annotations

import pytest
import torch

import equidp
from equidp.advice.chosen_plan import RULE, choose_plan
from equidp.data import open_source
from equidp.data.people import by_person
from equidp.kernel.event import Event
from equidp.models import PrototypeModel
from equidp.policies.methods import fixed_options
from equidp.training.build import build
from equidp.training.plan import Plan
from support.toy import toy

N = 60


def class_sums(data: equidp.GroupedDataset, noise: float = 0.0) -> torch.Tensor:
    """Weights that a run releases, as sums."""
    plan = (
        Plan(noise_multiplier=noise, epochs=7, learning_rate=0.3).for_method("prototypes").resolve(len(data))
    )
    trained = build(plan, data, weights_seed=0, seed=0).fit()
    weights: torch.Tensor = trained.model.linear.weight.detach() * len(data)  # type: ignore[union-attr]
    return weights


def test_a_run_releases_the_sum_of_unit_features_of_each_class():
    data = toy(N)
    unit = torch.nn.functional.normalize(data.one_tensor)
    expected = torch.stack([unit[data.targets == each].sum(0) for each in range(data.num_classes)])
    assert torch.allclose(class_sums(data), expected, atol=1e-4)


def test_noise_has_the_deviation_of_its_multiplier():
    """Estimated from 10 numbers, a deviation of 50 is outside of the limits about once in a million times."""
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


@pytest.mark.soak
def test_a_run_is_one_event_without_sampling_which_is_all_that_it_spends():
    data = toy(N)
    plan = Plan(delta=1e-3).for_method("prototypes").with_changes(epsilon=1.0).resolve(N)
    trainer = build(plan, data, weights_seed=0, seed=0)
    run = trainer.fit()
    assert run.entries == ((Event(1.0, plan.noise_multiplier, None), 1),)
    assert run.epsilon() == pytest.approx(1.0, abs=1e-3)


def test_prediction_is_the_largest_cosine():
    data = toy(N)
    plan = Plan(noise_multiplier=0.0).for_method("prototypes").resolve(N)
    model = build(plan, data, weights_seed=0, seed=0).fit().model.eval()
    with torch.no_grad():
        found = model(data.one_tensor).argmax(1)
    sums = torch.nn.functional.normalize(class_sums(data))
    assert torch.equal(found, (torch.nn.functional.normalize(data.one_tensor) @ sums.T).argmax(1))


def unequal_classes(classes: list[int]) -> equidp.GroupedDataset:
    """Unit features of 400 numbers, mostly their class's direction, which is the same for half of it."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(len(classes)).repeat_interleave(torch.tensor(classes))
    shared, own = torch.randn((1, 400), generator=generator), torch.randn((3, 400), generator=generator)
    inputs = shared + own[targets] + 2 * torch.randn((len(targets), 400), generator=generator)
    return equidp.GroupedDataset(inputs, targets, targets.clone(), ("a", "b", "c"), ("a", "b", "c"))


def trained_prototypes(data: equidp.GroupedDataset, noise: float) -> PrototypeModel:
    plan = Plan(noise_multiplier=noise).for_method("prototypes").resolve(len(data))
    model = build(plan, data, weights_seed=0, seed=0).fit().model
    assert isinstance(model, PrototypeModel)
    return model.eval()


def test_noise_does_not_lengthen_the_sums_that_cosines_are_with():
    """Squares are off by 5 standard errors at most once in a million: 2 sigma length, sigma^2 sqrt(2 d)."""
    data, sigma = unequal_classes([600, 600, 60]), 2.0
    exact = trained_prototypes(data, 0.0).lengths.detach() * len(data)
    found = trained_prototypes(data, sigma).lengths.detach() * len(data)
    errors = torch.sqrt((2 * sigma * exact).square() + 2 * 400 * sigma**4)
    assert bool(((found.square() - exact.square()).abs() < 5 * errors).all())


def test_the_method_fixes_its_plan_for_itself_alone():
    plan = Plan(model="mlp", epochs=9, batch_size=16)
    own, other = (
        plan.for_method("prototypes").with_usual_noise().resolve(1000),
        plan.with_usual_noise().resolve(1000),
    )
    assert (own.steps, own.sample_rate, own.plan.batch_size, own.plan.model) == (1, 1.0, 1000, "prototypes")
    assert (other.steps, other.plan.batch_size, other.plan.model) == (562, 16, "mlp")
    source = open_source("digits")
    chosen = choose_plan(source, source.split(0).train, 0, {"epochs": 3}, method="prototypes")
    assert {chosen.origin(name, "prototypes") for name in fixed_options("prototypes")} == {RULE}
