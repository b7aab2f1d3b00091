"""Products that a decomposed module is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor


class Projection(Protocol):
    """inputs W' + b with a module's parameters of these names, or with these rows of theirs."""

    def __call__(
        self,
        inputs: Tensor,
        weight: str,
        bias: str | None = None,
        *,
        weight_rows: slice = ...,
        bias_rows: slice = ...,
        batch_dimension: int = 0,
    ) -> Tensor: ...


Forward = Callable[..., Any]
"""(module, projection, *arguments, **keywords) -> what the module's own forward returns."""
