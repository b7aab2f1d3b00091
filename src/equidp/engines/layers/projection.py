"""The products that recurrent layers and attention are made of."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.nn.functional import linear

Rows = tuple[int, int] | tuple[None, None]
EVERY_ROW: Rows = (None, None)


class Block(NamedTuple):
    """Names of the weight and the bias that a product uses, with first row and last + 1 of each."""

    weight: str
    bias: str | None = None
    weight_rows: Rows = EVERY_ROW
    bias_rows: Rows = EVERY_ROW


class Projection(Protocol):
    """Computes inputs W' + b; examples are in `batch_dimension` of the inputs."""

    def __call__(self, inputs: Tensor, block: Block, batch_dimension: int = 0) -> Tensor: ...


Forward = Callable[..., Any]
"""(module, projection, *arguments, **keywords) -> what the module's own forward returns."""


def project(module: nn.Module, inputs: Tensor, block: Block, batch_dimension: int = 0) -> Tensor:
    """The plain `Projection` of a module."""
    shift = None if block.bias is None else attrgetter(block.bias)(module)[slice(*block.bias_rows)]
    weight = attrgetter(block.weight)(module)[slice(*block.weight_rows)]
    return linear(inputs, weight.flatten(1), shift)


def bilinear(module: nn.Bilinear, project: Projection, input1: Tensor, input2: Tensor) -> Tensor:
    """nn.Bilinear.forward: one product with all products of a feature of either input."""
    products = input1.unsqueeze(-1) * input2.unsqueeze(-2)
    return project(products.flatten(-2), Block("weight", None if module.bias is None else "bias"))
