"""Products, traces and eigenvalues are those of the dense Hessian."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.curvature import (
    extreme_eigenvalues,
    hessian_product,
    quadratic_form,
)
from equidp.diagnostics.gradients import Subject
from equidp.engines import make_engine
from equidp.engines.layers.decomposed import without_fused_layers
from support.dense import full_hessian
from support.oracle import loss


def product_of(model: nn.Module, inputs, targets, draw=None):
    data = GroupedDataset(inputs, targets, torch.zeros_like(targets), ("everyone",), ("0", "1", "2"))
    everyone = torch.arange(len(targets))
    return lambda vector: hessian_product(subject_of(model), data, draw() if draw else everyone, vector)


def subject_of(model: nn.Module, chunk_size: int = 7) -> Subject:
    return Subject(model, loss, make_engine("ghost", model, loss), chunk_size)


class Shared(nn.Module):
    """One layer used twice, a frozen one, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen = nn.Linear(4, 4), nn.Linear(4, 3)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, values):
        return self.frozen(torch.tanh(self.first(torch.tanh(self.first(values))))) * self.scale


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, values):
        return self.out(self.body(values.reshape(len(values), 2, 2))[0][:, -1])


MODELS = {
    "linear": lambda: nn.Linear(4, 3),
    "tanh": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)
    ),
    "shared and frozen": Shared,
    "recurrent": Recurrent,
}


def problem_of(model: nn.Module):
    return model.double().eval(), torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3


@pytest.fixture(params=MODELS)
def problem(request):
    torch.manual_seed(0)
    return problem_of(MODELS[request.param]())


@pytest.mark.soak
def test_products_quadratic_forms_and_eigenvalues_are_those_of_the_dense_hessian(problem):
    model, inputs, targets = problem
    dense = _dense(model, inputs, targets)
    product = product_of(model, inputs, targets)
    for vector in torch.randn(2, len(dense), dtype=torch.float64):
        torch.testing.assert_close(product(vector), dense @ vector, rtol=1e-8, atol=1e-10)
        assert quadratic_form(product, vector) == pytest.approx(float(vector @ dense @ vector), rel=1e-8)
    exact, generator = torch.linalg.eigvalsh(dense), torch.Generator().manual_seed(0)
    zeros = subject_of(model).zeros()
    smallest, largest, _ = extreme_eigenvalues(product, zeros, products=100, generator=generator)
    assert smallest == pytest.approx(float(exact[0]), abs=1e-8)
    assert largest == pytest.approx(float(exact[-1]), rel=1e-8)


def _dense(model, inputs, targets):
    with without_fused_layers(model):  # torch has no second derivatives of its fused LSTM
        return full_hessian(model, inputs, targets)


@given(seed=st.integers(0, 2**31), products=st.integers(1, 30))
def test_stopped_early_eigenvalues_lie_inside_and_near_one_of_the_spectrum(seed, products):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(12, 12, dtype=torch.float64, generator=generator)
    matrix = matrix + matrix.T
    exact = torch.linalg.eigvalsh(matrix)
    smallest, largest, residual = extreme_eigenvalues(
        lambda vector: matrix @ vector, matrix[0], products=products, generator=generator
    )
    assert exact[0] - 1e-9 <= smallest <= largest <= exact[-1] + 1e-9
    for end in (smallest, largest):
        assert (exact - end).abs().min() <= residual + 1e-9
