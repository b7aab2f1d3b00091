"""Run a model on trial, and put back its buffers, random state and attributes, whatever it changed."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import is_not
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from equidp.engines.layers.decomposed import attention_in_full
from equidp.engines.model import call_model, device_of, exact_products, preserve_model, same
from equidp.errors import EquidpError, ModelError, error_text
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, count_in, map_tensors, tensors
from equidp.losses import map_outputs, output_tensors


def check_parameters(model: nn.Module) -> None:
    """Refuse parameters that cannot be trained, before the model is run."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        raise ModelError(
            "the model has no trainable parameter; set requires_grad on those that training should change.",
            field="model",
        )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"parameter {name} has no shape yet (a lazy layer); run the model once on a batch before "
                "making the optimizer.",
                field=name,
            )
        if parameter.is_meta:
            raise ModelError(
                f"parameter {name} is on the meta device and holds no values; give it some "
                "(model.to_empty(device='cpu'), then initialise or load).",
                field=name,
            )
    for name, parameter in trained.items():
        if hook := _changing_hook(parameter):
            raise ModelError(
                f"parameter {name} has a hook on its gradient ({hook}), and a private step forms no such "
                "gradient of one example. Remove it. To change the private gradient before a step, use "
                "optimizer.register_step_pre_hook; to leave a part of a parameter as it is, keep that in a "
                "parameter of its own with requires_grad_(False).",
                field=name,
            )
        if parameter.is_complex():
            raise ModelError(
                f"parameter {name} is {parameter.dtype}, and gradients of complex numbers are not supported; "
                "expected torch.float32. Keep real and imaginary parts in a real parameter of shape "
                "[..., 2], and let the model read torch.view_as_complex(parameter).",
                field=name,
            )
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ModelError(
                f"parameter {name} is {parameter.dtype}, in which sums are too coarse for a bound; expected "
                "torch.float32. Keep parameters in float32 and train under torch.autocast(..., "
                "dtype=torch.bfloat16).",
                field=name,
            )


def _changing_hook(parameter: nn.Parameter) -> str | None:
    """Return the kind of a hook that changes the parameter's gradient or reads it in `grad`; None: no such.

    Hooks that return nothing and write nothing, as those of loggers, change no gradient.
    """
    if parameter._post_accumulate_grad_hooks:
        return "register_post_accumulate_grad_hook"
    hooks: Any = parameter._backward_hooks
    for hook in list((hooks or {}).values()):
        gradient = torch.ones_like(parameter, requires_grad=False)
        version = gradient._version
        with torch.no_grad(), suppress(Exception):
            returned = hook(gradient)
            if gradient._version == version and (returned is None or returned is gradient):
                continue
        return "register_hook"
    return None


def seed_generators(seed: int) -> None:
    """Seed torch's generators; without an accelerator that of the CPU alone, in a tenth of the time."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # torch.manual_seed would format three stack traces for a GPU to come
        torch.default_generator.manual_seed(seed)


def outputs_of(model: nn.Module, inputs: Inputs, seed: int = 0) -> Any:
    """Return outputs in training mode, with the same random numbers for the same seed."""
    seed_generators(seed)
    try:
        outputs = call_model(model, inputs)
    except EquidpError:  # has a reason of its own
        raise
    except Exception as error:
        shapes = map_tensors(lambda each: list(each.shape), inputs)
        raise ModelError(
            f"the model cannot read inputs of shape {shapes}: {error_text(error)}. A model is "
            "tried on numbers that are made up, normal or between 0 and 1, never on data: check values "
            "before training, not in the model. If it demands more of a row, such as an end mark, give "
            "public rows that have it: examples=(inputs, targets).",
            field="inputs",
        ) from error
    count = count_in(inputs)
    if any(each.shape[:1] != (count,) for each in output_tensors(outputs)):
        shapes = map_outputs(lambda each: list(each.shape), outputs)
        raise ModelError(
            f"the model gives {shapes} for {count} examples; expected tensors [batch, ...].",
            field="model",
        )
    return outputs


def losses_of(loss: LossFunction, outputs: Any, targets: Inputs) -> Tensor:
    """Return the losses, [batch]; a loss that fails, or gives anything else, is refused in words."""
    try:
        losses = loss(outputs, targets)
    except EquidpError:  # has a reason of its own
        raise
    except Exception as error:
        other = None
        if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
            other = _dtype_that_works(loss, outputs, targets)
        if other is not None:
            raise ModelError(
                f"the loss cannot be taken of targets of {tensors(targets)[0].dtype} ({error_text(error)}); "
                f"expected {other}. Let the dataset give them as such: targets.to({other}).",
                field="targets",
            ) from error
        shapes = map_outputs(lambda each: list(each.shape), (outputs, targets))
        how = (
            "Of a mapping with 'logits' it gets these alone: call them otherwise for a loss of all outputs."
            if isinstance(outputs, Tensor)
            else "It gets all outputs: let it read its part of them, or let the model return a mapping whose "
            "'logits' are that part."
        )
        raise ModelError(
            f"the loss cannot be taken of outputs {shapes[0]} and targets {shapes[1]} "
            f"({error_text(error)}). {how} A loss is tried on targets that are made up, classes from 0 on "
            "(as many as the model has outputs, where the data names none) or numbers: let it take such, and "
            "turn them into others (-1 and 1) itself, or give public rows: examples=(inputs, targets).",
            field="loss",
        ) from error
    count = count_in(targets)
    if not isinstance(losses, Tensor) or losses.shape != (count,):
        given = (
            f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else f"type {type(losses).__name__}"
        )
        raise ModelError(
            f"the loss has {given} for {count} examples; expected one number per example, "
            f"[{count}]. Add those of several heads, and pass one that does not average, such as "
            "CrossEntropyLoss(reduction='none'). A loss of a whole batch, such as a gap between groups, has "
            "none: docs/batch-losses.md has its sound form.",
            field="loss",
        )
    return losses


def _dtype_that_works(loss: LossFunction, outputs: Tensor, targets: Tensor) -> torch.dtype | None:
    """Return a type of targets, other than theirs, of which the loss can be taken; None: there is none."""
    for dtype in (torch.int64, outputs.dtype):
        with suppress(Exception):
            if dtype != targets.dtype and isinstance(loss(outputs, targets.to(dtype)), Tensor):
                return dtype
    return None


@contextmanager
def try_model(model: nn.Module, loss: LossFunction | None = None) -> Iterator[dict[str, Tensor]]:
    """Run the model in training mode without gradients; restore all of it and of the loss at the end.

    In full float32, since TF32 rounds as coarsely as some models mix. Yields copies of the buffers. Refuses a
    model that wrote to its parameters. Frozen ones, which may be most of a model, are compared by a checksum
    and not copied: a write to them is refused, and stays.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    trained = {name: each.detach().clone() for name, each in model.named_parameters() if each.requires_grad}
    frozen = {name: checksum(each) for name, each in model.named_parameters() if not each.requires_grad}
    attributes = Attributes(model, loss)
    rewritten: list[str] = []
    try:
        with preserve_model(model), torch.no_grad(), attention_in_full(), exact_products(device_of(model)):
            model.train()
            yield buffers
        now = dict(model.named_parameters())
        rewritten = [name for name, kept in trained.items() if not same(now[name].detach(), kept)]
        rewritten += [name for name, kept in frozen.items() if checksum(now[name]) != kept]
    finally:
        attributes.restore()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])
            for name, parameter in model.named_parameters():
                if name in trained:
                    parameter.data.copy_(trained[name])
    if rewritten:
        raise ModelError(
            f"parameter {rewritten[0]} is written to when the model runs: it carries data past the noise. "
            "Initialise it without data, and let nothing but the optimizer change it.",
            field=rewritten[0],
        )


_AT_A_TIME = 2**14
"""Numbers of a checksum that are multiplied at a time: few enough to stay in a CPU's cache."""
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of whole numbers by size in bytes."""


def checksum(values: Tensor) -> tuple[int, ...]:
    """Return a checksum of a parameter's bits, one number per block; a change of one number changes it.

    Numbers are multiplied by odd ones of their places, so that numbers which change places change it too.
    """
    numbers = values.detach()
    numbers = torch.view_as_real(numbers) if numbers.is_complex() else numbers
    bits = numbers.reshape(-1).view(_WHOLE[numbers.element_size()])
    places = torch.arange(1, 2 * _AT_A_TIME, 2, dtype=torch.int32, device=bits.device).to(bits.dtype)
    found = [(block * places[: len(block)]).sum(dtype=torch.int64) for block in bits.split(_AT_A_TIME)]
    return tuple(torch.stack(found).tolist()) if len(bits) else ()


_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that torch gives every module: parameters, buffers and children are looked at elsewhere."""
_HOLDING = ("_parameters", "_buffers", "_modules")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OTHERS = (sys.stdlib_module_names | {"torch", "numpy"}) - {"__main__", "types"}
_LARGEST = 2**20
"""Tensors of more numbers are distinguished by their version alone: a dataset that a loss holds, say."""


class _Node(NamedTuple):
    """A value as it was: itself, and what it held."""

    value: Any
    held: Any


@final
class Attributes:
    """The attributes of a model's modules and of a loss, with copies of what they hold.

    Lists, dictionaries, objects and what a function closes over are followed, and modules that are none of
    the model's, with parameters and buffers. The model's own of these, class attributes and globals are not
    looked at.

    Args:
        model: all its modules.
        loss: a module, an object, a function or a method.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Any] | None = None) -> None:
        # Elsewhere the model's parameters and buffers are compared and put back.
        self._seen: set[int] = {
            id(each) for each in [*model.modules(), *model.parameters(), *model.buffers()]
        }
        self._owners: dict[str, tuple[Any, dict[str, _Node]]] = {}
        for label, owner in _owners(model, loss):
            held = _read(owner) if id(owner) in self._seen else _read_all(owner)
            self._owners[label] = owner, {name: self._node(value) for name, value in held.items()}

    def restore(self) -> None:
        """Restore all attributes and their contents."""
        for owner, nodes in self._owners.values():
            _write(owner, {name: node.value for name, node in nodes.items()})
            for node in nodes.values():
                _put_back(node)

    def differing(self, other: Attributes) -> str | None:
        """Return the first attribute that is not the same in both, or None."""
        for label, (_, nodes) in self._owners.items():
            others = other._owners[label][1] if label in other._owners else {}
            for name in [*nodes, *(name for name in others if name not in nodes)]:
                if name not in nodes or name not in others or not _same(nodes[name], others[name]):
                    return f"{name.lstrip('_')} of {label}" if name in _HOLDING else f"{name} of {label}"
        return None

    def _node(self, value: Any) -> _Node:
        if isinstance(value, _PLAIN):
            return _Node(value, value)
        if id(value) in self._seen or isinstance(value, type | ModuleType):
            return _Node(value, None)
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            small = value.numel() <= _LARGEST and not value.is_meta
            return _Node(value, value.detach().clone() if small else value._version)
        if isinstance(value, np.ndarray):
            return _Node(value, value.copy())
        if isinstance(value, dict):
            return _Node(value, {key: self._node(each) for key, each in value.items()})
        if isinstance(value, list | tuple | deque):
            return _Node(value, [self._node(each) for each in value])
        if isinstance(value, set | frozenset):
            return _Node(value, set(value))
        if isinstance(value, FunctionType | nn.Module) or _is_users_object(value):
            return _Node(value, {name: self._node(each) for name, each in _read_all(value).items()})
        return _Node(value, None)


def _owners(model: nn.Module, loss: Any) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        yield f"module {name}" if name else f"the model ({type(module).__name__})", module
    while isinstance(loss, partial):
        loss = loss.func
    if isinstance(loss, MethodType):
        loss = loss.__self__
    if isinstance(loss, nn.Module):
        for name, module in loss.named_modules():
            yield f"the loss's module {name}" if name else f"the loss ({type(module).__name__})", module
    elif isinstance(loss, FunctionType) or _is_users_object(loss):
        yield f"the loss ({getattr(loss, '__name__', type(loss).__name__)})", loss


def _is_users_object(value: Any) -> bool:
    """Return True for an object with attributes, of a class outside Python, torch and NumPy."""
    module = type(value).__module__.split(".")[0]
    return hasattr(value, "__dict__") and module not in _OTHERS


def _read(owner: Any) -> dict[str, Any]:
    if isinstance(owner, nn.Module):
        return {name: value for name, value in vars(owner).items() if name not in _OF_TORCH}
    if isinstance(owner, FunctionType):
        return vars(owner) | {name: cell.cell_contents for name, cell in _cells(owner)}
    return dict(vars(owner))


def _read_all(owner: Any) -> dict[str, Any]:
    """Return the attributes, and the entries of the dictionaries that torch gives a module."""
    if isinstance(owner, nn.Module):
        return _read(owner) | {name: vars(owner)[name] for name in _HOLDING}
    return _read(owner)


def _write(owner: Any, values: dict[str, Any]) -> None:
    """Give an owner these attributes and no others."""
    cells = dict(_cells(owner)) if isinstance(owner, FunctionType) else {}
    now = _read(owner)
    for name in now.keys() - values.keys():
        del vars(owner)[name]
    for name, value in values.items():
        if name not in now or now[name] is not value:
            if name in cells:
                cells[name].cell_contents = value
            else:
                vars(owner)[name] = value


def _cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables that a function closes over, where they have a value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            _ = cell.cell_contents
        except ValueError:
            continue
        yield name, cell


def _put_back(node: _Node) -> None:
    value, held = node
    if held is None:
        return  # put back where it was met first
    if isinstance(value, Tensor):
        if isinstance(held, Tensor) and not same(value, held):
            with torch.no_grad():
                value.detach().resize_(held.shape).copy_(held)
    elif isinstance(value, np.ndarray):
        value[...] = held
    elif isinstance(value, set):
        if value != held:
            value.clear()
            value.update(held)
    elif isinstance(held, dict):
        values = {name: each.value for name, each in held.items()}
        if not isinstance(value, dict):
            _write(value, values)
        elif value.keys() != held.keys() or any(value[key] is not values[key] for key in values):
            value.clear()
            value.update(values)
    elif isinstance(value, list | deque):
        before = [each.value for each in held]
        if len(value) != len(before) or any(map(is_not, value, before)):
            value.clear()
            value.extend(before)
    for each in held.values() if isinstance(held, dict) else held if isinstance(held, list) else ():
        _put_back(each)


def _same(one: _Node, other: _Node) -> bool:
    first, second = one.held, other.held
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor):
        return same(first, second)
    if isinstance(first, np.ndarray):
        return first.shape == second.shape and bool(np.all((first == second) | (first != first)))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(each, second[key]) for key, each in first.items())
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second) or first != first
