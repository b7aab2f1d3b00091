"""Norms equal those of Opacus, for the layers that it knows too."""

from __future__ import annotations

import copy

import pytest
import torch
from opacus import GradSampleModule
from torch import Tensor, nn

from equidp.engines import make_engine
from support.oracle import SumOfSquares, drawn, loss

CASES = {
    "linear": (nn.Linear(5, 3), (5,)),
    "linear on sequences": (nn.Linear(5, 3), (7, 5)),
    "conv1d": (nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2), (2, 9)),
    "conv2d": (nn.Conv2d(3, 4, 3, dilation=2, padding="same"), (3, 8, 7)),
    "conv3d": (nn.Conv3d(2, 3, 2), (2, 4, 5, 4)),
    "layer norm": (nn.LayerNorm(6), (4, 6)),
    "group norm": (nn.GroupNorm(2, 6), (6, 5)),
    "instance norm": (nn.InstanceNorm2d(3, affine=True), (3, 4, 5)),
    "rms norm": (nn.RMSNorm(6), (4, 6)),
    "embedding": (nn.Embedding(6, 4), None),
}


@pytest.mark.parametrize("name", CASES)
def test_norms_are_those_of_opacus(name):
    torch.manual_seed(0)
    layer, shape = CASES[name]
    model = nn.Sequential(layer, nn.Tanh(), SumOfSquares()).double()
    inputs = torch.randint(0, 6, (5, 7)) if shape is None else drawn(5, *shape)
    targets = torch.arange(5) % 2
    theirs = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    loss(theirs(inputs), targets).sum().backward()
    rows: list[Tensor] = [parameter.grad_sample.flatten(1) for parameter in theirs.parameters()]
    norms = make_engine("ghost", model, loss)(inputs, targets).norms
    torch.testing.assert_close(norms, torch.cat(rows, dim=1).norm(dim=1), rtol=1e-10, atol=1e-12)
