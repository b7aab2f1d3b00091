"""Modules without a rule run twice at first, and once where that showed how."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import equidp
from equidp.engines import make_engine
from equidp.engines.layers.fallback import Known
from equidp.engines.units import UnitModel
from support.oracle import assert_exact, drawn, loss, single_gradients

BATCH = 7


class Own(nn.Module):
    """A module that owns parameters and is computed by a function of it and its inputs."""

    def __init__(self, compute: Callable[..., Any], **parameters: Tensor) -> None:
        super().__init__()
        self.compute, self.runs = compute, Runs()
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, values: Tensor) -> Any:
        self.runs.count += 1
        return self.compute(self, values)


class Runs:
    """Number of calls of a module, which is no part of what it holds."""

    count = 0


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
    "F.linear": lambda: Own(lambda own, x: linear(x, own.w, own.b), w=drawn(6, 6), b=drawn(6)),
    "scan": lambda: Own(scan, decay=drawn(6)),
    "attention": lambda: Own(attend, weight=drawn(18, 6)),
    "in place": lambda: Own(scaled_in_place, weight=drawn(6, 6), scale=drawn(6)),
    "several uses": lambda: Own(two_layers, weight=drawn(6, 6), bias=drawn(6)),
    "tuple": lambda: Own(lambda own, x: (x * own.w, x.sum(1) + own.w), w=drawn(6)),
    "mapping": lambda: Own(lambda own, x: {"a": x * own.w, "count": 3, "none": None}, w=drawn(6)),
    "unused": lambda: Own(lambda own, x: x * own.w, w=drawn(6), unused=drawn(3)),
    "with a layer": lambda: WithLayer(),
    "changed after": lambda: nn.Sequential(Own(lambda own, x: x * own.w, w=drawn(6)), nn.ReLU(inplace=True)),
}  # fmt: skip


class WithLayer(nn.Module):
    """Layer scale, and a recurrent layer that torch.func cannot read as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.GRU(6, 6, batch_first=True), nn.Parameter(torch.randn(6))

    def forward(self, values: Tensor) -> Tensor:
        return values + self.scale * self.layer(values)[0]


def check_batch(engine: Any, model: nn.Module, count: int, seed: int) -> None:
    """Hold norms and sum of a batch to single-example backward passes."""
    torch.manual_seed(seed)
    inputs, targets = drawn(count, 5, 6), torch.arange(count) % 2
    expected = single_gradients(model, inputs, targets)
    measured = engine(inputs, targets)
    torch.testing.assert_close(measured.norms, expected.norm(dim=1), rtol=1e-9, atol=0)
    weights = torch.linspace(0.2, 1.0, count, dtype=torch.float64)
    sums = measured.sum_gradients(weights)
    found = torch.cat(
        [
            sums.get(each, torch.zeros_like(each)).flatten()
            for each in model.parameters()
            if each.requires_grad
        ]
    )
    torch.testing.assert_close(found, weights @ expected, rtol=1e-9, atol=1e-9)


def known(engine: Any) -> list[Known]:
    sites = [site for site in engine._sites if site.rule is None and site.decomposed is None]
    return [SimpleNamespace(by_example=True) if site.reads_products else site.known for site in sites]


@pytest.mark.parametrize("name", MODELS)
def test_a_module_that_runs_once_has_the_gradients_of_single_examples(name):
    torch.manual_seed(0)
    model = Joined(MODELS[name]()).double()
    engine = make_engine("ghost", model, loss)
    for seed, count in enumerate((BATCH, 4, 1, BATCH)):
        check_batch(engine, model, count, seed)
        assert [each.by_example for each in known(engine)] == [True]


def test_a_module_runs_once_after_its_first_batch_unless_its_gradients_are_many(monkeypatch):
    model = Joined(MODELS["einsum"]()).double()
    engine, runs = make_engine("ghost", model, loss), model.own.runs
    engine.run_modules_twice()
    for site in engine._sites:
        site.known.by_example = None
    inputs, targets = drawn(BATCH, 5, 6), torch.arange(BATCH) % 2
    counts = []
    for kept in (10**6, 10**6, 36 * BATCH, 36 * BATCH - 1):
        monkeypatch.setattr("equidp.engines.layers.fallback.KEPT_ANYWAY", kept)
        before = runs.count
        engine(inputs, targets)
        counts.append(runs.count - before)
    assert counts == [2, 1, 1, 2]


def test_a_frozen_parameter_and_a_module_that_is_called_twice_run_once():
    model = Joined(
        Own(lambda own, x: torch.tanh(x * own.scale) @ own.weight, scale=drawn(6), weight=drawn(6, 6))
    )
    model.own.scale.requires_grad_(False)
    model = nn.Sequential(model.own, model).double()
    engine = make_engine("ghost", model, loss)
    for seed in range(3):
        check_batch(engine, model, BATCH, seed)
    assert [each.by_example for each in known(engine)] == [True]


def storing(own: Own, values: Tensor) -> Tensor:
    own.last = values * own.w
    return own.last


def appending(own: Own, values: Tensor) -> Tensor:
    own.seen[:] = [values * own.w]
    return own.seen[0]


def with_dropout(own: Own, values: Tensor) -> Tensor:
    return nn.functional.dropout(values, 0.2) * own.w


class ReadsWhatIsStored(Joined):
    """Adds what its module stored, a constant, to what it gave."""

    def forward(self, values: Tensor) -> Tensor:
        made = self.own(self.first(values))
        stored = self.own.seen[0] if self.own.seen else self.own.last
        return self.out((made + stored.detach()).sum(1))


@pytest.mark.parametrize("compute", [storing, appending])
def test_what_a_call_stores_is_the_whole_batch_as_without_an_engine(compute):
    own = Own(compute, w=drawn(6))
    own.seen = []
    model = ReadsWhatIsStored(own).double()
    engine = make_engine("ghost", model, loss)
    for seed in range(3):
        check_batch(engine, model, BATCH, seed)
    assert [each.by_example for each in known(engine)] == [False]


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


def with_a_number(own: Own, values: Tensor) -> Any:
    return values * own.w, own.w.sum()


def with_an_object(own: Own, values: Tensor) -> Any:
    return values * own.w, SimpleNamespace(mask=(values > 0).to(values))


def with_a_constant(own: Own, values: Tensor) -> Any:
    return values * own.w, torch.full((len(values), 1, 6), 2.0, dtype=values.dtype)


def change_constant(model: Any, values: Tensor) -> Tensor:
    made, constant = model.own(values)
    return made * constant.add_(1.0)


def storing_deep(own: Own, values: Tensor) -> Tensor:
    made = values * own.w
    own.held["a"].last = (made.detach() > 0).to(made)
    return made


def padded(own: Own, values: Tensor) -> Tensor:
    return values + embedding((values[..., 0] > 0).long(), own.w, padding_idx=0)


def frequent(own: Own, values: Tensor) -> Tensor:
    return values + embedding((values[..., 0] > 0).long(), own.w, scale_grad_by_freq=True)


def read_held(model: Any, values: Tensor) -> Tensor:
    return model.own(values) * model.own.held["a"].last


def shared_layer() -> nn.Module:
    layer = nn.Linear(6, 6)
    return Around(lambda model, x: model.layer(x) + model.scaled(x), layer=layer, scaled=ScaledLayer(layer))


AROUND: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "one number beside": (
        lambda: Around(lambda model, x: model.own(x)[0], own=Own(with_a_number, w=drawn(6))), False),
    "an object beside": (
        lambda: Around(lambda model, x: (lambda made, held: made * held.mask)(*model.own(x)),
                       own=Own(with_an_object, w=drawn(6))), False),
    "a constant changed in place": (
        lambda: Around(change_constant, own=Own(with_a_constant, w=drawn(6))), True),
    "stored deep inside": (
        lambda: Around(read_held, own=Own(storing_deep, w=drawn(6))), False),
    "checkpointed": (
        lambda: Around(lambda model, x: checkpoint(model.own, x, use_reentrant=False),
                       own=Own(two_layers, weight=drawn(6, 6), bias=drawn(6))), True),
    "padding": (lambda: Around(lambda model, x: model.own(x), own=Own(padded, w=drawn(2, 6))), False),
    "frequencies": (lambda: Around(lambda model, x: model.own(x), own=Own(frequent, w=drawn(2, 6))), False),
    "a layer of two modules": (shared_layer, True),
}  # fmt: skip
"""Models, and whether the module with parameters of its own runs once."""


@pytest.mark.parametrize("name", AROUND)
def test_what_surrounds_a_module_sees_what_it_sees_without_an_engine(name):
    torch.manual_seed(0)
    make, once = AROUND[name]
    model = make().double()
    if name == "stored deep inside":
        model.own.held = {"a": SimpleNamespace(last=None)}
    engine = make_engine("ghost", model, loss)
    for seed, count in enumerate((BATCH, 4, BATCH)):
        check_batch(engine, model, count, seed)
    assert [each.by_example for each in known(engine)] == [once]


@pytest.mark.parametrize("why", ["random numbers", "hook", "one output for all"])
def test_other_modules_run_twice(why):
    own = Own(with_dropout if why == "random numbers" else lambda own, x: x * own.w, w=drawn(6))
    if why == "hook":
        own.register_forward_hook(lambda module, inputs, outputs: None)
    if why == "one output for all":
        own.compute = lambda own, x: own.w.expand(5, 6)
    model = Joined(own).double()
    engine = make_engine("ghost", model, loss)
    for runs in (3, 2):  # in the first batch a run is given up where the parameter is read in no product
        before = own.runs.count
        engine(drawn(BATCH, 5, 6), torch.arange(BATCH) % 2)
        assert own.runs.count - before == runs
    assert [each.by_example for each in known(engine)] == [False]


def test_a_module_that_draws_numbers_later_on_is_run_twice_again():
    def compute(own: Own, values: Tensor) -> Tensor:
        return with_dropout(own, values) if own.draws else values * own.w

    own = Own(compute, w=drawn(6))
    own.draws = False
    model = Joined(own).double()
    engine = make_engine("ghost", model, loss)
    for draws, once in ((False, True), (False, True), (True, False), (False, False)):
        own.draws = draws
        assert engine(drawn(BATCH, 5, 6), torch.arange(BATCH) % 2).norms.isfinite().all()
        assert [each.by_example for each in known(engine)] == [once]
    check_batch(engine, model, BATCH, 0)


def test_examples_of_several_rows_run_once():
    model = Joined(MODELS["einsum"]()).double()
    engine = make_engine("ghost", UnitModel(model), lambda outputs, targets: loss(
        outputs.flatten(0, 1), targets.flatten()).reshape(targets.shape).sum(1))  # fmt: skip
    inputs, targets = drawn(4, 3, 5, 6), torch.arange(12).reshape(4, 3) % 2
    rows = single_gradients(model, inputs.flatten(0, 1), targets.flatten())
    expected = rows.reshape(4, 3, -1).sum(1).norm(dim=1)
    for _ in range(2):
        torch.testing.assert_close(engine(inputs, targets).norms, expected, rtol=1e-9, atol=0)
    assert [each.by_example for each in known(engine)] == [True]


class ScaledTable(nn.Embedding):
    """A table whose padding has no gradient, in a layer of its own kind, as BART has one."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * 2.0


class PaddedLookup(nn.Module):
    """The same by a function, which no rule and no type of module shows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 3))

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.table, padding_idx=0)


def reader(table: nn.Module) -> nn.Module:
    return nn.Sequential(table, nn.Flatten(), nn.Linear(12, 2))


def test_padding_of_a_table_has_no_gradient_in_any_batch():
    tokens = torch.tensor([[0, 1, 2, 3], [4, 0, 0, 5], [1, 1, 0, 2]])
    assert_exact(reader(ScaledTable(6, 3, padding_idx=0)).double(), tokens)


def test_a_module_whose_copies_have_other_gradients_is_run_twice_after_its_trial():
    """vmap leaves out that padding has no gradient, which the trial finds."""
    tokens = torch.arange(80).reshape(20, 4) % 6
    model = reader(PaddedLookup())
    data = equidp.GroupedDataset(tokens, torch.arange(20) % 2, torch.zeros(20).long(), ("a",), ("n", "y"))
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        policy=equidp.DPSGD(),
        batch_size=10,
        steps=1,
        noise_multiplier=1.0,
        delta=1e-3,
    )
    oracle = single_gradients(model, tokens, data.targets, loss).norm(dim=1)
    for _ in range(2):
        torch.testing.assert_close(trainer.engine(tokens, data.targets).norms, oracle, rtol=1e-4, atol=1e-6)
