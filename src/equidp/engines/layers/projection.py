"""The products that recurrent layers and attention are made of."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.nn.functional import linear


class Block(NamedTuple):
    """Names of the weight, read as a matrix by its rows, and of the bias that a product uses."""

    weight: str
    bias: str | None = None


class Projection(Protocol):
    """Computes inputs W' + b; examples are in `batch_dimension` of the inputs."""

    def __call__(self, inputs: Tensor, block: Block, batch_dimension: int = 0) -> Tensor: ...


Forward = Callable[..., Any]
"""(module, projection, *arguments, **keywords) -> what the module's own forward returns."""


def project(module: nn.Module, inputs: Tensor, block: Block, batch_dimension: int = 0) -> Tensor:
    """The plain `Projection` of a module."""
    shift = None if block.bias is None else attrgetter(block.bias)(module)
    weight = attrgetter(block.weight)(module)
    return linear(inputs, weight.reshape(len(weight), -1), shift)
