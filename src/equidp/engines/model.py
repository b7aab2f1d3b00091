"""Calls of a model on inputs of any form, and its modes, device, precision and gradients as one vector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from equidp.errors import ModelError
from equidp.kernel.engine import Sums
from equidp.kernel.generators import restore_generators
from equidp.kernel.inputs import Inputs
from equidp.losses import output_tensors

Examples = tuple[Inputs, Inputs]
"""Inputs and targets, [batch, ...]."""
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

    Each tensor of a module is replaced once. If a module has two names, `functional_call` replaces its
    tensors twice, and puts back a replacement in the end.

    Args:
        model: any module.
        values: values by the names from `named_parameters` and `named_buffers`. The value of a shared tensor
            applies in all of its places.
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
        ModelError: it contains no tensor.

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
def preserve_modes(model: nn.Module) -> Iterator[None]:
    """Restore the modes of the model and of its parts at the end of the context."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def preserve_model(model: nn.Module) -> Iterator[None]:
    """Restore the model's modes, its gradients and random numbers at the end of the context."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        devices = (parameter.device for parameter in model.parameters())
        with preserve_modes(model), restore_generators(*devices):
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def replaced(values: Sequence[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
    """Set names of namespaces, such as `vars(module)`, to other values inside the context."""
    before = [(names, name, names.get(name, replaced)) for names, name, _ in values]
    try:
        for names, name, value in values:
            names[name] = value
        yield
    finally:
        for names, name, value in before:
            if value is replaced:  # there was none
                names.pop(name, None)
            else:
                names[name] = value


def set_training_mode(model: nn.Module) -> None:
    """Set the model to training mode, except BatchNorm in evaluation mode, which stays frozen.

    >>> model = nn.Sequential(nn.BatchNorm1d(2).eval(), nn.Dropout())
    >>> set_training_mode(model)
    >>> [each.training for each in model]
    [False, True]
    """
    frozen = [each for each in model.modules() if isinstance(each, _BatchNorm) and not each.training]
    model.train()
    for each in frozen:
        each.eval()


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


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Turn off autocast and products coarser than float32: norms and sums must be of the same vectors."""
    autocast = torch.is_autocast_enabled(device.type)
    if autocast:
        torch.clear_autocast_cache()  # copies of parameters from before the next step
    with exact_products(device), torch.autocast(device.type, enabled=False) if autocast else nullcontext():
        yield


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Compute products of float32 in float32, not in TF32 or bfloat16.

    TF32 is CUDA's default for convolutions and recurrent layers.
    """
    settings = _PRECISION.get(device.type, ())
    coarse = [each for each in settings if each.fp32_precision in _COARSE]
    before = [setting.fp32_precision for setting in coarse]
    try:
        for setting in coarse:
            setting.fp32_precision = "ieee"
        yield
    finally:
        for setting, precision in zip(coarse, before, strict=True):
            setting.fp32_precision = precision


def are_finite(norms: Tensor) -> bool:
    """Return whether all norms are finite. Their sum says so at once, unless it overflows.

    >>> are_finite(torch.tensor([1.0, 2.0])), are_finite(torch.tensor([1.0, torch.nan]))
    (True, False)
    """
    return math.isfinite(float(norms.sum())) or bool(torch.isfinite(norms).all())
