"""Calls of a model on inputs of any form, and its outputs in the value that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from equidp.errors import ModelError
from equidp.kernel.inputs import Inputs


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Returns the arguments and keywords that a model is called with.

    >>> arguments({"input_ids": 1})
    ((), {'input_ids': 1})
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def call_model(model: nn.Module, inputs: Inputs) -> Tensor:
    """Returns the outputs, [batch, ...], of `model(x)`, `model(*x)` for a tuple, `model(**x)` for a mapping.

    Raises:
        ModelError: as in `outputs_in`.

    >>> call_model(nn.Bilinear(2, 3, 4), (Tensor(5, 2), Tensor(5, 3))).shape
    torch.Size([5, 4])
    """
    positional, named = arguments(inputs)
    return outputs_in(model(*positional, **named))


def outputs_in(result: Any) -> Tensor:
    """Returns the output tensor of a model's result, or its `logits` for a mapping, as in `transformers`.

    Raises:
        ModelError: the result is neither.

    >>> outputs_in({"logits": Tensor([1.0])})
    tensor([1.])
    """
    outputs = result.get("logits") if isinstance(result, Mapping) else result
    if isinstance(outputs, Tensor):
        return outputs
    names = f" of {', '.join(map(str, result))}" if isinstance(result, Mapping) else ""
    raise ModelError(
        f"the model gives a {type(result).__name__}{names}; expected a tensor [batch, ...], or a mapping "
        "whose 'logits' are one. Wrap it in a module that returns the part that the loss takes."
    )
