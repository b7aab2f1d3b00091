"""Calls of a model on inputs of any form, and its modes, device, precision and gradients as one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from equidp.errors import ModelError
from equidp.kernel.engine import Sums
from equidp.kernel.generators import restore_generators
from equidp.kernel.inputs import Inputs
from equidp.losses import output_tensors

_COARSE = ("tf32", "bf16")
_backends: Any = torch.backends
_PRECISION: dict[str, tuple[Any, ...]] = (
    {
        "cpu": (_backends.mkldnn.matmul, _backends.mkldnn.conv, _backends.mkldnn.rnn),
        "cuda": (_backends.cuda.matmul, _backends.cudnn.conv, _backends.cudnn.rnn),
    }
    if hasattr(_backends.mkldnn, "conv")
    else {}
)
"""PyTorch's settings (2.9 and newer) of how precise products of float32 are, by device."""


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the arguments and keywords that a model is called with.

    >>> arguments({"input_ids": 1})
    ((), {'input_ids': 1})
    """
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """Return the outputs, [batch, ...], of `model(x)`, `model(*x)` for a tuple, `model(**x)` for a mapping.

    They are what the loss gets: see `outputs_in`.

    Raises:
        ModelError: as in `outputs_in`.

    >>> call_model(nn.Bilinear(2, 3, 4), (Tensor(5, 2), Tensor(5, 3))).shape
    torch.Size([5, 4])
    """
    positional, named = arguments(inputs)
    return outputs_in(model(*positional, **named))


def call_with(
    model: nn.Module,
    values: Mapping[str, Tensor],
    positional: tuple[Any, ...] = (),
    named: dict[str, Any] | None = None,
) -> Any:
    """Return the result of a call with other values of parameters and buffers, as `functional_call` does.

    Each tensor of a module is replaced once. `functional_call` replaces those of a module that is reached by
    two names twice, and puts back a replacement in the end.

    Args:
        model: any module.
        values: by the names that `named_parameters` and `named_buffers` give; those of a shared tensor hold
            wherever it stands.
        positional, named: arguments of the call.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> twice, weight = nn.Sequential(layer, layer), layer.weight
    >>> call_with(twice, {"0.weight": 2 * torch.eye(2)}, (torch.ones(1, 2),))
    tensor([[4., 4.]])
    >>> layer.weight is weight
    True
    """
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    by_tensor = {held[name]: value for name, value in values.items() if name in held}
    places = {
        f"{path}.{name}" if path else name: by_tensor[tensor]
        for path, module in model.named_modules()
        for tensors_of in (module._parameters, module._buffers)
        for name, tensor in tensors_of.items()
        if tensor in by_tensor
    }
    return functional_call(model, places, positional, named, tie_weights=False)


def outputs_in(result: Any) -> Any:
    """Return what the loss gets of a model's result: the `logits` of a mapping that has them; else all.

    Raises:
        ModelError: there is no tensor in it.

    >>> outputs_in({"logits": Tensor([1.0]), "hidden_states": None})
    tensor([1.])
    >>> outputs_in((Tensor([1.0]), Tensor([2.0])))
    (tensor([1.]), tensor([2.]))
    """
    if isinstance(result, Tensor):
        return result
    if isinstance(result, Mapping) and isinstance(result.get("logits"), Tensor):
        return result["logits"]
    if output_tensors(result):
        return result
    raise ModelError(
        f"the model gives a {type(result).__name__} without a tensor; expected a tensor [batch, ...], or a "
        "tuple, mapping or dataclass of such.",
        field="model",
    )


def call_for_tensor(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the outputs where they are one tensor, [batch, ...], or a mapping with `logits`.

    Raises:
        ModelError: the model gives several tensors.
    """
    return one_tensor(call_model(model, inputs))


def one_tensor(outputs: Any) -> Tensor:
    """Return outputs that are one tensor.

    Raises:
        ModelError: they are several.
    """
    if isinstance(outputs, Tensor):
        return outputs
    names = f" of {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
    raise ModelError(
        f"the model gives a {type(outputs).__name__}{names}; expected one tensor [batch, ...] of logits or "
        "numbers here, or a mapping with 'logits'. Wrap it in a module that returns the part to read.",
        field="model",
    )


@contextmanager
def preserve_model(model: nn.Module) -> Iterator[None]:
    """Restore the model's modes, its gradients and random numbers at the end of the context."""
    modes = {module: module.training for module in model.modules()}
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with restore_generators(*(parameter.device for parameter in model.parameters())):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set the model to evaluation mode inside the context; restore as `preserve_model` at the end."""
    with preserve_model(model):
        model.eval()
        yield


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter, to which examples are moved; CPU without parameters."""
    return next((each.device for each in model.parameters()), torch.device("cpu"))


def flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """Return all gradients as one vector, [parameters]; zeros for None."""
    return torch.cat(
        [
            (torch.zeros_like(parameter) if gradient is None else gradient).detach().flatten()
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
    )


def flat_sums(sums: Sums, parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return weighted sums as one vector in the parameters' precision, [parameters]; zeros for
    missing ones."""
    return flat([sums[each].to(each) if each in sums else None for each in parameters], parameters)


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal in shape, type and value; NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return False
    if one.layout is not torch.strided:
        first, second = (each.detach().to_sparse_coo().coalesce() for each in (one, other))
        return same(first.indices(), second.indices()) and same(first.values(), second.values())
    return torch.equal(one, other) or torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def full_precision(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context in which autocast and products coarser than float32 (TF32, bfloat16) are off.

    Norms and sums must be of the same vectors.
    """
    autocast = torch.is_autocast_enabled(device.type)
    return partial(_exactly, device, autocast) if autocast or _coarse_products(device) else nullcontext


@contextmanager
def _exactly(device: torch.device, autocast: bool) -> Iterator[None]:
    if autocast:
        torch.clear_autocast_cache()  # copies of parameters from before the next step
    with exact_products(device), torch.autocast(device.type, enabled=False) if autocast else nullcontext():
        yield


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Compute products of float32 in float32, not in TF32 or bfloat16.

    TF32 is CUDA's default for convolutions and recurrent layers.
    """
    coarse = _coarse_products(device)
    before = [setting.fp32_precision for setting in coarse]
    try:
        for setting in coarse:
            setting.fp32_precision = "ieee"
        yield
    finally:
        for setting, precision in zip(coarse, before, strict=True):
            setting.fp32_precision = precision


def is_coarse(device: torch.device) -> bool:
    """Return whether products are computed in less than float32: under autocast, in TF32 or bfloat16.

    >>> is_coarse(torch.device("cpu"))
    False
    """
    return torch.is_autocast_enabled(device.type) or bool(_coarse_products(device))


def _coarse_products(device: torch.device) -> list[Any]:
    """Settings of PyTorch by which products of float32 are computed in less."""
    return [setting for setting in _PRECISION.get(device.type, ()) if setting.fp32_precision in _COARSE]
