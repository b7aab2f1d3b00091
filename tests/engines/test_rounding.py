"""Rounding: one example moves a computed sum by its own length, whatever the others are and in whatever order
they come, and no norm is understated by more than the kernel covers (`kernel.bounding.ROUNDING`)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from equidp.data.targets import with_weights
from equidp.engines import ENGINES, make_engine
from equidp.engines.layers.sums import lengths, outer_sum, weighted_sum, with_rounding
from equidp.engines.units import UnitModel
from equidp.kernel.bounding import ROUNDING, summed_rows
from support.oracle import add_gradients, single_gradients
from support.units import LOSS

COVERED = 1 - ROUNDING / 2  # what a norm may be short of: half of the share is for norms


def linear_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of example i is targets[i] times that of its outputs' sum."""
    return outputs.flatten(1).sum(dim=1) * targets


class Own(nn.Module):
    """A parameter that no layer owns, which the ghost engine runs by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight


class Bag(nn.Module):
    """One embedding of one token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.table(torch.zeros(len(inputs), 1, dtype=torch.int64))


MODELS = {
    "linear": lambda: nn.Linear(1, 1, bias=False),
    "bias": lambda: nn.Linear(1, 1),
    "positions": lambda: nn.Sequential(nn.Unflatten(1, (1, 1)), nn.Linear(1, 1, bias=False)),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 1)), nn.Conv1d(1, 1, 1, bias=False)),
    "embedding": Bag,
    "parameter": Own,
}


def stuck_at_a_power_of_two(power: int) -> Tensor:
    """Lengths after which float32 rounds one way below 2^power and the other way above.

    2^power - 1 rows of 1 and one of a half; then triples (+a, -b, -b) whose sum in float32 depends on which
    side of 2^power the sum before them was.
    """
    unit = 2.0 ** (power - 23)
    steps = math.floor(0.19 / unit)
    b, a = np.float32((steps + 0.3) * unit), np.float32((2 * steps + 0.6) * unit)
    values = [1.0] * (2**power - 1) + [0.5] + [a, -b, -b] * (2**power // 3)
    return torch.from_numpy(np.array(values, dtype=np.float32))


def summed(engine: str, model: nn.Module, values: Tensor, parts: int) -> Tensor:
    """The sum of gradients of these lengths, all parameters in one vector."""
    made = make_engine(engine, model, linear_loss)
    total = torch.zeros(sum(each.numel() for each in model.parameters()), dtype=torch.float64)
    for part in values.split(parts):
        sums = made(torch.ones(len(part), 1), part).sums(torch.ones(len(part)))
        total += torch.cat([sums[each].flatten() for each in model.parameters()])
    return total


@pytest.mark.parametrize(
    ("name", "engine", "parts"),
    [*((name, engine, 2**20) for name in MODELS for engine in ENGINES), ("linear", "ghost", 1000)],
)
def test_one_example_moves_a_sum_by_its_own_length(name, engine, parts):
    """In float32 the first example would move this sum by 1.25 lengths in one part."""
    torch.manual_seed(0)
    model = MODELS[name]()
    others = stuck_at_a_power_of_two(12)
    for length in (1.0, 0.05):
        one_more = torch.cat([torch.tensor([length]), others])
        moved = summed(engine, model, one_more, parts) - summed(engine, model, others, parts)
        count = sum(each.numel() for each in model.parameters())
        assert abs(float(moved.norm()) - length * math.sqrt(count)) <= ROUNDING / 2**10


@given(
    size=st.integers(1, 5000),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
    spread=st.sampled_from([0.0, 1.0, 8.0]),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_weighted_sums_are_as_exact_as_float64(size, scale, spread, seed):
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(size, 2)) * scale * np.exp(spread * generator.normal(size=(size, 1)))
    values, weights = torch.from_numpy(values).float(), torch.from_numpy(generator.uniform(size=size)).float()
    exact = [math.fsum((weights.double() * values[:, column].double()).tolist()) for column in (0, 1)]
    terms = float((weights.double()[:, None] * values.double().abs()).sum())
    expected = torch.tensor(exact, dtype=torch.float64)
    ones = torch.ones(size, 1)
    for found in (weighted_sum(weights, values), outer_sum(weights, values, ones).flatten()):
        assert (found - expected).norm() <= 2.0**-40 * terms


@given(size=st.integers(0, 20_000), seed=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_rows_are_summed_in_blocks(size, seed):
    rows = torch.from_numpy(np.random.default_rng(seed).standard_cauchy((size, 1)))
    bound = (4096 + size / 4096) * 2.0**-53 * float(rows.abs().sum())
    assert abs(float(summed_rows(rows)) - math.fsum(rows[:, 0].tolist())) <= bound


@pytest.mark.parametrize("count", [1, 513, 2**18 + 5, 2**22])
@pytest.mark.parametrize("value", [0.9, 1e-15, 3e15])
def test_norms_of_long_rows_are_not_understated(count, value):
    """Added one after the other in float32, equal numbers lose a percent at 2^24 of them."""
    row = torch.full((1, count), value)
    assert float(lengths(row)) >= COVERED * math.sqrt(count) * float(row[0, 0])
    assert float(lengths(row)) <= (1 + 1e-4) * math.sqrt(count) * float(row[0, 0])


@pytest.mark.parametrize("positions", [2, 8, 40])
@pytest.mark.parametrize("kind", ["linear", "convolution", "embedding"])
def test_norms_from_products_of_positions_hold_where_terms_cancel(kind, positions):
    """Wide equal inputs, whose products float32 rounds alike, and output gradients that cancel to a part in
    10^4: a norm that is too small would let the example exceed its bound."""
    features, outputs = (8192, 300) if kind == "linear" else (1024, 256)
    torch.manual_seed(positions)
    signs = torch.tensor([1.0, -1.0]).repeat(positions // 2)
    if kind == "linear":
        model: nn.Module = nn.Linear(features, outputs, bias=False)
        inputs = 0.9 + 1e-4 * torch.randn(3, positions, features)
    elif kind == "convolution":
        model = nn.Conv1d(features, outputs, 1, bias=False)
        inputs = 0.9 + 1e-4 * torch.randn(3, features, positions)
    else:
        model = nn.Embedding(4, features)
        inputs = torch.zeros(3, positions, dtype=torch.int64)

    def loss(values: Tensor, targets: Tensor) -> Tensor:
        by_position = values if kind == "convolution" else values.transpose(1, 2)
        return (by_position.sum(dim=1) * signs * (1 + 1e-4 * torch.arange(positions))).sum(dim=1)

    targets = torch.zeros(3, dtype=torch.int64)
    measured = make_engine("ghost", model, loss)(inputs, targets)
    exact = model.double()
    wide = inputs if kind == "embedding" else inputs.double()
    true = single_gradients(exact, wide, targets, loss).norm(dim=1)
    assert (measured.norms.double() >= COVERED * true).all()


@pytest.mark.parametrize("additions", [33, 1024])
def test_norms_leave_room_for_what_sums_of_positions_in_float32_lose(additions):
    """At most (k - 1) 2^-24 of the sum of the lengths of k terms, in any order (Higham 2002, section 4.2)."""
    exact, terms = torch.tensor([0.0, 2.0]), torch.tensor([3.0, 3.0])
    raised = with_rounding(exact.square(), terms, additions).sqrt()
    assert (raised - exact >= (additions - 1) * 2.0**-24 * terms).all()


def test_rows_that_cancel_never_understate_the_norm():
    """Two rows with the same input and opposite classes: what is left of the gradient is rounding, and its
    norm must not be below what the sum contains (weights of 1 / norm would multiply it)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 9, 3), nn.Tanh(), nn.Flatten(), nn.Linear(9 * 36, 2))
    nn.init.zeros_(model[3].bias)
    image = 30 * torch.randn(1, 1, 2, 8, 8).expand(2, 2, 2, 8, 8)
    with torch.no_grad():
        model[3].weight[1] = model[3].weight[0]
    targets = with_weights(torch.tensor([0, 1, 0, 1]), torch.ones(4)).reshape(2, 2, 2)
    for engine in ENGINES:
        measured = make_engine(engine, UnitModel(model), LOSS)(image, targets)
        weights = torch.tensor([1.0, 0.0]) / measured.norms.clamp_min(1e-10)
        model.zero_grad()
        add_gradients(measured, weights)
        total = torch.cat([each.grad.flatten() for each in model.parameters()])
        assert total.norm() <= 1.01
