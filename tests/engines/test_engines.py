"""Engines in what the contract of all engines leaves open: modules run again, refusals, traces in a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equidp.engines import make_engine
from equidp.engines.functional import FunctionalEngine
from equidp.engines.layers import RULES, rule_for
from equidp.errors import ModelError
from equidp.models import MODELS
from support.errors import raises_field
from support.oracle import add_gradients, assert_exact, drawn, loss


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


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


def test_an_overridden_layer_does_not_get_the_layers_rule():
    class Doubled(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            return 2 * super().forward(values)

    assert rule_for(Doubled(3, 2)) is None
    assert rule_for(nn.Linear(3, 2)) is RULES[nn.Linear]
    assert_exact(nn.Sequential(Doubled(3, 2), nn.Linear(2, 2)).double(), drawn(4, 3))


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
