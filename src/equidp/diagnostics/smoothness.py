"""Check that a model's loss has a second derivative everywhere."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from equidp.engines.model import call_model
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs

_KINKS = (
    "Relu", "LeakyRelu", "PreluKernel", "Rrelu", "Hardtanh", "Threshold", "MaxPool", "AdaptiveMaxPool",
    "FractionalMaxPool", "Hardswish", "Hardsigmoid", "Hardshrink", "Softshrink", "Abs", "Clamp", "Maximum",
    "Minimum", "Amax", "Amin", "Max", "Min",
)  # fmt: skip


def kinks(model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Tensor) -> list[str]:
    """Returns the names of operations between parameters and loss that have no second derivative somewhere.

    Reads the graph that autograd records, so it sees functions as well as modules. Second-order figures of
    such a model hold almost everywhere, and miss the curvature in the kinks.

    Args:
        model, loss: as in training.
        inputs, targets: a few examples, [batch, ...].
    """
    with torch.enable_grad():
        start = loss(call_model(model, inputs), targets).sum().grad_fn
    found, seen, waiting = set(), set(), [start]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = re.sub(r"(1D|2D|3D)?(With|Backward).*$", "", node.name(), flags=re.IGNORECASE)
        if name in _KINKS:
            found.add(name)
        waiting += [following for following, _ in node.next_functions]
    return sorted(found)
