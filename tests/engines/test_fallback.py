"""Modules without a rule: gradients by torch.func, for each of them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from equidp.engines import make_engine
from support.oracle import assert_exact, drawn, loss

BATCH = 7


class Own(nn.Module):
    """A module that owns parameters and is computed by a function of it and its inputs."""

    def __init__(self, compute: Callable[..., Any], **parameters: Tensor) -> None:
        super().__init__()
        self.compute = compute
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, values: Tensor) -> Any:
        return self.compute(self, values)


class Joined(nn.Module):
    """Sum over all outputs and positions of a module, and then a layer with a rule."""

    def __init__(self, own: nn.Module, width: int = 6) -> None:
        super().__init__()
        self.first, self.own, self.out = nn.Linear(6, 6), own, nn.Linear(width, 2)

    def forward(self, values: Tensor) -> Tensor:
        made = self.own(self.first(values))
        parts = made if isinstance(made, tuple) else (made["a"],) if isinstance(made, dict) else (made,)
        return self.out(sum(each.flatten(1, -2).sum(1) if each.dim() > 2 else each for each in parts))


def multiply(module: Own, values: Tensor) -> Tensor:
    return torch.einsum("bti,iho->btho", values, module.w).flatten(2)


def scan(module: Own, values: Tensor) -> Tensor:
    state, states = torch.zeros_like(values[:, 0]), []
    for place in range(values.shape[1]):
        state = torch.sigmoid(module.decay) * state + values[:, place]
        states.append(state)
    return torch.stack(states, dim=1)


def attend(module: Own, values: Tensor) -> Tensor:
    query, key, value = linear(values, module.weight).unsqueeze(1).chunk(3, -1)
    return scaled_dot_product_attention(query, key, value).squeeze(1)


def scaled_in_place(module: Own, values: Tensor) -> Tensor:
    return linear(values, module.weight).mul_(module.scale)


def two_layers(module: Own, values: Tensor) -> Tensor:
    return torch.tanh(linear(values, module.weight, module.bias)) @ module.weight


MODELS: dict[str, Callable[[], nn.Module]] = {
    "einsum": lambda: Own(multiply, w=drawn(6, 2, 3)),
    "scan": lambda: Own(scan, decay=drawn(6)),
    "attention": lambda: Own(attend, weight=drawn(18, 6)),
    "in place": lambda: Own(scaled_in_place, weight=drawn(6, 6), scale=drawn(6)),
    "several uses": lambda: Own(two_layers, weight=drawn(6, 6), bias=drawn(6)),
    "tuple": lambda: Own(lambda own, x: (x * own.w, x.sum(1) + own.w), w=drawn(6)),
    "mapping": lambda: Own(lambda own, x: {"a": x * own.w, "count": 3, "none": None}, w=drawn(6)),
    "with a layer": lambda: WithLayer(),
    "low rank": lambda: Own(lambda own, x: x + x @ own.a @ own.b, a=drawn(6, 2), b=drawn(2, 6)),
    "penalty": lambda: Own(lambda own, x: linear(x, own.w) + own.w.square().sum(), w=drawn(6, 6)),
    "stacked": lambda: Own(lambda own, x: linear(x, torch.cat([own.a, own.b])), a=drawn(2, 6), b=drawn(4, 6)),
    "examples second": lambda: Own(
        lambda own, x: linear(x.transpose(0, 1), own.w).transpose(0, 1), w=drawn(6, 6)),
    "examples joined": lambda: Own(
        lambda own, x: linear(x.reshape(-1, 6), own.w).reshape(*x.shape[:-1], 6), w=drawn(6, 6)),
    "changed after": lambda: nn.Sequential(Own(lambda own, x: x * own.w, w=drawn(6)), nn.ReLU(inplace=True)),
}  # fmt: skip


class WithLayer(nn.Module):
    """Layer scale, and a recurrent layer that torch.func cannot read as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.GRU(6, 6, batch_first=True), nn.Parameter(torch.randn(6))

    def forward(self, values: Tensor) -> Tensor:
        return values + self.scale * self.layer(values)[0]


def check_batches(model: nn.Module, *counts: int) -> None:
    """Hold one engine to single-example backward passes, in batches of several sizes."""
    engine = make_engine("ghost", model, loss)
    for count in counts:
        assert_exact(model, drawn(count, 5, 6), engine=lambda *_: engine, tolerance=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_a_module_without_a_rule_has_the_gradients_of_single_examples(name):
    torch.manual_seed(0)
    model = Joined(MODELS[name]()).double()
    check_batches(model, BATCH, 4, 1, BATCH)


def test_a_parameter_shared_with_a_layer_gets_both_gradients():
    model = Joined(Own(lambda own, x: x @ own.weight, weight=drawn(6, 6)))
    model.own.weight = model.first.weight
    check_batches(model.double(), BATCH)


class Around(nn.Module):
    """A model whose middle is a function of it and of a layer's outputs."""

    def __init__(self, compute: Callable[[Any, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.first, self.compute, self.out = nn.Linear(6, 6), compute, nn.Linear(6, 2)
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(self.compute(self, self.first(values)).sum(1))


class ScaledLayer(nn.Module):
    """A layer, which others may use too, and a scale."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.scale = layer, nn.Parameter(drawn(6))

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values) * self.scale


def padded(own: Own, values: Tensor) -> Tensor:
    return values + embedding((values[..., 0] > 0).long(), own.w, padding_idx=0)


def shared_layer() -> nn.Module:
    layer = nn.Linear(6, 6)
    return Around(lambda model, x: model.layer(x) + model.scaled(x), layer=layer, scaled=ScaledLayer(layer))


AROUND: dict[str, Callable[[], nn.Module]] = {
    "checkpointed": lambda: Around(lambda model, x: checkpoint(model.own, x, use_reentrant=False),
                       own=Own(two_layers, weight=drawn(6, 6), bias=drawn(6))),
    "padding": lambda: Around(lambda model, x: model.own(x), own=Own(padded, w=drawn(2, 6))),
    "a layer of two modules": shared_layer,
}  # fmt: skip


@pytest.mark.parametrize("name", AROUND)
def test_what_surrounds_a_module_sees_what_it_sees_without_an_engine(name):
    torch.manual_seed(0)
    model = AROUND[name]().double()
    check_batches(model, BATCH, 4, BATCH)
