"""Weights multiply one example's loss before its gradient is clipped; others are refused."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import equidp
from equidp._validate import MOST_WEIGHT, check_weights
from equidp.data.targets import (
    parse_class_weights,
    weights_of_classes,
    with_weights,
)
from equidp.engines import make_engine
from equidp.errors import DataError, DataWarning, SettingError
from equidp.kernel.event import Event
from equidp.kernel.noise import Randomness
from equidp.kernel.step import PrivateStep
from equidp.losses import Loss
from equidp.policies.methods import make_policy
from equidp.policies.weights import sensitivity_of
from equidp.training.build import build
from support.errors import raises_field

LOSS = nn.CrossEntropyLoss(reduction="none")


def dataset(n: int = 12, **more) -> equidp.GroupedDataset:
    torch.manual_seed(0)
    targets = torch.arange(n) % 2
    return equidp.GroupedDataset(torch.randn(n, 3), targets, targets, ("a", "b"), ("no", "yes"), **more)


@pytest.mark.parametrize("engine", ["ghost", "functional"])
def test_norms_are_those_of_the_weighted_gradients(engine):
    data, model = dataset(), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    weights = torch.linspace(0, 7, len(data))
    plain = make_engine(engine, model, LOSS)(data.inputs, data.targets).norms
    pairs = with_weights(data.targets, weights)
    rows = make_engine(engine, model, Loss(LOSS).with_row_weights())(data.inputs, pairs).norms
    classes = make_engine(engine, model, Loss(LOSS, torch.tensor([1.0, 8.0])))
    torch.testing.assert_close(rows, plain * weights)
    torch.testing.assert_close(
        classes(data.inputs, data.targets).norms, plain * torch.where(data.targets == 1, 8.0, 1.0)
    )


class NoNoise(Randomness):
    """What remains is the sum whose sensitivity is at stake."""

    def words(self, count: int) -> np.ndarray:
        raise AssertionError("the private step draws no words")

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float64)


@pytest.mark.parametrize("weight", [100.0, MOST_WEIGHT, 1e30, 1e38])
@pytest.mark.parametrize("method", ["dpsgd", "automatic"])
def test_an_example_of_any_weight_moves_the_sum_by_no_more_than_the_sensitivity(method, weight):
    """Beyond `MOST_WEIGHT` too, where the dataset would refuse it: the bound does not rest on that check."""
    model, data, policy = nn.Linear(3, 2), dataset(), make_policy(method, {})
    pairs = with_weights(data.targets, torch.ones(len(data)))
    pairs[0, 1] = weight
    sums = []
    for first in (0, 1):
        step = PrivateStep(
            make_engine("ghost", model, Loss(LOSS).with_row_weights()),
            policy,
            list(model.parameters()),
            event=Event(1.0, 1e-9),
            expected_batch_size=1.0,
            num_groups=2,
            randomness=NoNoise(),
        )
        means = step(data.inputs[first:], pairs[first:], data.groups[first:])
        sums.append(torch.cat([each.flatten() for each in means]))
    moved = float((sums[0] - sums[1]).norm())
    assert moved <= sensitivity_of(policy, step.state, step.num_groups) * (1 + 1e-5)
    assert moved > 0 or weight > MOST_WEIGHT  # an example whose gradient overflows is left out


@pytest.mark.parametrize(("largest", "method"), [(12_000.0, "dpsgd"), (1.0, "dpsgd"), (12_000.0, "sgd")])
def test_weights_of_rows_that_clipping_hides_are_named_before_training(largest, method):
    noise = {} if method == "sgd" else {"noise_multiplier": 1.0}
    plan = equidp.Plan(model=lambda shape, classes: nn.Linear(3, 2), batch_size=6, **noise)
    data = dataset(weights=torch.linspace(0.1, largest, 12))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        build(plan.for_method(method).resolve(12), data, weights_seed=3, seed=3)
    named = [each for each in caught if "weights of rows reach 12,000" in str(each.message)]
    assert len(named) == (largest > 1 and method == "dpsgd")


@pytest.mark.parametrize("given", [{"class_weight": {"yes": 5.0}}, {}])
def test_without_clipping_and_noise_a_run_is_weighted_sgd(given):
    """Full batches, plain SGD: the same steps as torch's own on the weighted mean."""
    weights = None if given else torch.linspace(0.5, 3, 12)
    data = dataset(weights=weights)
    expected = torch.where(data.targets == 1, 1.0, 0.2) if given else weights
    plan = equidp.Plan(
        model=lambda shape, classes: nn.Linear(3, 2), batch_size=12, epochs=20, learning_rate=0.5, **given
    )
    trainer = build(plan.for_method("sgd").resolve(12), data, weights_seed=3, seed=3)
    twin = copy.deepcopy(trainer.model)
    trainer.fit()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        (LOSS(twin(data.inputs), data.targets) * expected).mean().backward()
        optimizer.step()
    torch.testing.assert_close(trainer.model.weight, twin.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:weights of rows reach 100")
def test_accounts_of_single_examples_see_weighted_norms():
    """An account of unweighted norms would state too little epsilon for heavy examples."""
    heavy = torch.ones(64)
    heavy[:8] = 100.0
    epsilons = []
    for weights in (None, heavy):
        data, individual = dataset(64, weights=weights), equidp.Individual(1, grid=0.25)
        plan = equidp.Plan(
            batch_size=32, epochs=1, method_settings={"clipping_bound": 5.0}, noise_multiplier=2.0
        )
        trainer = build(
            plan.resolve(64),
            data,
            weights_seed=0,
            seed=0,
            individual=individual,
        )
        trainer.fit()
        epsilons.append(trainer.individual_report(accountant="rdp").sensitive_epsilons[:8])
    assert (epsilons[1] > epsilons[0]).all()


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ([1.0, float("nan")], "missing"),
        ([1.0, float("inf")], "beyond 1e+06"),
        ([-1.0, 1.0], "negative"),
        ([1.0, 2e6], "beyond 1e+06"),
    ],
)
def test_what_is_no_weight_is_refused(wrong, kind):
    with raises_field(DataError, "column", "'w'", kind):
        check_weights(np.array(wrong), "column 'w'")
    with raises_field(DataError, "weights", kind):
        dataset(2, weights=torch.tensor(wrong))


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("yes", "'yes'"),
        ("yes=-1", "'yes=-1'"),
        ("yes=nan", "'yes=nan'"),
        ("yes=1,yes=2", "'yes' twice"),
        ("", "empty"),
    ],
)
def test_class_weights_on_a_command_line_are_pairs(text, given):
    with raises_field(SettingError, "class_weight", given):
        parse_class_weights(text)
    assert parse_class_weights("no=1, yes=8") == {"no": 1.0, "yes": 8.0}


def test_class_weights_name_classes_and_leave_two():
    assert weights_of_classes({"yes": 8}, ("no", "yes")).tolist() == [0.125, 1.0]
    with raises_field(SettingError, "class in the class weights"):
        weights_of_classes({"yse": 8}, ("no", "yes"))
    with raises_field(SettingError, "class_weight"):
        weights_of_classes({"yes": 0}, ("no", "yes"))
    with raises_field(SettingError, "class_weight"):
        weights_of_classes({"yes": -2}, ("no", "yes"))


def test_weights_move_with_their_rows_and_count_in_the_digest():
    data = dataset(weights=torch.arange(12.0))
    assert data.subset(torch.tensor([3, 5])).weights.tolist() == [3.0, 5.0]
    assert data.to("cpu").trained_targets[:2].tolist() == [[0.0, 0.0], [1.0, 1.0]]
    other = dataset(weights=torch.arange(1.0, 13.0))
    assert equidp.data.DataSplit(data, data).digest() != equidp.data.DataSplit(other, data).digest()
    with raises_field(DataError, "weights", (3,), (12,)):
        dataset(weights=torch.ones(3))
