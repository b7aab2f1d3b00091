"""No numbers, however large or small, let one example move the released sum by more than its bound.

In each test one example joins a batch of others. Every weight is the largest that the step allows, bound over
norm, so one more example may move the sum by the bound, and rounding by little more.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor, nn

from equidp import DPSGD
from equidp.engines import ENGINES, make_engine
from equidp.errors import ModelError
from equidp.kernel.bounding import SMALLEST_NORM, capped_weights
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from support.errors import raises_field
from support.oracle import add_gradients, loss


def products(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss through which the targets are the gradients of the outputs."""
    return (outputs * targets).flatten(1).sum(dim=1)


def released(
    model: nn.Module, of: object, inputs: Tensor, targets: Tensor, bound: float, engine: str
) -> Tensor:
    """The sum under the largest weights, without noise, in float64; bad examples are left out."""
    made = make_engine(engine, model, of)
    measured = made(inputs, targets)
    finite = torch.isfinite(measured.norms)
    if not finite.all():
        measured = made(inputs[finite], targets[finite])
    model.zero_grad()
    add_gradients(measured, capped_weights(torch.full_like(measured.norms, 1e38), measured.norms, bound))
    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])


def change(model, of, others, one, *, bound=1.0, engine="ghost") -> float:
    """By how many bounds one example in the middle of a batch moves the sum."""
    (inputs, targets), (x, y), middle = others, one, len(others[0]) // 2
    before = released(model, of, inputs, targets, bound, engine)
    joined = (
        torch.cat([inputs[:middle], x[None], inputs[middle:]]),
        torch.cat([targets[:middle], y[None], targets[middle:]]),
    )
    after = released(model, of, *joined, bound, engine)
    return float((after - before).norm()) / bound


class Gated(nn.Module):
    """A linear layer at several positions, each multiplied by a feature of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.head((self.linear(values[..., 1:]) * values[..., :1]).sum(dim=1) / 8)


@pytest.mark.parametrize("size", [1e8, 1e11, 1e14])
@pytest.mark.parametrize("padding", [0.0, 0.1])
def test_terms_that_cancel_in_a_linear_layer_leave_other_sums_alone(size, padding):
    """Where the input is 0 only the bias has terms, and they cancel; elsewhere the weight has too."""
    torch.manual_seed(0)
    model, others = Gated(), torch.randn(512, 6, 33) * 0.1
    others[..., 0] = 1.0
    one = torch.full((6, 33), padding)
    one[2:, 0], one[0, 0], one[1, 0] = 0.0, size, -size
    targets = torch.zeros(512, dtype=torch.int64)
    assert change(model, loss, (others, targets), (one, targets[0])) <= 1.01


class Pixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.Linear(64, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.conv(values).mean(dim=(2, 3)))


@pytest.mark.parametrize("size", [1e10, 1e11, 1e12])
def test_terms_that_cancel_in_a_convolution_leave_other_sums_alone(size):
    torch.manual_seed(0)
    model, others, one = Pixels(), torch.rand(64, 64, 16, 16), torch.zeros(64, 16, 16)
    one[:, 5, 5], one[:, 8, 8] = size, -size
    targets = torch.zeros(64, dtype=torch.int64)
    assert change(model, loss, (others, targets), (one, targets[0])) <= 1.01


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bound", [1.0, 1e-5])
def test_a_tiny_gradient_of_a_huge_input_is_measured(engine, bound):
    """|g| is about 1e-23 and its square vanishes in float32; times |x|, 1e19, it is 4e-4."""
    torch.manual_seed(0)
    model = nn.Linear(8, 2, bias=False)
    nn.init.normal_(model.weight)
    with torch.no_grad():
        model.weight[:, 0] = 0.0
        apart = model.weight[0] - model.weight[1]
        one = apart / apart.square().sum() * 52.0
    one[0] = 1.7e19
    inputs, targets = torch.randn(20, 8), torch.arange(20) % 2
    assert change(model, loss, (inputs, targets), (one, targets[0]), bound=bound, engine=engine) <= 1.001


LAYERS = {
    "linear": (lambda: nn.Linear(6, 5), (6,), (5,)),
    "linear, no bias": (lambda: nn.Linear(6, 5, bias=False), (6,), (5,)),
    "linear, products of positions": (lambda: nn.Linear(6, 5), (2, 6), (2, 5)),
    "linear, positions": (lambda: nn.Linear(3, 2), (7, 3), (7, 2)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 2), (2, 7), (3, 6)),
    "conv2d, products of positions": (lambda: nn.Conv2d(16, 16, 2), (16, 3, 3), (16, 2, 2)),
    "conv2d, not kept": (lambda: nn.Conv2d(4, 6, 3, bias=False), (4, 5, 5), (6, 3, 3)),
    "embedding": (lambda: nn.Embedding(3, 4), None, (5, 4)),
    "layer norm": (lambda: nn.LayerNorm(6), (4, 6), (4, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (6, 5), (6, 5)),
}
EXPONENTS = st.lists(st.integers(-37, 37), min_size=9, max_size=9) | st.integers(-25, 20).map(
    lambda e: [e] * 9
)


def wild(generator: torch.Generator, shape: tuple[int, ...], exponents: list[int]) -> Tensor:
    """Normal numbers [*shape] whose size differs from place to place of the first dimension."""
    sizes = torch.tensor([10.0 ** exponents[place % len(exponents)] for place in range(shape[0])])
    return torch.randn(shape, generator=generator) * sizes.reshape(-1, *[1] * (len(shape) - 1))


def with_squares_that_vanish(test):
    """Try the sizes at which squares of gradients vanish with every layer."""
    for name in LAYERS:
        test = example(name=name, seed=0, of_inputs=[18] * 9, of_gradients=[-22] * 9, cancels=False)(test)
    return test


@pytest.mark.soak
@with_squares_that_vanish
@given(
    name=st.sampled_from(list(LAYERS)),
    seed=st.integers(0, 1000),
    of_inputs=EXPONENTS,
    of_gradients=EXPONENTS,
    cancels=st.booleans(),
)
@settings(max_examples=120)
def test_sums_keep_to_the_norms_whatever_the_sizes(name, seed, of_inputs, of_gradients, cancels):
    """One example moves the sum by its bound; its norm is not understated, but for what rounding cancels."""
    make, shape, outputs = LAYERS[name]
    torch.manual_seed(0)
    model, generator = make(), torch.Generator().manual_seed(seed)
    gradients = torch.randn(8, *outputs, generator=generator)
    gradient = wild(generator, outputs, of_gradients)
    if shape is None:
        inputs, one = torch.randint(0, 3, (8, 5), generator=generator), torch.tensor([1, 1, 0, 2, 1])
    else:
        # The forward pass of a normalisation is itself a matter of rounding where inputs differ that much.
        sizes = [0] if "norm" in name else of_inputs
        inputs, one = torch.randn(8, *shape, generator=generator), wild(generator, shape, sizes)
    if cancels and len(outputs) > 1 and "conv" not in name and "group" not in name:
        gradient[1] = -gradient[0]
        one[1] = one[0]
    others = (inputs, gradients)
    assert change(model, products, others, (one, gradient)) <= 1.01
    if cancels:
        return
    (norm,) = make_engine("ghost", model, products)(one[None], gradient[None]).norms
    exact = model.double()
    given = one.double() if one.is_floating_point() else one
    rows = torch.autograd.grad(products(exact(given[None]), gradient[None].double()), exact.parameters())
    true = math.sqrt(sum(float(row.square().sum()) for row in rows))
    assert norm >= (1 - 1e-3) * true or not norm.isfinite() or true <= SMALLEST_NORM


class EditsInPlace(torch.autograd.Function):
    """Changes the gradient it is given, against torch's rules, where an input is large."""

    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values * 1.0

    @staticmethod
    def backward(ctx, gradient):
        (values,) = ctx.saved_tensors
        large = (values.abs() > 0.9999).any(dim=1)
        if large.any():
            gradient[large] *= 50.0
        return gradient


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, values: Tensor) -> Tensor:
        edited = EditsInPlace.apply(torch.tanh(self.second(values)))
        return self.head(self.first(values) + edited)


def test_a_gradient_that_is_edited_after_it_was_measured_is_never_summed():
    torch.manual_seed(0)
    model, inputs, groups = Branches(), torch.randn(24, 6), torch.zeros(24, dtype=torch.int64)
    inputs[20] = 20.0
    step = PrivateStep(
        make_engine("ghost", model, loss),
        DPSGD(),
        list(model.parameters()),
        event=Event(0.1, 1.0),
        expected_batch_size=24.0,
        num_groups=1,
        randomness=SeededRandomness(0),
    )
    step(inputs[:20], groups[:20], groups[:20])
    with raises_field(ModelError, "Linear"):
        step(inputs, groups, groups)
    assert all(parameter.grad is None for parameter in model.parameters())
