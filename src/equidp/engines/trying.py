"""Runs a model to try it, and leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from equidp.engines.attributes import Attributes
from equidp.engines.called import called
from equidp.engines.layers.decomposed import attention_in_full
from equidp.engines.preserved import preserved, same
from equidp.errors import ModelError
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, mapped, tensors


def check_parameters(model: nn.Module) -> None:
    """Refuses parameters that cannot be trained, before the model is run."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        raise ModelError(
            "the model has no trainable parameter; set requires_grad on those that training should change."
        )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"parameter {name} has no shape yet (a lazy layer); run the model once on a batch before "
                "making the optimizer."
            )
        if parameter.is_meta:
            raise ModelError(
                f"parameter {name} is on the meta device and holds no values; give it some "
                "(model.to_empty(device='cpu'), then initialise or load)."
            )
    for name, parameter in trained.items():
        if parameter.is_complex():
            raise ModelError(
                f"parameter {name} is {parameter.dtype}, and gradients of complex numbers are not supported; "
                "expected torch.float32. Keep real and imaginary parts in a real parameter of shape "
                "[..., 2], and let the model read torch.view_as_complex(parameter)."
            )
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ModelError(
                f"parameter {name} is {parameter.dtype}, in which sums are too coarse for a bound; expected "
                "torch.float32. Keep parameters in float32 and train under torch.autocast(..., "
                "dtype=torch.bfloat16)."
            )


def outputs_of(model: nn.Module, inputs: Inputs, seed: int = 0) -> Tensor:
    """Returns outputs in training mode, with the same random numbers for the same seed."""
    torch.manual_seed(seed)
    try:
        outputs = called(model, inputs)
    except ModelError:
        raise
    except Exception as error:
        shapes = mapped(lambda each: list(each.shape), inputs)
        raise ModelError(
            f"the model cannot read inputs of shape {shapes}: {in_words(error)}. A model is "
            "tried on numbers that are made up, normal or between 0 and 1, never on data: check values "
            "before training, not in the model. If it demands more of a row, such as an end mark, give "
            "public rows that have it: examples=(inputs, targets)."
        ) from error
    count = len(tensors(inputs)[0])
    if outputs.shape[:1] != (count,):
        raise ModelError(
            f"the model gives {list(outputs.shape)} for {count} examples; expected a tensor [batch, ...]."
        )
    return outputs


def losses_of(loss: LossFunction, outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the losses, [batch]; a loss that fails, or gives anything else, is refused in words."""
    try:
        losses = loss(outputs, targets)
    except ModelError:
        raise
    except Exception as error:
        other = _dtype_that_works(loss, outputs, targets)
        if other is not None:
            raise ModelError(
                f"the loss cannot be taken of targets of {targets.dtype} ({in_words(error)}); "
                f"expected {other}. Let the dataset give them as such: targets.to({other})."
            ) from error
        raise ModelError(
            f"the loss cannot be taken of outputs {list(outputs.shape)} and targets {list(targets.shape)} "
            f"({in_words(error)}). A loss is tried on targets that are made up, classes from 0 on or "
            "numbers: let it take such, and turn them into others (-1 and 1) itself."
        ) from error
    if not isinstance(losses, Tensor) or losses.shape != (len(outputs),):
        given = (
            f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else f"type {type(losses).__name__}"
        )
        raise ModelError(
            f"the loss has {given} for {len(outputs)} examples; expected one number per example, "
            f"[{len(outputs)}]. Pass one that does not average, such as CrossEntropyLoss(reduction='none')."
        )
    return losses


def _dtype_that_works(loss: LossFunction, outputs: Tensor, targets: Tensor) -> torch.dtype | None:
    """Returns a type of targets, other than theirs, of which the loss can be taken; None: there is none."""
    for dtype in (torch.int64, outputs.dtype):
        with suppress(Exception):
            if dtype != targets.dtype and isinstance(loss(outputs, targets.to(dtype)), Tensor):
                return dtype
    return None


def in_words(error: Exception) -> str:
    """Returns an error's message, and its kind; an assertion may have no message."""
    return f"{type(error).__name__}: {error}".strip().rstrip(".:")


@contextmanager
def tried(model: nn.Module, loss: LossFunction | None = None) -> Iterator[dict[str, Tensor]]:
    """Runs the model in training mode without gradients; restores all of it and of the loss at the end.

    Yields copies of the buffers. Refuses a model that wrote to its parameters.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    attributes = Attributes(model, loss)
    rewritten: list[str] = []
    try:
        with preserved(model), torch.no_grad(), attention_in_full():
            model.train()
            yield buffers
        now = dict(model.named_parameters())
        rewritten = [name for name, kept in parameters.items() if not same(now[name].detach(), kept)]
    finally:
        attributes.restore()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])
            for name, parameter in model.named_parameters():
                parameter.data.copy_(parameters[name])
    if rewritten:
        raise ModelError(
            f"parameter {rewritten[0]} is written to when the model runs: it carries data past the noise. "
            "Initialise it without data, and let nothing but the optimizer change it."
        )
