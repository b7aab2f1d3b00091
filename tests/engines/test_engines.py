"""Engines in what the contract of all engines leaves open: modules run again, refusals, traces in a model."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equidp.engines import ENGINES, check_engine, check_model, make_engine
from equidp.engines.functional import FunctionalEngine
from equidp.engines.layers import RULES, rule_for
from equidp.errors import ModelError, SettingError
from equidp.models import MODELS
from support.errors import raises_field
from support.oracle import add_gradients, assert_exact, drawn, loss, single_gradients


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("size", [1e-3, 1e-2, 1.0])
@pytest.mark.parametrize("layer", ["linear", "embedding"])
def test_norms_are_not_understated_where_terms_cancel(layer, size):
    """Output gradients nearly cancel over positions: a norm of 0 in float32 must not hide what is left."""

    class Difference(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return (1e4 * (values[:, 0] - (1 + size * 1e-3) * values[:, 1])).sum(dim=1)

    if layer == "linear":
        model, inputs = (
            nn.Sequential(nn.Linear(64, 64, bias=False), Difference()),
            torch.randn(8, 1, 64).repeat(1, 2, 1),
        )
        row_norms = inputs[:, 0].norm(dim=1)
    else:
        model, inputs = nn.Sequential(nn.Embedding(3, 64), Difference()), torch.zeros(8, 2, dtype=torch.int64)
        row_norms = torch.ones(8)
    # One output gradient is 1e4 everywhere, the other -1e4 (1 + size / 1000): 64 differences are left.
    true = 1e4 * size * 1e-3 * 8 * row_norms
    norms = make_engine("ghost", model, lambda outputs, targets: outputs)(inputs, torch.zeros(8)).norms
    assert (norms >= 0.99 * true).all()


def test_a_batch_in_chunks_equals_one_chunk_with_the_same_dropout():
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2)).double()
    inputs, targets = drawn(7, 6), torch.arange(7) % 2
    engine = FunctionalEngine(model, loss, chunk_size=3)
    torch.manual_seed(1)
    norms = engine(inputs, targets).norms
    gradients = []
    for index in range(7):
        torch.manual_seed(1)
        measured = engine(inputs, targets)
        model.zero_grad()
        add_gradients(measured, torch.eye(7, dtype=torch.float64)[index])
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
    torch.testing.assert_close(torch.stack(gradients), norms)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_added_to_what_is_there(engine):
    model = nn.Linear(3, 2).double()
    made = make_engine(engine, model, loss)
    inputs, targets = drawn(4, 3), torch.zeros(4, dtype=torch.int64)
    for _ in range(2):
        add_gradients(made(inputs, targets), torch.ones(4, dtype=torch.float64))
    twice = model.weight.grad.clone()
    model.zero_grad()
    add_gradients(made(inputs, targets), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(twice, 2 * model.weight.grad)


def test_the_model_is_left_without_trace():
    model = MODELS["small-cnn"]((1, 8, 8), 3)
    before = pickle.dumps(model)
    engine = make_engine("ghost", model, loss)
    engine(torch.randn(2, 1, 8, 8), torch.tensor([0, 1]))
    assert pickle.dumps(model) == before
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    copy.deepcopy(model)
    with pytest.raises(RuntimeError):
        engine(torch.randn(2, 5), torch.tensor([0, 1]))
    assert pickle.dumps(model) == before
    assert torch.backends.mha.get_fastpath_enabled()


def test_inputs_that_require_a_gradient_change_nothing():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    inputs, targets = drawn(3, 4), torch.tensor([0, 1, 0])
    engine = make_engine("ghost", model, loss)
    torch.testing.assert_close(
        engine(inputs.clone().requires_grad_(), targets).norms,
        single_gradients(model, inputs, targets).norm(dim=1),
    )


def test_a_mean_loss_is_refused():
    engine = make_engine("ghost", nn.Linear(3, 2), nn.CrossEntropyLoss())
    with raises_field(ModelError, "loss"):
        engine(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64))


class Across(nn.Module):
    """A parameter of its own, and an output whose first dimension is not the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, values: Tensor) -> Tensor:
        return (values * self.scale).T


class Sideways(nn.Module):
    """Shows a layer its examples in another dimension than the first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values.transpose(0, 1)).transpose(0, 1).sum(dim=1)


def test_a_layer_that_reads_examples_in_another_dimension_is_refused():
    engine = make_engine("ghost", Sideways(nn.Linear(3, 2)), loss)
    with raises_field(ModelError, "Linear"):
        engine(torch.randn(4, 5, 3), torch.zeros(4, dtype=torch.int64))


class Forces(nn.Module):
    """Gradients of an energy by the inputs, by autograd or by torch.func."""

    def __init__(self, by_func: bool) -> None:
        super().__init__()
        self.first, self.last, self.by_func = nn.Linear(4, 6), nn.Linear(6, 1), by_func

    def energy(self, values):
        return self.last(torch.tanh(self.first(values))).sum()

    def forward(self, values):
        if self.by_func:
            return torch.func.grad(self.energy)(values)
        values = values.requires_grad_()
        return torch.autograd.grad(self.energy(values), values, create_graph=True)[0]


class SeveralOutputs(nn.Module):
    """Owns a parameter, and returns what it computed on the way, and one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.shift = nn.Linear(4, 6), nn.Linear(6, 6), nn.Parameter(torch.ones(6))

    def forward(self, values):
        middle = torch.tanh(self.first(values)) + self.shift
        end = self.last(middle)
        return end, middle, (end,)


class ReadsSeveral(nn.Module):
    def __init__(self, weights: tuple[float, float, float]) -> None:
        super().__init__()
        self.body, self.head, self.weights = SeveralOutputs(), nn.Linear(6, 2), weights

    def forward(self, values):
        end, middle, (again,) = self.body(values)
        parts = zip(self.weights, (end, middle, again), strict=True)
        return self.head(sum(weight * each for weight, each in parts if weight))


@pytest.mark.parametrize("weights", [(1.0, 0.0, 0.0), (1.0, 2.0, 0.0), (1.0, 0.0, 3.0), (0.0, 1.0, 0.0)])
def test_outputs_of_a_module_that_follow_from_one_another_count_once(weights):
    assert_exact(ReadsSeveral(weights).double(), drawn(5, 4))


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(dim=1)


def test_a_model_that_is_differentiated_by_its_inputs_needs_torch_func():
    with raises_field(ModelError, "inputs"):
        make_engine("ghost", Forces(by_func=False).double(), squares)(drawn(5, 4), drawn(5, 4))
    model = Forces(by_func=True).double()
    assert_exact(model, drawn(5, 4), drawn(5, 4), loss=squares, engine="functional")


def test_an_overridden_layer_does_not_get_the_layers_rule():
    class Doubled(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            return 2 * super().forward(values)

    assert rule_for(Doubled(3, 2)) is None
    assert rule_for(nn.Linear(3, 2)) is RULES[nn.Linear]
    assert_exact(nn.Sequential(Doubled(3, 2), nn.Linear(2, 2)).double(), drawn(4, 3))


def test_an_unknown_engine_and_a_bad_chunk_are_refused():
    with raises_field(SettingError, "engine"):
        make_engine("gost", nn.Linear(1, 1), loss)
    with raises_field(SettingError, "chunk_size"):
        FunctionalEngine(nn.Linear(1, 1), loss, chunk_size=0)


def test_sums_under_autocast_have_the_norms_that_were_measured():
    """A bound on norms is worthless if the sum is of other vectors."""
    model = MODELS["lenet"]((1, 16, 16), 4)
    inputs, targets = torch.randn(3, 1, 16, 16), torch.tensor([0, 1, 2])
    engine = make_engine("ghost", model, loss)
    for index in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            measured = engine(inputs, targets)
            model.zero_grad()
            add_gradients(measured, torch.eye(3)[index])
        alone = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        torch.testing.assert_close(alone, measured.norms[index], rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(
    "change", [Tensor.relu_, lambda values: values.mul_(3.0), lambda values: values.add_(values.detach())]
)
def test_outputs_at_several_positions_may_be_changed_in_place(change):
    """A Linear layer's output there is a view, whose history a change in place rewrites."""

    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, values: Tensor) -> Tensor:
            return self.second(change(self.first(values))).mean(dim=1)

    assert_exact(Changed().double(), drawn(5, 6, 3))


class OwnAndDropout(nn.Module):
    """A parameter of a module's own, and dropout in the module: a small ViT's first lines."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(6))
        self.first, self.dropout, self.second = nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.second(self.dropout(torch.tanh(self.first(values + self.shift))))


def test_a_module_without_a_rule_drops_out_as_without_an_engine():
    """Norms, sum and the gradients that they are of belong to one mask, that of the pass itself."""
    model, inputs, targets = OwnAndDropout().double(), drawn(9, 6), torch.arange(9) % 2
    torch.manual_seed(3)
    losses = loss(model(inputs), targets)
    parameters = list(model.parameters())
    rows = [torch.autograd.grad(each, parameters, retain_graph=True) for each in losses]
    oracle = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    engine = make_engine("ghost", model, loss)
    torch.manual_seed(3)
    measured = engine(inputs, targets)
    norms = measured.norms
    torch.rand(7)  # drawn in between
    weights = torch.linspace(0.3, 2.0, 9, dtype=torch.float64)
    add_gradients(measured, weights)
    total = torch.cat([parameter.grad.flatten() for parameter in parameters])
    torch.testing.assert_close(norms, oracle.norm(dim=1), rtol=1e-10, atol=0)
    torch.testing.assert_close(total, weights @ oracle, rtol=1e-10, atol=1e-14)


class Shuffled(nn.Module):
    """Draws its dropout in another order than one example at a time would."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(6))
        self.out = nn.Linear(6, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(nn.functional.dropout((values + self.shift).T.contiguous(), 0.4, self.training).T)


@pytest.mark.parametrize("model", [OwnAndDropout(), Shuffled()], ids=["rows first", "rows last"])
def test_sums_keep_to_norms_whatever_a_module_without_a_rule_drops_out(model):
    measured = make_engine("ghost", model, loss)(torch.randn(9, 6), torch.arange(9) % 2)
    for index in range(9):
        total = torch.cat([each.flatten() for each in measured.sums(torch.eye(9)[index]).values()])
        torch.testing.assert_close(total.norm().float(), measured.norms[index], rtol=1e-5, atol=0)


def test_what_follows_may_change_a_random_modules_outputs_in_place():
    model, inputs, targets = (
        nn.Sequential(OwnAndDropout(), nn.ReLU(inplace=True)),
        torch.randn(9, 6),
        torch.arange(9) % 2,
    )
    check_engine(make_engine("ghost", model, loss), model, loss, inputs, targets)


def test_chunks_that_run_differently_twice_add_no_more_than_their_norms():
    """The functional engine computes long batches again; Python's own random numbers are others then."""
    draws = iter([0.1] * 3 + [50.0, float("nan"), 50.0])

    class Fickle(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values) * next(draws)

    engine = FunctionalEngine(Fickle(4, 2), loss, chunk_size=1)
    measured = engine(torch.randn(3, 4), torch.tensor([0, 1, 0]))
    norms = measured.norms
    add_gradients(measured, torch.ones(3))
    total = torch.cat([parameter.grad.flatten() for parameter in engine.model.parameters()])
    assert 0 < total.norm() <= (norms[0] + norms[2]) * (1 + 1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("own", [False, True])
def test_a_transformer_with_padding_and_its_usual_settings_can_be_trained(engine, own):
    """In evaluation mode torch would take a shortcut through nested tensors that lets no gradient pass."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0 if own else 0.1, batch_first=True)
            self.body, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 2)
            self.shift = nn.Parameter(torch.zeros(8), requires_grad=own)

        def forward(self, tokens: Tensor) -> Tensor:
            read = self.body(self.words(tokens) + self.shift, src_key_padding_mask=tokens == 0)
            return self.out(read.mean(dim=1))

    tokens = torch.randint(1, 9, (6, 5))
    tokens[:3, 3:] = 0
    model, targets = Reader(), torch.arange(6) % 2
    check_model(model, loss, tokens, targets)
    check_engine(make_engine(engine, model, loss), model, loss, tokens, targets)
    assert torch.backends.mha.get_fastpath_enabled()


class TwoLayers(nn.Module):
    """Two layers, and a forward pass."""

    def __init__(self, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.run, self.first, self.out = run, nn.Linear(6, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def test_a_gradient_that_is_finite_only_the_second_time_adds_nothing():
    chunks = []

    def run(m: Any, x: Tensor) -> Tensor:
        chunks.append(len(x))
        factor = 1e38 if len(chunks) <= 2 else 1.0  # two chunks, for norms and again for the sum
        return outputs_of(m, x) * torch.where(x[:, :1] > 2, factor, 1.0)

    def outputs_of(m: Any, x: Tensor) -> Tensor:
        return m.out(torch.tanh(m.first(x)))

    model = TwoLayers(run)
    inputs, targets = torch.rand(4, 6), torch.arange(4) % 2
    inputs[1, 0] = 2.5
    targets[1] = outputs_of(model, inputs[1:2]).argmin()  # a wrong prediction, whose gradient is large
    measured = FunctionalEngine(model, loss, chunk_size=2)(inputs, targets)
    assert measured.norms[1].isinf()
    left = torch.tensor([0, 2, 3])
    expected = single_gradients(model, inputs[left], targets[left]).sum(dim=0)
    add_gradients(measured, torch.ones(4))
    total = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(total, expected)
