"""Run a model on trial, and put back its buffers and random state, whatever it changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

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
def try_model(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Run the model in training mode without gradients; restore its parameters, buffers and modes at the end.

    In full float32, since TF32 rounds as coarsely as some models mix. Yields copies of the buffers. Refuses a
    model that wrote to its parameters. Frozen ones, which may be most of a model, are compared by a checksum
    and not copied: a write to them is refused, and stays.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    trained = {name: each.detach().clone() for name, each in model.named_parameters() if each.requires_grad}
    frozen = {name: checksum(each) for name, each in model.named_parameters() if not each.requires_grad}
    rewritten: list[str] = []
    try:
        with preserve_model(model), torch.no_grad(), attention_in_full(), exact_products(device_of(model)):
            model.train()
            yield buffers
        now = dict(model.named_parameters())
        rewritten = [name for name, kept in trained.items() if not same(now[name].detach(), kept)]
        rewritten += [name for name, kept in frozen.items() if checksum(now[name]) != kept]
    finally:
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
