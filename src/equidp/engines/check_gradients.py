"""Holds an engine to one backward pass per example, on a few examples, before any budget is spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

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
_NEGLIGIBLE = 1e-5
"""How far a parameter's sum may be off, relative to the longest gradient: rounding of the others."""
_LAST_DIGITS = 8
"""Relative change of parameters that only rounding makes large, in units of their last digit."""


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
    trial = _Trial(engine, model, loss, trained, inputs, targets)
    with tried(model, loss), torch.enable_grad():
        few = taken(inputs, slice(4))
        if not torch.equal(outputs_of(model, few, seed=0), outputs_of(model, few, seed=1)):
            _check_random_numbers(engine, inputs, targets)
            model.eval()
        found = trial.gradients()
        if not len(found.norms):
            raise ModelError(
                f"the gradients of all {len(targets)} examples that were tried are infinite or not numbers: "
                "nothing would be learned, and epsilon spent. Look at the scale of the model's initial "
                "weights, and at the loss."
            )
        size = found.true.norm(dim=1).max()
        same_norms = ((found.norms - found.true.norm(dim=1)).abs() <= _tolerance(targets) * size).all()
        if not (same_norms and torch.linalg.vector_norm(found.off) <= _TOLERANCE * size * len(found.norms)):
            raise _differs(engine, len(found.norms))
        rows = MadeUpInputs.like(inputs, model).moderate()
        asked = targets[torch.arange(len(tensors(rows)[0])) % len(targets)]
        _check_further(replace(trial, inputs=rows, targets=asked), huge=True)
        with moved(model):
            _check_further(replace(trial, inputs=taken(inputs, slice(2)), targets=targets[:2]), huge=False)


@dataclass(frozen=True)
class _Trial:
    """An engine of a model and a loss, and examples that it is tried on."""

    engine: MeasuringEngine
    model: nn.Module
    loss: LossFunction
    trained: list[nn.Parameter]
    inputs: Inputs
    targets: Tensor

    def gradients(self) -> _Gradients:
        """What the engine and autograd say of those examples whose true gradients are finite."""
        true = self.true_gradients()
        finite = torch.isfinite(torch.linalg.vector_norm(true, dim=1))
        true, inputs, targets = taken((true, self.inputs, self.targets), finite)
        trial = replace(self, inputs=inputs, targets=targets)
        if not len(true):
            return _Gradients(trial, true.new_empty(0), true.new_empty(0), true)
        with _explained(self.engine):
            norms, weights, total = _engines_gradients(self.engine, self.trained, inputs, targets)
        off = total - torch.tensordot(weights.to(total.dtype), true.to(total.dtype), dims=1)
        return _Gradients(trial, norms, off, true)

    def true_gradients(self) -> Tensor:
        """Those of one backward pass each, [batch, parameters]."""
        try:
            single = [
                torch.autograd.grad(
                    self.loss(called(self.model, x), y).sum(), self.trained, allow_unused=True
                )
                for x, y in (
                    taken((self.inputs, self.targets), [place]) for place in range(len(self.targets))
                )
            ]
        except Exception as error:
            raise ModelError(f"no gradient can be taken of the model's loss: {in_words(error)}") from error
        return torch.stack([flat(gradients, self.trained) for gradients in single])

    def own_norm(self, place: int) -> Tensor:
        """How far one example moves the engine's sum."""
        _clear(self.trained)
        measured = self.engine(self.inputs, self.targets)
        measured.weighted_sum((torch.arange(len(self.targets)) == place).to(measured.norms))
        length: Tensor = flat([parameter.grad for parameter in self.trained], self.trained).norm()
        return length


class _Gradients(NamedTuple):
    """Gradients of a trial's examples, all finite.

    Attributes:
        trial: of these examples alone.
        norms: by the engine, [batch].
        off: the engine's weighted sum less the true one, [parameters].
        true: [batch, parameters].
    """

    trial: _Trial
    norms: Tensor
    off: Tensor
    true: Tensor


def _check_further(trial: _Trial, *, huge: bool) -> None:
    """Refuses norms that are too small, or another sum, of extreme rows or with other parameters.

    Larger norms allow for rounding, and `huge` for rows whose true gradients are a matter of rounding.
    """
    try:
        found = trial.gradients()
    except ModelError:
        return  # rows or parameters that the model cannot meet
    _, norms, off, true = found
    if not len(norms):
        return
    size = true.norm(dim=1).max()
    small = (true.norm(dim=1) - norms > _tolerance(trial.targets) * size).any()
    differs = small or torch.linalg.vector_norm(off) > _TOLERANCE * size * len(norms)
    if differs and not huge:
        raise _differs(trial.engine, len(norms))
    if differs or (huge and _wrong_parts(off, true, trial.trained).any()):
        _check_beside_rounding(found)


def _check_beside_rounding(found: _Gradients) -> None:
    """Refuses the engine unless true gradients are a matter of rounding wherever it differs from them.

    They are where they change as soon as the last digits of parameters do: those of an attention that huge
    numbers saturate. Other parameters are compared with the true sum, and an example with such parameters
    must move the engine's own sum by the norm that the engine says.
    """
    trial, norms, off, true = found
    with _last_digits_changed(trial.trained):
        nearby = trial.true_gradients()
    steady = _lengths(true - nearby, trial.trained) <= _TOLERANCE * _lengths(true, trial.trained)
    wrong = steady.all(dim=0) & _wrong_parts(off, true, trial.trained)
    own = torch.stack([trial.own_norm(place) for place in range(len(norms))])
    expected = torch.where(steady.all(dim=1), true.norm(dim=1), own)
    same_norms = expected - norms <= _tolerance(trial.targets) * expected.max()
    if wrong.any() or not same_norms.all():
        raise _differs(trial.engine, len(norms))


def _wrong_parts(off: Tensor, true: Tensor, trained: list[nn.Parameter]) -> Tensor:
    """Which parameters' sums are off by more than rounding, [parameters]."""
    allowed = _TOLERANCE * len(true) * _lengths(true, trained).amax(dim=0)
    most = allowed + _NEGLIGIBLE * true.norm(dim=1).max()
    return torch.logical_not(_lengths(off, trained) <= most)


def _lengths(gradients: Tensor, trained: list[nn.Parameter]) -> Tensor:
    """The length of each parameter's part, [..., parameters]."""
    sizes = [parameter.numel() for parameter in trained]
    return torch.stack([part.norm(dim=-1) for part in gradients.split(sizes, dim=-1)], dim=-1)


@contextmanager
def _last_digits_changed(trained: list[nn.Parameter]) -> Iterator[None]:
    before = [parameter.detach().clone() for parameter in trained]
    try:
        for parameter in trained:
            parameter.data.mul_(1 + _LAST_DIGITS * torch.finfo(parameter.dtype).eps)
        torch.clear_autocast_cache()  # copies from before
        yield
    finally:
        for parameter, values in zip(trained, before, strict=True):
            parameter.data.copy_(values)
        torch.clear_autocast_cache()


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


def _clear(trained: list[nn.Parameter]) -> None:
    """An engine adds to the gradients that are there."""
    for parameter in trained:
        parameter.grad = None


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
    _clear(trained)
    with suppress(Exception):
        # Until it has seen two sizes, an engine may mistake a table with as many rows for the batch.
        engine(*taken((inputs, targets), slice(1, None)))
        engine(inputs, targets)
    measured = engine(inputs, targets)
    norms = measured.norms
    weights = torch.arange(1, len(norms) + 1).to(norms) / len(norms)
    measured.weighted_sum(weights)
    return norms, weights, flat([parameter.grad for parameter in trained], trained)
