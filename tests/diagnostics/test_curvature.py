"""Products, traces and eigenvalues are those of the dense Hessian."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.curvature import GroupHessian, extreme_eigenvalues, hutchinson_trace
from equidp.diagnostics.gradients import Subject
from equidp.engines import make_engine
from equidp.engines.layers.decomposed import without_fused_layers
from support.dense import full_hessian
from support.oracle import loss


def subject_of(model: nn.Module, chunk_size: int = 7) -> Subject:
    return Subject(model, loss, make_engine("ghost", model, loss), chunk_size)


def hessian_of(model: nn.Module, inputs, targets, **settings) -> GroupHessian:
    data = GroupedDataset(inputs, targets, torch.zeros_like(targets), ("everyone",), ("0", "1", "2"))
    return GroupHessian(subject_of(model), data, torch.arange(len(inputs)), **settings)


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


def linear_problem():
    torch.manual_seed(0)
    return problem_of(nn.Linear(4, 3))


@pytest.mark.soak
def test_products_and_quadratic_forms_are_those_of_the_dense_hessian(problem):
    model, inputs, targets = problem
    dense = _dense(model, inputs, targets)
    ours = hessian_of(model, inputs, targets)
    for vector in torch.randn(4, len(dense), dtype=torch.float64):
        torch.testing.assert_close(ours.product(vector), dense @ vector, rtol=1e-8, atol=1e-10)
        assert ours.quadratic(vector)[0] == pytest.approx(float(vector @ dense @ vector), rel=1e-8)


class Attention(nn.Module):
    """Attention over two inputs, as models of others call it; logits in a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.out = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, values, scale):
        read = self.keys((values * scale).reshape(len(values), 1, 2, 2))
        return {"logits": self.out(scaled_dot_product_attention(read, read, read).mean(dim=(1, 2)))}


class Joined(nn.Module):
    """The same of one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, values):
        return self.model(values[:, :4], values[:, 4:])["logits"]


def test_products_of_a_model_of_several_inputs_with_attention_are_those_of_the_dense_hessian():
    torch.manual_seed(0)
    model = Attention().double().eval()
    joined, targets = torch.randn(20, 5, dtype=torch.float64), torch.arange(20) % 3
    with sdpa_kernel(SDPBackend.MATH):
        dense = full_hessian(Joined(model), joined, targets)
    inputs = {"values": joined[:, :4], "scale": joined[:, 4:]}
    data = GroupedDataset(inputs, targets, torch.zeros_like(targets), ("all of them",), ("0", "1", "2"))
    ours = GroupHessian(subject_of(model), data, torch.arange(20))
    vector = torch.randn(len(dense), dtype=torch.float64)
    torch.testing.assert_close(ours.product(vector), dense @ vector, rtol=1e-8, atol=1e-10)


def _dense(model, inputs, targets):
    with without_fused_layers(model):  # torch has no second derivatives of its fused LSTM
        return full_hessian(model, inputs, targets)


@pytest.mark.soak
def test_eigenvalues_are_those_of_the_dense_hessian(problem):
    model, inputs, targets = problem
    exact = torch.linalg.eigvalsh(_dense(model, inputs, targets))
    ours = extreme_eigenvalues(
        hessian_of(model, inputs, targets).product,
        subject_of(model).zeros(),
        generator=torch.Generator().manual_seed(0),
        relative_error=0.0,
        max_products=200,
    )
    assert ours.smallest == pytest.approx(float(exact[0]), abs=1e-8)
    assert ours.largest == pytest.approx(float(exact[-1]), rel=1e-8)


@given(seed=st.integers(0, 2**31), products=st.integers(1, 30))
def test_stopped_early_eigenvalues_lie_inside_and_near_one_of_the_spectrum(seed, products):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(12, 12, dtype=torch.float64, generator=generator)
    matrix = matrix + matrix.T
    exact = torch.linalg.eigvalsh(matrix)
    ours = extreme_eigenvalues(
        lambda vector: matrix @ vector, matrix[0], generator=generator, max_products=products
    )
    assert exact[0] - 1e-9 <= ours.smallest <= ours.largest <= exact[-1] + 1e-9
    for end in (ours.smallest, ours.largest):
        assert (exact - end).abs().min() <= ours.residual + 1e-9
    assert ours.products <= min(products, 12)


def test_lanczos_needs_no_more_products_than_power_iteration():
    """The reason why there is no power iteration here: 20 products of either, on a slowly decaying
    spectrum."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.linspace(0, 1, 300, dtype=torch.float64) ** 0.5
    start = torch.randn(300, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    vector = start / start.norm()
    for _ in range(20):
        vector = spectrum * vector / (spectrum * vector).norm()
    power = float(vector @ (spectrum * vector))
    ours = extreme_eigenvalues(
        lambda v: spectrum * v, start, generator=generator, relative_error=0.0, max_products=20
    )
    assert 1 - ours.largest < 0.2 * (1 - power)


def test_a_zero_hessian_has_zero_eigenvalues():
    like = torch.zeros(5, dtype=torch.float64)
    ours = extreme_eigenvalues(torch.zeros_like, like, generator=torch.Generator().manual_seed(0))
    assert (ours.smallest, ours.largest, ours.residual) == (0.0, 0.0, 0.0)


@pytest.mark.soak
def test_the_true_trace_is_within_three_standard_errors():
    """400 seeded trials with stops at 10% and caps of 100; at least 99% hold. The seeds are fixed, so there
    are no false alarms."""
    inside = 0
    for seed in range(400):
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(15, 15, dtype=torch.float64, generator=generator)
        matrix = matrix @ matrix.T if seed % 2 else matrix + matrix.T + 3 * torch.eye(15, dtype=torch.float64)
        estimate = hutchinson_trace(
            lambda vector, matrix=matrix: matrix @ vector,
            matrix[0],
            generator=generator,
            relative_error=0.1,
        )
        inside += abs(estimate.value - float(matrix.trace())) <= 3 * estimate.standard_error
    assert inside >= 0.99 * 400


@pytest.mark.soak
def test_products_over_drawn_examples_are_unbiased_and_their_spread_is_counted():
    """40 trials of 40 vectors, each over 5 of 20 examples, against the trace over all 20; at three standard
    errors."""
    model, inputs, targets = linear_problem()
    exact = float(full_hessian(model, inputs, targets).trace())
    inside = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        drawn = hessian_of(model, inputs, targets, sample_size=5, generator=generator)
        estimate = hutchinson_trace(
            drawn.product, subject_of(model).zeros(), generator=generator, max_vectors=40
        )
        inside += abs(estimate.value - exact) <= 3 * estimate.standard_error
    assert inside >= 39


def test_the_trace_stops_at_the_requested_error_or_the_cap():
    matrix = torch.eye(10, dtype=torch.float64)
    exact = hutchinson_trace(
        lambda v: matrix @ v, matrix[0], generator=torch.Generator().manual_seed(0), relative_error=0.1
    )
    assert (exact.value, exact.standard_error, exact.vectors) == (10.0, 0.0, 30)
    noisy = torch.randn(40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    capped = hutchinson_trace(
        lambda v: (noisy + noisy.T) @ v,
        noisy[0],
        generator=torch.Generator().manual_seed(0),
        relative_error=0.001,
        max_vectors=50,
    )
    assert capped.vectors == 50


def test_a_product_over_drawn_examples_sees_other_ones_each_time_and_a_draw_the_same():
    model, inputs, targets = linear_problem()
    hessian = hessian_of(model, inputs, targets, sample_size=3, generator=torch.Generator().manual_seed(0))
    vector = torch.ones(15, dtype=torch.float64)
    assert not torch.equal(hessian.product(vector), hessian.product(vector))
    fixed = hessian.fix_draw()
    assert torch.equal(fixed.product(vector), fixed.product(vector))
