"""The products that recurrent layers and attention are made of."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.functional import linear

EVERY_ROW = slice(None)


class Projection(Protocol):
    """inputs W' + b with a module's parameters of these names, or with these rows of theirs."""

    def __call__(
        self,
        inputs: Tensor,
        weight: str,
        bias: str | None = None,
        *,
        weight_rows: slice = EVERY_ROW,
        bias_rows: slice = EVERY_ROW,
        batch_dimension: int = 0,
    ) -> Tensor:
        """Returns the product; examples are in `batch_dimension` of the inputs."""


Forward = Callable[..., Any]
"""(module, projection, *arguments, **keywords) -> what the module's own forward returns."""


def project(
    module: nn.Module,
    inputs: Tensor,
    weight: str,
    bias: str | None = None,
    *,
    weight_rows: slice = EVERY_ROW,
    bias_rows: slice = EVERY_ROW,
    batch_dimension: int = 0,
) -> Tensor:
    """The plain `Projection` of a module."""
    shift = None if bias is None else attrgetter(bias)(module)[bias_rows]
    return linear(inputs, attrgetter(weight)(module)[weight_rows], shift)
