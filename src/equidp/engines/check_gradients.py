"""Holds an engine to one backward pass per example, on a few examples, before any budget is spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from equidp.engines.called import called
from equidp.engines.made_up_rows import MadeUpInputs
from equidp.engines.measured import MeasuringEngine
from equidp.engines.moved import moved
from equidp.engines.preserved import flat
from equidp.engines.trying import in_words, outputs_of, tried
from equidp.errors import ModelError
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, taken, tensors

_TOLERANCE = 0.02
"""How far norms may be apart, relative to the largest; wrong gradients are apart by far more."""
_AUTOCAST_TOLERANCE = 0.2
"""The same under autocast, where rounding alone makes twenty layers differ by several percent."""


def check_engine(
    engine: MeasuringEngine, model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Tensor
) -> None:
    """Refuses an engine whose norms or sum differ from those of one backward pass per example.

    A model that draws random numbers (dropout) is compared in evaluation mode: two passes could not be
    compared otherwise.

    Args:
        engine: of this model and loss.
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: a few examples, [batch, ...], best made up. Extreme ones of their shape and type are
            made up here.

    Raises:
        ModelError: they differ, or the engine cannot be used with this model.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with tried(model, loss), torch.enable_grad():
        few = taken(inputs, slice(4))
        if not torch.equal(outputs_of(model, few, seed=0), outputs_of(model, few, seed=1)):
            _check_random_numbers(engine, inputs, targets)
            model.eval()
        norms, total, true = _gradients(engine, model, loss, trained, inputs, targets)
        if not len(norms):
            raise ModelError(
                f"the gradients of all {len(targets)} examples that were tried are infinite or not numbers: "
                "nothing would be learned, and epsilon spent. Look at the scale of the model's initial "
                "weights, and at the loss."
            )
        size = true.norm(dim=1).max()
        same_norms = ((norms - true.norm(dim=1)).abs() <= _tolerance(targets) * size).all()
        if not (same_norms and torch.linalg.vector_norm(total) <= _TOLERANCE * size * len(norms)):
            raise _differs(engine, len(norms))
        rows = MadeUpInputs.like(inputs, model).moderate()
        asked = targets[torch.arange(len(tensors(rows)[0])) % len(targets)]
        _check_further(engine, model, loss, trained, rows, asked)
        with moved(model):
            _check_further(engine, model, loss, trained, taken(inputs, slice(2)), targets[:2])


def _check_further(
    engine: MeasuringEngine,
    model: nn.Module,
    loss: LossFunction,
    trained: list[nn.Parameter],
    inputs: Inputs,
    targets: Tensor,
) -> None:
    """Refuses norms that are too small, or another sum, of extreme rows or with other parameters.

    Larger norms allow for rounding.
    """
    try:
        norms, total, true = _gradients(engine, model, loss, trained, inputs, targets)
    except ModelError:
        return  # rows or parameters that the model cannot meet
    if not len(norms):
        return
    size = true.norm(dim=1).max()
    small = (true.norm(dim=1) - norms > _tolerance(targets) * size).any()
    if small or torch.linalg.vector_norm(total) > _TOLERANCE * size * len(norms):
        raise _differs(engine, len(norms))


def _gradients(
    engine: MeasuringEngine,
    model: nn.Module,
    loss: LossFunction,
    trained: list[nn.Parameter],
    inputs: Inputs,
    targets: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Norms by the engine, its weighted sum less the true one, and true gradients, [batch, parameters].

    Of those examples whose gradients are finite.
    """
    try:
        single = [
            torch.autograd.grad(loss(called(model, x), y).sum(), trained, allow_unused=True)
            for x, y in (taken((inputs, targets), [place]) for place in range(len(targets)))
        ]
    except Exception as error:
        raise ModelError(f"no gradient can be taken of the model's loss: {in_words(error)}") from error
    true = torch.stack([flat(gradients, trained) for gradients in single])
    finite = torch.isfinite(torch.linalg.vector_norm(true, dim=1))
    true, inputs, targets = taken((true, inputs, targets), finite)
    if not len(true):
        return true.new_empty(0), true.new_empty(0), true
    for parameter in trained:
        parameter.grad = None
    with _explained(engine):
        norms, weights, total = _engines_gradients(engine, trained, inputs, targets)
    return norms, total - torch.tensordot(weights.to(total.dtype), true.to(total.dtype), dims=1), true


def _tolerance(targets: Tensor) -> float:
    return _AUTOCAST_TOLERANCE if torch.is_autocast_enabled(targets.device.type) else _TOLERANCE


def _differs(engine: MeasuringEngine, count: int) -> ModelError:
    return ModelError(
        f"{type(engine).__name__}'s gradients of {count} examples differ from those of one backward pass "
        "each. A parameter may be used outside of the layer that owns it (such as F.linear(x, "
        "self.words.weight); call the layer), or examples may change places on their way (sorted by length: "
        "enforce_sorted=False does without). Or use engine='functional'."
    )


def _check_random_numbers(engine: MeasuringEngine, inputs: Inputs, targets: Tensor) -> None:
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
    except Exception as error:
        raise ModelError(
            f"{type(engine).__name__} cannot take per-example gradients of this model: {error}"
        ) from error


def _engines_gradients(
    engine: MeasuringEngine, trained: list[nn.Parameter], inputs: Inputs, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The engine's norms, weights [batch] that are different for each example, and the weighted sum."""
    with suppress(Exception):
        # Until it has seen two sizes, an engine may mistake a table with as many rows for the batch.
        engine(*taken((inputs, targets), slice(1, None)))
        engine(inputs, targets)
    measured = engine(inputs, targets)
    norms = measured.norms
    weights = torch.arange(1, len(norms) + 1).to(norms) / len(norms)
    measured.weighted_sum(weights)
    return norms, weights, flat([parameter.grad for parameter in trained], trained)
