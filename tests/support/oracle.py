"""The oracle that engines are held to: one ordinary backward pass per example.

On the CPU, or on the device of `pytest --device`, such as cuda.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from equidp.engines import make_engine
from equidp.engines.model import call_model, exact_products
from equidp.kernel.engine import Engine, LossFunction, Measured, Sums
from equidp.kernel.inputs import Inputs, moved_to, taken, tensors

DEVICE = os.environ.get("EQUIDP_TEST_DEVICE", "cpu")


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


class SumOfSquares(nn.Module):
    """A head without parameters: two logits from anything."""

    def forward(self, values: Tensor) -> Tensor:
        values = values.reshape(len(values), -1)
        return torch.stack(
            [
                values.square().mean(dim=1),
                (values * torch.linspace(-1, 1, values.shape[1]).to(values)).sum(dim=1),
            ],
            1,
        )


def single_gradients(model: nn.Module, inputs: Inputs, targets: Tensor, loss=loss) -> Tensor:
    """[batch, parameters]: the oracle, one ordinary backward pass per example."""
    rows = []
    trained = [p for p in model.parameters() if p.requires_grad]
    for place in range(len(targets)):
        x, y = taken((inputs, targets), [place])
        gradients = torch.autograd.grad(loss(call_model(model, x), y).sum(), trained, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros_like(p).flatten() if g is None else g.flatten()
                    for p, g in zip(trained, gradients, strict=True)
                ]
            )
        )
    return torch.stack(rows)


def assert_exact(
    model: nn.Module,
    inputs: Inputs,
    targets: Tensor | None = None,
    *,
    loss=loss,
    engine: str | Callable[[nn.Module, LossFunction], Engine] = "ghost",
    classes: int = 2,
    tolerance: float = 1e-10,
) -> None:
    """Norms and weighted sum against the oracle, relative to the largest gradient."""
    targets = torch.arange(len(tensors(inputs)[0])) % classes if targets is None else targets
    model, inputs, targets = model.to(DEVICE), moved_to(inputs, DEVICE), targets.to(DEVICE)
    with exact_products(torch.device(DEVICE)):  # CUDA's default for convolutions is TF32
        _assert_exact(model, inputs, targets, loss, engine, tolerance)


def _assert_exact(
    model: nn.Module,
    inputs: Inputs,
    targets: Tensor,
    loss: LossFunction,
    engine: str | Callable[[nn.Module, LossFunction], Engine],
    tolerance: float,
) -> None:
    oracle = single_gradients(model, inputs, targets, loss)
    weights = torch.linspace(0.3, 2.0, len(targets), dtype=oracle.dtype, device=DEVICE)
    made = make_engine(engine, model, loss) if isinstance(engine, str) else engine(model, loss)
    for _ in range(2):  # a second batch may be measured otherwise, by what the first showed
        measured = made(inputs, targets)
        sums, norms = measured.sums(weights), measured.norms
        _assert_near(model, sums, norms, oracle, weights, tolerance)


def _assert_near(
    model: nn.Module, sums: Sums, norms: Tensor, oracle: Tensor, weights: Tensor, tolerance: float
) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    assert set(sums) <= set(trained)
    total = torch.cat([sums.get(p, torch.zeros_like(p)).flatten().to(oracle) for p in trained])
    scale = oracle.norm(dim=1).max().clamp_min(1e-30)
    assert (norms - oracle.norm(dim=1)).abs().max() <= tolerance * scale
    assert (total - weights @ oracle).norm() <= tolerance * scale * len(weights)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def add_gradients(measured: Measured, weights: Tensor) -> None:
    """Add sum_i weights[i] * gradient_i to p.grad, created where missing."""
    for parameter, total in measured.sums(weights).items():
        total = total.to(parameter)
        parameter.grad = total if parameter.grad is None else parameter.grad + total
