"""Opacus' own tests of layers, asked of the ghost engine.

They come with Opacus' package, which the `dev` extra installs: layers, shapes and random cases are theirs.
Only their one check is replaced: norms and a weighted sum against one backward pass per example, in float64.
"""

from __future__ import annotations

import importlib
import pkgutil
import unittest

import pytest
import torch
from torch import Tensor, nn

from equidp.engines import make_engine
from support.oracle import add_gradients

theirs = pytest.importorskip("opacus.tests.grad_samples", reason="Opacus comes with the dev extra.")
common = importlib.import_module("opacus.tests.grad_samples.common")

TESTS = [
    pytest.param(case, name, id=f"{case.__name__}.{name}")
    for module in pkgutil.iter_modules(theirs.__path__)
    if module.name.endswith("_test")
    for case in vars(importlib.import_module(f"{theirs.__name__}.{module.name}")).values()
    if isinstance(case, type) and issubclass(case, common.GradSampleHooks_test)
    for name in unittest.TestLoader().getTestCaseNames(case)
]
NOT_ASKED = {
    "Conv2d_test.test_asymetric_dilation_and_kernel_size",  # functions of their own, without a layer
    "Conv2d_test.test_unfold2d",
    "Embedding_bag_test.test_input_across_dims",  # several tensors as inputs
    "MultiHeadAttention_test.test_multihead_attention",
}


class Headed(nn.Module):
    """Their layer, and outputs as one row per example."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, values: Tensor) -> Tensor:
        outputs = self.layer(values)
        return (outputs[0] if isinstance(outputs, tuple) else outputs).flatten(1)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.square().sum(dim=1)


def check_ours(layer: nn.Module, inputs: Tensor) -> None:
    model = Headed(layer).double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.zero_grad()
    targets = torch.zeros(len(inputs), dtype=torch.int64)
    rows = []
    for index in range(len(inputs)):
        losses = squares(model(inputs[index : index + 1]), targets[:1])
        rows.append(flat(torch.autograd.grad(losses.sum(), trained, allow_unused=True), trained))
    true = torch.stack(rows)
    measured = make_engine("ghost", model, squares)(inputs, targets)
    weights = torch.linspace(0.3, 2.0, len(inputs), dtype=torch.float64)
    add_gradients(measured, weights)
    size = true.norm(dim=1).max().clamp_min(1e-30)
    assert (measured.norms - true.norm(dim=1)).abs().max() <= 1e-9 * size
    total = flat([parameter.grad for parameter in trained], trained)
    assert (total - weights @ true).norm() <= 1e-9 * size * len(inputs)


def flat(gradients, parameters) -> Tensor:
    return torch.cat(
        [
            (torch.zeros_like(parameter) if gradient is None else gradient).flatten()
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
    )


@pytest.mark.soak
@pytest.mark.parametrize(("case", "name"), TESTS)
def test_layers_that_opacus_tests(case, name, monkeypatch):
    asked = 0

    def ask_ours(self, x, module, batch_first=True, **unused):
        """An engine meets no empty batch, no examples in the second dimension, and one tensor."""
        nonlocal asked
        if (
            isinstance(x, Tensor)
            and batch_first
            and len(x)
            and any(p.requires_grad for p in module.parameters())
        ):
            asked += 1
            check_ours(module, x)

    monkeypatch.setattr(common.GradSampleHooks_test, "run_test", ask_ours)
    torch.manual_seed(0)
    result = unittest.TestResult()
    case(name).run(result)
    assert not [*result.errors, *result.failures], [*result.errors, *result.failures][0][1]
    assert asked or f"{case.__name__}.{name}" in NOT_ASKED
