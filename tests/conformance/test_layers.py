"""Conformance of layers: exact norms and sums whatever the layer; a new one needs a line in CASES."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, final

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from equidp.engines import ENGINES, check_engine, make_engine
from equidp.engines.layers import RULES, rule_for
from equidp.engines.layers.rule import LayerGradients, Rule, run_layer
from equidp.engines.layers.sums import ByName, by_example
from equidp.engines.units import UnitModel
from equidp.errors import ModelError
from equidp.losses import Loss
from support.errors import raises_field
from support.oracle import SumOfSquares, assert_exact, loss
from support.units import assert_units


class OwnScale(nn.Module):
    """A user-defined layer: a factor for each feature, which must come last."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.weight


@final
class OwnScaleGradients(LayerGradients):
    """The gradient of a factor: output gradient times input, summed over rows and positions."""

    def example_gradients(self) -> ByName:
        inputs, gradient = self.pair()
        products = by_example(inputs * gradient, self.rows)
        return {"weight": products.flatten(1, -2).sum(dim=1)}


@final
class WrongGradients(LayerGradients):
    """Forgets the input."""

    def example_gradients(self) -> ByName:
        _, gradient = self.pair()
        return {"weight": by_example(gradient, self.rows).flatten(1, -2).sum(dim=1)}


OWN_SCALE, WRONG_SCALE = (
    Rule(partial(run_layer, gradients)) for gradients in (OwnScaleGradients, WrongGradients)
)


class Sequences(nn.Module):
    """A recurrent layer, read by its outputs and its last states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, values: Tensor) -> Tensor:
        outputs, states = self.layer(values)
        states = states if isinstance(states, tuple) else (states,)
        return torch.cat([outputs.flatten(1), *(each.transpose(0, 1).flatten(1) for each in states)], dim=1)


class Attention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values, values, values)[0]


class Pairs(nn.Module):
    """A Bilinear layer of the numbers and their squares."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.layer = nn.Bilinear(4, 4, 3, bias=bias)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values, values.square())


class Case(NamedTuple):
    """A layer, and the shape of one of its inputs: normal numbers, or token ids below a vocabulary."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    vocabulary: int = 0


CASES = {
    "linear": Case(lambda: nn.Linear(4, 3), (4,)),
    "linear without bias": Case(lambda: nn.Linear(4, 3, bias=False), (4,)),
    "linear at positions": Case(lambda: nn.Linear(4, 3), (2, 5, 4)),
    "conv1d": Case(lambda: nn.Conv1d(2, 3, 2), (2, 6)),
    "conv2d": Case(lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), (2, 5, 6)),
    "conv1d of 8 channels": Case(lambda: nn.Conv1d(8, 8, 2, padding=1, padding_mode="reflect"), (8, 5)),
    "conv2d, groups of 8": Case(lambda: nn.Conv2d(16, 16, 3, stride=2, dilation=2, groups=2), (16, 7, 6)),
    "conv2d, same": Case(lambda: nn.Conv2d(2, 2, 2, padding="same"), (2, 5, 4)),
    "depthwise conv1d": Case(lambda: nn.Conv1d(4, 4, 3, dilation=2, padding=2, groups=4, bias=False), (4, 6)),
    "conv3d": Case(lambda: nn.Conv3d(2, 3, 2, bias=False), (2, 3, 4, 3)),
    "transposed conv1d": Case(lambda: nn.ConvTranspose1d(2, 3, 2), (2, 5)),
    "transposed conv2d": Case(lambda: nn.ConvTranspose2d(2, 4, 3, stride=2, groups=2), (2, 3, 4)),
    "transposed, groups of 8": Case(lambda: nn.ConvTranspose2d(16, 16, 2, stride=2, groups=2), (16, 3, 2)),
    "transposed, dilated": Case(
        lambda: nn.ConvTranspose2d(2, 4, 2, 3, padding=1, output_padding=2, dilation=2, bias=False), (2, 3, 2)
    ),
    "transposed conv3d": Case(lambda: nn.ConvTranspose3d(2, 3, 2), (2, 3, 2, 3)),
    "embedding with padding": Case(lambda: nn.Embedding(4, 3, padding_idx=0), (6,), vocabulary=4),
    "bag, sum": Case(lambda: nn.EmbeddingBag(4, 3, mode="sum"), (6,), vocabulary=4),
    "bag, mean": Case(lambda: nn.EmbeddingBag(4, 3, mode="mean"), (6,), vocabulary=4),
    "layer norm": Case(lambda: nn.LayerNorm(6), (6,)),
    "layer norm of two dimensions": Case(lambda: nn.LayerNorm((3, 6)), (2, 3, 6)),
    "layer norm without bias": Case(lambda: nn.LayerNorm(6, bias=False), (4, 6)),
    "rms norm at positions": Case(lambda: nn.RMSNorm(6), (4, 6)),
    "group norm": Case(lambda: nn.GroupNorm(2, 6), (6, 4, 3)),
    "group norm without places": Case(lambda: nn.GroupNorm(3, 6), (6,)),
    "instance norm 1d": Case(lambda: nn.InstanceNorm1d(3, affine=True), (3, 7)),
    "instance norm 2d": Case(lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 5)),
    "instance norm 3d": Case(lambda: nn.InstanceNorm3d(3, affine=True), (3, 2, 3, 4)),
    "rnn": Case(lambda: Sequences(nn.RNN(3, 4, batch_first=True)), (5, 3)),
    "lstm": Case(lambda: Sequences(nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)), (5, 3)),
    "gru": Case(lambda: Sequences(nn.GRU(3, 4, batch_first=True)), (5, 3)),
    "attention": Case(lambda: Attention(8, 2), (5, 8)),
    "bilinear": Case(lambda: Pairs(bias=True), (4,)),
    "bilinear at positions": Case(lambda: Pairs(bias=False), (5, 4)),
    "weight norm": Case(lambda: weight_norm(nn.Linear(4, 3)), (2, 4)),
    "weight norm of a whole weight": Case(lambda: weight_norm(nn.Linear(4, 3), dim=None), (4,)),
    "weight norm of a convolution": Case(lambda: weight_norm(nn.Conv2d(2, 3, 2), dim=1), (2, 4, 5)),
    "weight norm, transposed": Case(lambda: weight_norm(nn.ConvTranspose1d(2, 1, 2, bias=False)), (2, 5)),
    "no rule": Case(lambda: nn.PReLU(3), (3, 4)),
    "own rule": Case(lambda: OwnScale(4), (3, 4)),
}


@pytest.fixture(autouse=True)
def _own_layer(monkeypatch):
    """The line in the table of rules that a new layer needs."""
    monkeypatch.setitem(RULES, OwnScale, OWN_SCALE)
    torch.manual_seed(0)


def test_every_rule_has_a_case():
    kinds = {type(module) for case in CASES.values() for module in case.make().modules()}
    assert set(RULES) <= kinds


def test_a_layer_of_ones_own_is_read_by_its_rule():
    assert rule_for(OwnScale(4)) is OWN_SCALE


def test_a_layer_whose_weight_is_made_from_other_parameters_has_no_rule():
    assert rule_for(weight_norm(nn.Conv1d(2, 3, 2))) is None


def test_a_wrong_rule_of_ones_own_is_found_out(monkeypatch):
    monkeypatch.setitem(RULES, OwnScale, WRONG_SCALE)
    model, inputs = nn.Sequential(OwnScale(4), SumOfSquares()), torch.randn(4, 3, 4)
    with pytest.raises(AssertionError):
        assert_exact(model, inputs)
    with raises_field(ModelError, "gradients"):
        check_engine(make_engine("ghost", model, loss), model, loss, inputs, torch.arange(4) % 2)


class ChangesItsInput(nn.Module):
    """Writes over what its layer read, in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        values = values.clone()
        outputs = self.layer(values)
        values.mul_(3)
        return outputs


def test_an_input_that_changes_before_its_gradients_are_summed_is_refused():
    """Norms and sums would be of other numbers; `check_rows` looks at few batches, this at each."""
    inputs, targets = torch.randn(4, 4), torch.arange(4) % 2
    with raises_field(ModelError, "Linear"):
        make_engine("ghost", ChangesItsInput(), loss)(inputs, targets)
    measured = make_engine("ghost", nn.Linear(4, 2), loss)(inputs, targets)
    inputs.mul_(3)
    with raises_field(ModelError, "Linear"):
        measured.sums(torch.ones(4))


class Twice(nn.Module):
    """One layer called on an input and on its examples' values in another order."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([self.layer(values).flatten(1), self.layer(values.flip(-1)).flatten(1)], dim=1)


@pytest.mark.parametrize("name", CASES)
class TestLayer:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_norms_and_sums_are_those_of_single_backward_passes(self, name: str, engine: str) -> None:
        """Of several examples, of one, and of inputs of zero; in single precision too."""
        inputs = self.inputs(name, 5, torch.float64)
        for given in (inputs, inputs[:1], torch.zeros_like(inputs)):
            assert_exact(self.model(name).double(), given, engine=engine)
        assert_exact(self.model(name), self.inputs(name, 5), engine=engine, tolerance=2e-5)

    def test_examples_of_several_rows(self, name: str) -> None:
        inputs = self.inputs(name, 12, torch.float64).unflatten(0, (4, 3))
        assert_units(self.model(name).double(), inputs, 4, 3, engines=("ghost",))

    def test_a_layer_called_twice(self, name: str) -> None:
        model = nn.Sequential(Twice(self.layer(name)), SumOfSquares()).double()
        assert_exact(model, self.inputs(name, 4, torch.float64))

    def test_every_other_parameter_frozen(self, name: str) -> None:
        model, inputs = self.model(name).double(), self.inputs(name, 4, torch.float64)
        model = nn.Sequential(model, nn.Linear(2, 2).double())
        for first in (0, 1):
            for place, parameter in enumerate(model[0].parameters()):
                parameter.requires_grad_(place % 2 == first)
            assert_exact(model, inputs)
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_sums_are_float64_and_of_the_parameters_shapes(self, name: str) -> None:
        model, inputs, targets = self.model(name), self.inputs(name, 6), torch.arange(6) % 2
        weighted = torch.stack([targets.float(), torch.ones(6)], dim=1).unflatten(0, (2, 3))
        for measured in (
            make_engine("ghost", model, loss)(inputs, targets),
            make_engine("ghost", UnitModel(model), Loss(loss).by_example())(
                inputs.unflatten(0, (2, 3)), weighted
            ),
        ):
            sums = measured.sums(torch.ones(len(measured.norms)))
            assert set(sums) == set(model.parameters())
            assert all(total.dtype == torch.float64 for total in sums.values())
            assert all(total.shape == parameter.shape for parameter, total in sums.items())

    def test_a_spoilt_example_leaves_the_others_alone(self, name: str) -> None:
        """Its norm is not finite, and it adds nothing whatever its weight."""

        def scaled(outputs: Tensor, sizes: Tensor) -> Tensor:
            return outputs.sum(dim=1) * sizes

        model, inputs = self.model(name), self.inputs(name, 4)
        made = make_engine("ghost", model, scaled)
        alone = made(inputs[:3], torch.ones(3))
        expected = alone.sums(torch.ones(3))
        for bad in (torch.inf, torch.nan):
            spoilt = made(inputs, torch.tensor([1.0, 1.0, 1.0, bad]))
            torch.testing.assert_close(spoilt.norms[:3], alone.norms)
            assert not spoilt.norms[3].isfinite()
            for parameter, total in spoilt.sums(torch.ones(4)).items():
                torch.testing.assert_close(total, expected[parameter], rtol=1e-5, atol=1e-6)

    def layer(self, name: str) -> nn.Module:
        """The layer, with parameters that are not those of its start: a scale of 1 would hide much."""
        layer = CASES[name].make()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.normal_()
        return layer

    def model(self, name: str) -> nn.Module:
        return nn.Sequential(self.layer(name), SumOfSquares())

    def inputs(self, name: str, batch: int, precision: torch.dtype = torch.float32) -> Tensor:
        _, shape, vocabulary = CASES[name]
        if vocabulary:
            return torch.randint(0, vocabulary, (batch, *shape))
        return torch.randn(batch, *shape, dtype=precision)
