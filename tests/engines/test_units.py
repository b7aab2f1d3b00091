"""Units of several rows: one gradient, one norm and one contribution, whatever the layers and the shapes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import equidp
from equidp.data.targets import with_weights
from equidp.engines import ENGINES, make_engine
from equidp.engines.units import UnitModel
from equidp.errors import ModelError
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from support.errors import raises_field
from support.oracle import SumOfSquares, add_gradients, assert_exact, drawn, loss
from support.units import LOSS, assert_units, ragged


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


ROWS = st.integers(1, 4)


@pytest.mark.soak
@given(rows=ROWS, middle=st.lists(st.integers(1, 3), max_size=2), wide=st.booleans(), bias=st.booleans())
@settings(max_examples=25)
def test_linear(rows, middle, wide, bias):
    features = 40 if wide else 2
    model = nn.Sequential(nn.Linear(features, features, bias=bias), SumOfSquares()).double()
    assert_units(model, drawn(3, rows, *middle, features), 3, rows)


@pytest.mark.soak
@given(
    rows=ROWS,
    dimensions=st.integers(1, 3),
    channels=st.sampled_from([(1, 2, 3), (2, 4, 6), (1, 9, 4)]),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.sampled_from([0, 1]),
    mode=st.sampled_from(["zeros", "reflect"]),
    transposed=st.booleans(),
    single=st.booleans(),
)
@settings(max_examples=40)
def test_convolutions(rows, dimensions, channels, stride, dilation, padding, mode, transposed, single):
    groups, inputs, outputs = channels
    kinds = (
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        if transposed
        else (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    )
    layer = kinds[dimensions - 1](
        inputs,
        outputs,
        2,
        stride=stride,
        dilation=dilation,
        padding=padding,
        groups=groups,
        padding_mode="zeros" if transposed else mode,
    )
    model = nn.Sequential(layer, SumOfSquares())
    shape = (3, rows, inputs, *(6, 5, 4)[:dimensions])
    if single:
        assert_units(model, torch.randn(shape), 3, rows, tolerance=2e-5)
    else:
        assert_units(model.double(), drawn(*shape), 3, rows)


@pytest.mark.parametrize("numbers", [1, 40, 1000])
@pytest.mark.parametrize("channels", [2, 16])
def test_layers_in_small_chunks(numbers, channels, monkeypatch):
    monkeypatch.setattr("equidp.engines.layers.sums._CHUNK", numbers)
    layers = nn.Conv2d(channels, 9, 3, padding=1), nn.GroupNorm(1, 9), nn.LayerNorm(4), nn.Conv2d(9, 2, 3)
    assert_units(
        nn.Sequential(*layers, SumOfSquares()), torch.randn(5, 3, channels, 4, 4), 5, 3, tolerance=2e-5
    )


class Words(nn.Module):
    """Tokens, a bag of them, and a table of positions that is read once for all rows."""

    def __init__(self, bag: str) -> None:
        super().__init__()
        self.words, self.bag = nn.Embedding(6, 3, padding_idx=0), nn.EmbeddingBag(6, 3, mode=bag)
        self.positions = nn.Embedding(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions(torch.arange(4).unsqueeze(0))
        return self.words(tokens) * positions + self.bag(tokens).unsqueeze(1)


@pytest.mark.parametrize("bag", ["sum", "mean"])
@pytest.mark.parametrize("rows", [1, 3])
def test_embeddings(bag, rows):
    model = nn.Sequential(Words(bag), SumOfSquares()).double()
    assert_units(model, torch.randint(0, 6, (4, rows, 4)), 4, rows)


class Pairs(nn.Module):
    """A layer of two inputs, which has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(4, 4, 3)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return SumOfSquares()(self.layer(first, second))


def test_a_layer_of_two_inputs_without_a_rule():
    assert_units(Pairs().double(), (drawn(4, 3, 4), drawn(4, 3, 4)), 4, 3)


class Tied(nn.Module):
    """A layer used twice: gradients of both uses are added before a norm is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: dict[str, Tensor] | Tensor = None, *, x: Tensor = None) -> Tensor:
        return SumOfSquares()(self.layer(torch.tanh(self.layer(x))))


def test_shared_parameters_and_inputs_by_name():
    assert_units(Tied().double(), {"x": drawn(4, 3, 4)}, 4, 3)


def test_rows_that_cancel_never_understate_the_norm():
    """Two rows with the same input and opposite classes: what is left of the gradient is rounding, and its
    norm must not be below what the sum contains (weights of 1 / norm would multiply it)."""
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


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_person_with_many_identical_huge_rows_moves_the_sum_by_the_sensitivity_at_most(engine):
    """Through PrivateStep: with and without that person, the sums before noise differ by at most S."""
    torch.manual_seed(1)
    model, bound = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), 0.7
    inputs, rows = torch.randn(6, 5, 3), torch.ones(6, 5)
    inputs[0] = 1e4
    targets = with_weights(torch.ones(30, dtype=torch.int64), rows.flatten()).reshape(6, 5, 2)

    def total(units: slice) -> Tensor:
        step = PrivateStep(
            make_engine(engine, UnitModel(model), LOSS),
            equidp.DPSGD(bound),
            list(model.parameters()),
            event=Event(0.1, 1e-6),
            expected_batch_size=1.0,
            num_groups=1,
            randomness=SeededRandomness(0),
        )
        groups = torch.zeros(len(inputs[units]), dtype=torch.int64)
        return torch.cat([each.flatten() for each in step(inputs[units], targets[units], groups)])

    moved = (total(slice(None)) - total(slice(1, None))).norm()
    assert 0.9 * bound < moved <= bound * (1 + 1e-4)


def test_weights_of_single_rows_still_work():
    outputs = torch.zeros(2, 2)
    assert torch.equal(LOSS(outputs, torch.tensor([0, 1])), loss(outputs, torch.tensor([0, 1])))


def test_examples_that_do_not_come_first_are_refused():
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, values: Tensor) -> Tensor:
            return SumOfSquares()(self.layer(values.transpose(0, 1)).transpose(0, 1))

    engine = make_engine("ghost", UnitModel(Turned()), LOSS)
    with raises_field(ModelError, "model"):
        engine(torch.randn(4, 2, 3, 3), ragged(4, 2, torch.float32))


def test_a_frozen_part_and_none_of_the_rows():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    model[0].requires_grad_(False)
    targets = ragged(3, 2)
    targets[1, :, 1] = 0.0  # contributes nothing
    assert_exact(UnitModel(model), drawn(3, 2, 3), targets, loss=LOSS)
