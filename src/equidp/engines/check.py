"""Tries a model and an engine on a few examples, before any budget is spent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from equidp.engines.layers.decomposed import attention_in_full
from equidp.engines.layers.rng_state import RandomState
from equidp.engines.measured import MeasuringEngine
from equidp.engines.preserved import flat, preserved
from equidp.errors import ModelError, shape_in_words
from equidp.kernel.engine import LossFunction

_TOLERANCE = 0.02
"""How far norms may be apart, relative to the largest; wrong gradients are apart by far more."""
_AUTOCAST_TOLERANCE = 0.2
"""The same under autocast, where rounding alone makes twenty layers differ by several percent."""
_SEEDS = 10
"""How often a model that draws random numbers is run: it may mix examples in some passes only."""


def check_model(
    model: nn.Module, loss: LossFunction, inputs: Tensor, targets: Tensor, class_names: Sequence[str] = ()
) -> None:
    """Refuses a model or loss for which per-example gradients make no sense.

    Args:
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: a few examples, [batch, ...]. Nothing about them is kept.
        class_names: one per class, where targets are classes.

    Raises:
        ModelError: BatchNorm, or anything else through which examples of a batch affect each other; buffers
            or parameters that running the model changes; no trainable parameter, or one in less than single
            precision; a loss that is not one number per example, or fails for the last class.
    """
    _check_parameters(model)
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ModelError(
                f"{name or 'the model'} is {type(module).__name__}, which mixes the examples of a batch: no "
                "example's influence is bounded then. Use GroupNorm or LayerNorm, or let "
                "equidp.make_compatible(model) replace it."
            )
    if len(inputs) == 1:
        inputs, targets = inputs.repeat_interleave(2, dim=0), targets.repeat_interleave(2, dim=0)
    with _tried(model) as buffers:
        outputs = _forward(model, inputs)
        for name, buffer in model.named_buffers():
            if name not in buffers or not _same(buffer, buffers[name]):
                raise ModelError(
                    f"buffer {name} changes in training: it carries statistics of the data past the noise. "
                    "Turn its tracking off (track_running_stats=False)."
                )
        _check_loss(loss, outputs, targets)
        if class_names:
            _check_last_class(loss, outputs, targets, class_names)
        _check_mixing(model, inputs)


def _check_parameters(model: nn.Module) -> None:
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
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ModelError(
                f"parameter {name} is {parameter.dtype}, in which sums are too coarse for a bound; expected "
                "torch.float32. Keep parameters in float32 and train under torch.autocast(..., "
                "dtype=torch.bfloat16)."
            )


def _forward(model: nn.Module, inputs: Tensor, seed: int = 0) -> Tensor:
    """Returns outputs in training mode, with the same random numbers for the same seed."""
    torch.manual_seed(seed)
    try:
        outputs = model(inputs)
    except (RuntimeError, IndexError, TypeError, AssertionError) as error:
        raise ModelError(f"the model cannot read inputs of shape {list(inputs.shape)}: {error}") from error
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
        shape = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ModelError(
            f"the model gives {shape} for {len(inputs)} examples; expected a tensor [batch, ...]."
        )
    return outputs


def _check_loss(loss: LossFunction, outputs: Tensor, targets: Tensor) -> None:
    try:
        losses = loss(outputs, targets)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ModelError(
            f"the loss cannot be taken of outputs {list(outputs.shape)} and targets {list(targets.shape)}: "
            f"{error}"
        ) from error
    if losses.shape != (len(outputs),):
        raise ModelError(
            f"the loss has shape {list(losses.shape)} for {len(outputs)} examples; expected one number per "
            f"example, [{len(outputs)}]. Pass one that does not average, such as "
            "CrossEntropyLoss(reduction='none')."
        )


def _check_last_class(
    loss: LossFunction, outputs: Tensor, targets: Tensor, class_names: Sequence[str]
) -> None:
    """Tries the loss on the last class, which may be rare: it would end training in the middle."""
    try:
        loss(outputs, torch.full_like(targets, len(class_names) - 1))
    except (RuntimeError, IndexError, ValueError) as error:
        raise ModelError(
            f"the data has {len(class_names)} classes, and the loss fails for the last, {class_names[-1]!r} "
            f"({error}). The model's outputs are {shape_in_words(outputs, 'batch')}; give it one per class."
        ) from error


def _check_mixing(model: nn.Module, inputs: Tensor) -> None:
    """Perturbs all other examples; outputs of the first and last must not change."""
    before = RandomState(inputs.device)
    model(inputs)
    for seed in range(_SEEDS if before.moved() else 1):
        outputs = _forward(model, inputs, seed)
        for kept in (0, len(inputs) - 1):
            others = inputs.roll(1, dims=0)
            if inputs.is_floating_point():
                others = 3.0 * others + 1.0
            others[kept] = inputs[kept]
            again = _forward(model, others, seed)
            if not torch.allclose(again[kept], outputs[kept], rtol=1e-3, atol=1e-5, equal_nan=True):
                raise ModelError(
                    "the model's output for one example changes with the other examples in the batch, so no "
                    "example's influence is bounded. Look for statistics over the batch, or attention over "
                    "the batch axis (batch_first=True?)."
                )


def check_engine(
    engine: MeasuringEngine, model: nn.Module, loss: LossFunction, inputs: Tensor, targets: Tensor
) -> None:
    """Refuses an engine whose norms or sum differ from those of one backward pass per example.

    A model that draws random numbers (dropout) is compared in evaluation mode: two passes could not be
    compared otherwise.

    Args:
        engine: of this model and loss.
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: a few examples, [batch, ...]. Nothing about them is kept.

    Raises:
        ModelError: they differ, or the engine cannot be used with this model.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with _tried(model), torch.enable_grad():
        if not torch.equal(_forward(model, inputs, seed=0), _forward(model, inputs, seed=1)):
            _check_random_numbers(engine, inputs, targets)
            model.eval()
        single = [
            flat(
                torch.autograd.grad(loss(model(x[None]), y[None]).sum(), trained, allow_unused=True), trained
            )
            for x, y in zip(inputs, targets, strict=True)
        ]
        finite = torch.stack([torch.isfinite(gradient).all() for gradient in single])
        if not finite.any():
            raise ModelError(
                f"the gradients of all {len(inputs)} examples that were tried are infinite or not numbers: "
                "nothing would be learned, and epsilon spent. Look for missing or huge values in inputs and "
                "targets, and at the loss."
            )
        rows = torch.stack([gradient for gradient, each in zip(single, finite, strict=True) if each])
        inputs, targets = inputs[finite], targets[finite]
        for parameter in trained:
            parameter.grad = None
        with _explained(engine):
            norms, weights, total = _engines_gradients(engine, trained, inputs, targets)
    true_norms = torch.stack([torch.linalg.vector_norm(row) for row in rows])
    size = true_norms.max()
    coarse = torch.is_autocast_enabled(inputs.device.type)
    allowed = (_AUTOCAST_TOLERANCE if coarse else _TOLERANCE) * size
    same_norms = ((norms - true_norms).abs() <= allowed).all()
    true_sum = torch.tensordot(weights.to(total.dtype), rows.to(total.dtype), dims=1)
    same_sum = torch.linalg.vector_norm(total - true_sum) <= _TOLERANCE * size * len(inputs)
    if not (same_norms and same_sum):
        raise ModelError(
            f"{type(engine).__name__}'s gradients of {len(inputs)} examples differ from those of one "
            "backward pass each. A parameter may be used outside of the layer that owns it (such as "
            "F.linear(x, self.words.weight); call the layer), or examples may change places on their way "
            "(sorted by length: enforce_sorted=False does without). Or use engine='functional'."
        )


def _check_random_numbers(engine: MeasuringEngine, inputs: Tensor, targets: Tensor) -> None:
    with _explained(engine):
        drew_otherwise = engine(inputs, targets).drew_otherwise
    if drew_otherwise is not None and drew_otherwise.any():
        raise ModelError(
            "a module that torch.func runs again for one example at a time draws random numbers (dropout) in "
            "an order of its own. Use engine='functional', or that module without."
        )


@contextmanager
def _explained(engine: MeasuringEngine) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ModelError(
            f"{type(engine).__name__} cannot take per-example gradients of this model: {error}"
        ) from error


def _engines_gradients(
    engine: MeasuringEngine, trained: list[nn.Parameter], inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The engine's norms, weights [batch] that are different for each example, and the weighted sum."""
    with suppress(RuntimeError, ValueError, TypeError, IndexError):
        # Until it has seen two sizes, an engine may mistake a table with as many rows for the batch.
        engine(inputs[1:], targets[1:])
        engine(inputs, targets)
    measured = engine(inputs, targets)
    norms = measured.norms
    weights = torch.arange(1, len(norms) + 1).to(norms) / len(norms)
    measured.weighted_sum(weights)
    return norms, weights, flat([parameter.grad for parameter in trained], trained)


@contextmanager
def _tried(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Runs the model in training mode without gradients; restores all of it at the end.

    Yields copies of the buffers. Refuses a model that wrote to its parameters.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    rewritten: list[str] = []
    try:
        with preserved(model), torch.no_grad(), attention_in_full():
            model.train()
            yield buffers
        now = dict(model.named_parameters())
        rewritten = [name for name, kept in parameters.items() if not _same(now[name].detach(), kept)]
    finally:
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


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
