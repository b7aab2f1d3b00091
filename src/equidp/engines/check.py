"""Tries a model and a loss on a few examples, before any budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equidp.engines.made_up_rows import TrialRows
from equidp.engines.mixing import check_mixing
from equidp.engines.moved import moved
from equidp.engines.preserved import same
from equidp.engines.trying import check_parameters, in_words, losses_of, outputs_of, tried
from equidp.errors import ModelError, shape_in_words
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, taken


def check_model(
    model: nn.Module,
    loss: LossFunction,
    inputs: Inputs,
    targets: Tensor,
    class_names: Sequence[str] = (),
    rows: TrialRows | None = None,
) -> None:
    """Refuses a model or loss for which per-example gradients make no sense.

    Args:
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: a few examples, [batch, ...], best made up (`made_up_examples`): what is accepted
            should not tell about data. Further ones of their shape and type are made up here.
        class_names: one per class, where targets are classes.
        rows: further ones to try; None: made up here.

    Raises:
        ModelError: BatchNorm, or anything else through which examples of a batch affect each other, as far as
            made-up batches show (`mixing.check_mixing`); buffers, parameters or attributes that change with
            data; no trainable parameter, or one in less than single precision; sparse gradients; a loss that
            is not one number per example, or fails for the last class.
    """
    check_parameters(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(
            parameter.requires_grad for parameter in module.parameters()
        ):
            raise ModelError(
                f"{name or 'the model'} is a scripted or traced module, whose layers cannot be read: engines "
                "measure gradients layer by layer. Train the Python module, and script it after training."
            )
        if isinstance(module, _BatchNorm):
            raise ModelError(
                f"{name or 'the model'} is {type(module).__name__}, which mixes the examples of a batch: no "
                "example's influence is bounded then. Use GroupNorm or LayerNorm, or let "
                "equidp.make_compatible(model) replace it, which keeps the statistics of one that is frozen "
                "(requires_grad_(False))."
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ModelError(
                f"{name or 'the model'} has sparse gradients, and noise makes every entry count. Make it "
                "with sparse=False, and take a dense optimizer."
            )
    if len(targets) == 1:
        inputs, targets = taken((inputs, targets), [0, 0])
    with tried(model, loss) as buffers:
        outputs = outputs_of(model, inputs)
        _check_buffers(model, buffers, inputs)
        if class_names:
            _check_last_class(loss, outputs, targets, class_names)
        losses_of(loss, outputs, targets)
        check_mixing(model, loss, partial(outputs_of, model), inputs, targets, rows)


def _check_buffers(model: nn.Module, before: dict[str, Tensor], inputs: Inputs) -> None:
    """Refuses buffers that a forward pass changes, also with other parameters, and says from what."""
    found = _changed_buffer(model, before, inputs)
    if found is None:
        with moved(model):
            try:
                found = _changed_buffer(model, before, inputs)
            except ModelError:
                return  # it fails with other parameters, and may never have such
    if found is None:
        return
    name, follows_from_data = found
    if follows_from_data:
        raise ModelError(
            f"buffer {name} changes in training: it carries statistics of the data past the noise. "
            "Turn its tracking off (track_running_stats=False)."
        )
    raise ModelError(
        f"buffer {name} changes in every forward pass, whatever the model reads, as those of spectral_norm "
        "do: how many passes a step takes follows from the size of its sample, which is private. Leave it "
        "out, or take weight_norm, which has no buffers."
    )


def _changed_buffer(model: nn.Module, before: dict[str, Tensor], inputs: Inputs) -> tuple[str, bool] | None:
    """A buffer that a forward pass changes, and whether it becomes another one with other inputs."""

    def after(inputs: Inputs) -> dict[str, Tensor]:
        for name, buffer in model.named_buffers():
            if name in before:
                buffer.copy_(before[name])
        outputs_of(model, inputs)
        return {name: buffer.clone() for name, buffer in model.named_buffers()}

    now = after(inputs)
    changed = [name for name in now if name not in before or not same(now[name], before[name])]
    if not changed:
        return None
    others = after(taken(inputs, slice(2)))
    differing = [name for name in changed if name not in others or not same(others[name], now[name])]
    return (differing or changed)[0], bool(differing)


def _check_last_class(
    loss: LossFunction, outputs: Tensor, targets: Tensor, class_names: Sequence[str]
) -> None:
    """Tries the loss on the last class, which may be rare: it would end training in the middle."""
    try:
        loss(outputs, torch.zeros_like(targets))
    except Exception:
        return  # it fails for all of them
    try:
        loss(outputs, torch.full_like(targets, len(class_names) - 1))
    except Exception as error:
        raise ModelError(
            f"the data has {len(class_names)} classes, and the loss fails for the last, {class_names[-1]!r} "
            f"({in_words(error)}). The model's outputs are {shape_in_words(outputs, 'batch')}; give one "
            "per class."
        ) from error
