"""Modules that read parameters of their own in products run once, at the cost of layers with a rule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from equidp.engines import make_engine
from equidp.engines.layers.decomposed import Products
from equidp.engines.units import UnitModel
from support.oracle import assert_exact, drawn, loss

BATCH = 7


class Own(nn.Module):
    """A module that owns parameters and is computed by a function of it and its inputs."""

    def __init__(self, compute: Callable[[Own, Tensor], Tensor], **parameters: Tensor) -> None:
        super().__init__()
        self.compute = compute
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, values: Tensor) -> Tensor:
        return self.compute(self, values)


class Between(nn.Module):
    """A layer with a rule, the module, and another one, on [batch, 4, 6] or on the first position alone."""

    def __init__(self, own: nn.Module, *, positions: bool) -> None:
        super().__init__()
        self.first, self.own, self.out, self.positions = nn.Linear(6, 6), own, nn.LazyLinear(2), positions

    def forward(self, values: Tensor) -> Tensor:
        read = self.first(values) if self.positions else self.first(values[:, 0])
        return self.out(torch.tanh(self.own(read)).flatten(1))


def multiply_if_possible(own: Own, values: Tensor) -> Tensor:
    outputs = linear(values, own.weight)
    with suppress(Exception):
        outputs = outputs * own.weight.sum()
    return outputs


def weight(rows: int = 5, columns: int = 6) -> dict[str, Tensor]:
    return {"weight": drawn(rows, columns)}


def shifted(rows: int = 5, columns: int = 6) -> dict[str, Tensor]:
    return weight(rows, columns) | {"bias": drawn(rows)}


TAKEN: dict[str, Callable[[], Own]] = {
    "linear": lambda: Own(lambda own, x: linear(x, own.weight), **weight()),
    "linear with a bias": lambda: Own(lambda own, x: linear(x, own.weight, own.bias), **shifted()),
    "named": lambda: Own(lambda own, x: linear(input=x, weight=own.weight, bias=own.bias), **shifted()),
    "operator": lambda: Own(lambda own, x: x @ own.weight.T + own.bias, **shifted()),
    "bias first": lambda: Own(lambda own, x: own.bias + x @ own.weight.mT, **shifted()),
    "turned": lambda: Own(lambda own, x: x @ own.weight, **weight(6, 5)),
    "linear of a turned one": lambda: Own(lambda own, x: linear(x, own.weight.t()), **weight(6, 5)),
    "turned with a bias": lambda: Own(
        lambda own, x: torch.matmul(x, own.weight) + own.bias, weight=drawn(6, 5), bias=drawn(5)
    ),
    "two weights": lambda: Own(
        lambda own, x: torch.tanh(x @ own.one).matmul(own.other), one=drawn(6, 4), other=drawn(4, 3)
    ),
    "one weight twice": lambda: Own(lambda own, x: torch.tanh(x @ own.weight) @ own.weight, **weight(6, 6)),
    "shape is read": lambda: Own(
        lambda own, x: linear(x, own.weight) / own.weight.shape[1] ** 0.5 / own.weight.size(0), **weight()
    ),
    "low rank": lambda: Own(lambda own, x: x + x @ own.a @ own.b, a=drawn(6, 2), b=drawn(2, 6)),
    "changed in place": lambda: Own(lambda own, x: linear(x, own.weight).mul_(2.0).tanh_(), **weight()),
    "values without a gradient": lambda: Own(
        lambda own, x: linear(x, own.weight) + own.weight.detach().sum(), **weight()
    ),
}
"""Modules by how they read parameters, of inputs [batch, 6] and [batch, positions, 6]."""
ALONE: dict[str, Callable[[], Own]] = {
    "addmm": lambda: Own(
        lambda own, x: torch.addmm(own.bias, x, own.weight), weight=drawn(6, 5), bias=drawn(5)
    ),
    "addmm of a turned one": lambda: Own(lambda own, x: torch.addmm(own.bias, x, own.weight.T), **shifted()),
    "heads": lambda: Own(lambda own, x: torch.einsum("bi,iho->bho", x, own.weight), weight=drawn(6, 2, 3)),
    "heads first": lambda: Own(
        lambda own, x: torch.einsum("hoi,bi->boh", own.weight, x), weight=drawn(2, 3, 6)
    ),
    "several features": lambda: Own(
        lambda own, x: torch.einsum("bij,ijo->bo", x.unflatten(1, (2, 3)), own.weight), weight=drawn(2, 3, 5)
    ),
}
"""The same of inputs [batch, 6] alone."""
AT_POSITIONS: dict[str, Callable[[], Own]] = {
    "positions": lambda: Own(lambda own, x: torch.einsum("bti,io->bto", x, own.weight), weight=drawn(6, 5)),
    "positions, outputs first": lambda: Own(
        lambda own, x: torch.einsum("bti,oi->bot", x, own.weight), weight=drawn(5, 6)
    ),
    "positions mixed": lambda: Own(
        lambda own, x: torch.einsum("bti,st->bsi", x, own.weight), weight=drawn(3, 4)
    ),
    "heads at positions": lambda: Own(
        lambda own, x: torch.einsum("bti,iho->bhto", x, own.weight), weight=drawn(6, 2, 3)
    ),
    "every position and feature": lambda: Own(
        lambda own, x: torch.einsum("bti,tiho->bho", x, own.weight), weight=drawn(4, 6, 2, 3)
    ),
}
"""The same of inputs [batch, positions, 6] alone."""
LEFT: dict[str, Callable[[], Own]] = {
    "scale": lambda: Own(lambda own, x: x * own.scale, scale=drawn(6)),
    "product and scale": lambda: Own(
        lambda own, x: own.scale * linear(x, own.weight), scale=drawn(5), **weight()
    ),
    "penalty": lambda: Own(lambda own, x: linear(x, own.weight) + own.weight.square().sum(), **weight()),
    "both ways": lambda: Own(lambda own, x: torch.tanh(x @ own.weight) @ own.weight.T, **weight(6, 6)),
    "sum with a number": lambda: Own(lambda own, x: linear(x, own.weight) + (own.bias + 1.0), **shifted()),
    "a part": lambda: Own(lambda own, x: linear(x, own.weight[:3]), **weight()),
    "no longer by example": lambda: Own(
        lambda own, x: linear(x.reshape(-1, 6), own.weight).reshape(*x.shape[:-1], 5), **weight()
    ),
    "examples second": lambda: Own(
        lambda own, x: linear(x.transpose(0, 1), own.weight).transpose(0, 1), **weight()
    ),
    "a weight for each position": lambda: Own(
        lambda own, x: torch.einsum("bti,tio->bto", x, own.weight), weight=drawn(4, 6, 5)
    ),
    "not for all": lambda: Own(
        lambda own, x: linear(x, own.weight) + torch.no_grad()(linear)(x, own.other),
        **weight(),
        other=drawn(5, 6),
    ),
    "not seen": lambda: Own(
        lambda own, x: torch.ops.aten.add.Tensor(linear(x, own.weight), own.other), **weight(), other=drawn(5)
    ),
    "function with a backward pass": lambda: Own(lambda own, x: Multiply.apply(x, own.weight), **weight()),
    "with another way": lambda: Own(multiply_if_possible, **weight()),
    "stacked": lambda: Own(lambda own, x: linear(x, torch.cat([own.a, own.b])), a=drawn(2, 6), b=drawn(3, 6)),
}
"""Modules that read parameters in other ways, of inputs [batch, positions, 6]."""


class Multiply(torch.autograd.Function):
    """A product that torch.func can take, with a backward pass of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, weight: Tensor) -> Tensor:
        return values @ weight.T

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        values, weight = context.saved_tensors
        return gradient @ weight, (gradient.mT @ values).flatten(0, -3).sum(0)


def products_in(model: nn.Module, inputs: Tensor, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of products that an engine records in a batch after its first."""
    engine, targets = make_engine("ghost", model, loss), torch.arange(len(inputs)) % 2
    engine(inputs, targets)
    found, record = [], Products.record
    monkeypatch.setattr(Products, "record", lambda *given: (found.append(1), record(*given))[1])
    engine(inputs, targets)
    return len(found)


def made(own: Callable[[], Own], *, positions: bool) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, inputs = Between(own(), positions=positions).double(), drawn(BATCH, 4, 6)
    model(inputs)
    return model, inputs


@pytest.mark.parametrize(
    ("own", "positions"),
    [
        *(pytest.param(own, False, id=f"{name}, rows") for name, own in (TAKEN | ALONE).items()),
        *(pytest.param(own, True, id=f"{name}, positions") for name, own in (TAKEN | AT_POSITIONS).items()),
    ],
)
def test_products_with_parameters_of_a_module_have_the_gradients_of_single_examples(
    own, positions, monkeypatch
):
    model, inputs = made(own, positions=positions)
    assert_exact(model, inputs)
    assert products_in(model, inputs, monkeypatch) > 0


@pytest.mark.parametrize("name", LEFT)
def test_other_readings_of_a_parameter_are_left_to_torch_func(name, monkeypatch):
    model, inputs = made(LEFT[name], positions=True)
    assert_exact(model, inputs)
    assert products_in(model, inputs, monkeypatch) == 0


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_has_no_gradient(frozen):
    model, inputs = made(TAKEN["linear with a bias"], positions=True)
    getattr(model.own, frozen).requires_grad_(False)
    assert_exact(model, inputs)


def test_a_parameter_shared_with_a_layer_gets_both_gradients():
    model, inputs = made(lambda: Own(lambda own, x: x @ own.weight, **weight(6, 6)), positions=True)
    model.own.weight = model.first.weight
    assert_exact(model, inputs)


def test_a_module_that_is_called_twice_gets_both_gradients():
    model, inputs = made(
        lambda: Own(lambda own, x: torch.tanh(x @ own.weight), **weight(6, 6)), positions=True
    )
    assert_exact(nn.Sequential(model.own, model), inputs)


def test_examples_of_several_rows_have_one_gradient():
    own = Own(lambda own, x: x @ own.weight + own.bias, weight=drawn(6, 2), bias=drawn(2))
    model = UnitModel(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), own)).double()
    inputs = drawn(BATCH, 3, 6)

    def of_units(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(outputs.flatten(0, 1), targets.repeat_interleave(3)).unflatten(0, (-1, 3)).sum(dim=1)

    assert_exact(model, inputs, loss=of_units)


class Branching(nn.Module):
    """Reads its weight in another way from its third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.calls = nn.Parameter(drawn(5, 6)), [0]

    def forward(self, values: Tensor) -> Tensor:
        self.calls[0] += 1
        outputs = linear(values, self.weight)
        return outputs if self.calls[0] < 3 else outputs * self.weight.square().sum()


def test_a_module_that_reads_otherwise_later_on_is_left_to_torch_func_then():
    torch.manual_seed(0)
    own = Branching()
    model, inputs = nn.Sequential(own, nn.Linear(5, 2)).double(), drawn(BATCH, 6)
    engine, targets = make_engine("ghost", model, loss), torch.arange(BATCH) % 2
    for _ in range(3):
        measured = engine(inputs, targets)
    expected = make_engine("functional", model, loss)(inputs, targets)
    torch.testing.assert_close(measured.norms, expected.norms)
