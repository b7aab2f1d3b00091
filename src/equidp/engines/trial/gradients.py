"""Compare an engine with one backward pass per example, on a few examples, before any budget is spent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from equidp.engines.functional import FunctionalEngine
from equidp.engines.ghost import GhostEngine
from equidp.engines.measurement import Examples, MeasuredBatch
from equidp.engines.model import call_model, same
from equidp.engines.trial.mixing import moved_parameters
from equidp.engines.trial.rows import MadeUpInputs, TrialRows
from equidp.engines.trial.running import (
    losses_of,
    outputs_of,
    seed_generators,
    try_model,
)
from equidp.errors import ModelError, error_text
from equidp.kernel.engine import Engine, LossFunction, Sums
from equidp.kernel.inputs import Inputs, count_in, in_parts, taken, tensors
from equidp.losses import output_tensors

_TOLERANCE = 0.02
"""Largest difference of norms, relative to the largest norm; wrong gradients differ by far more."""
_AUTOCAST_TOLERANCE = 0.2
"""The same under autocast, where rounding alone makes twenty layers differ by several percent."""
_NEGLIGIBLE = 1e-5
"""Largest error of a parameter's sum, relative to the longest gradient: rounding of the others."""
_SMALL_PART = 1e-4
"""The same in a larger batch, for each example: more than rounding."""
_DROPOUT = frozenset(
    each
    for functions in (torch.nn.functional, torch)
    for name, each in vars(functions).items()
    if name.rstrip("123d").endswith("dropout") and name not in ("native_dropout", "_fused_dropout")
)
"""Functions that set some of the numbers to 0 in training mode."""
_PADDED = 1e-3
"""Largest difference of an example's gradient with and without padding, relative to the longest."""
_PASSES, _ROWS = 8, 8
"""Numbers of passes, and of rows in each, that show whether a model draws random numbers."""
_LOUD = 1e4
"""Factor of losses that reveals limits on gradients of a whole batch."""
_FEWEST_TOGETHER = 4
"""Fewest examples that an engine is tried on at a time: two of them may change places among others."""
_LAST_DIGITS = 8
"""Relative change of parameters that only rounding makes large, in units of their last digit."""


class EngineRefusal(ModelError):
    """An engine cannot take a model; another engine may."""


def check_engine(
    engine: Engine,
    model: nn.Module,
    loss: LossFunction,
    inputs: Inputs,
    targets: Inputs,
    rows: TrialRows | None = None,
    batch_size: int = 64,
    at_a_time: int | None = None,
) -> None:
    """Refuse an engine whose norms or sum differ from those of one backward pass per example.

    In a larger batch, where that would take long, an example's norm and what it adds to a sum must stay the
    same when half of the others leave and the rest stand in another order. A model that draws random numbers
    (dropout) is compared with its layers in evaluation mode: two passes could not be compared otherwise.

    Memory beside the model and the engine's own: about four times the trained parameters. Gradients of single
    examples are taken in turns, compared and dropped.

    Args:
        engine: of this model and loss.
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: a few examples, [batch, ...], best made up. Those that the model fails on alone are
            left out.
        rows: further ones to try, of their shape and type; None: made up here.
        batch_size: how many examples there are in a larger batch.
        at_a_time: the most examples that training gives the engine at a time; it is tried on no more, but on
            4 at least. None: no limit.

    Raises:
        EngineRefusal: they differ, or the engine cannot be used with this model.
        ModelError: no example has a finite gradient.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with try_model(model), torch.enable_grad(), ExitStack() as stack:
        rows = MadeUpInputs.like(inputs, model) if rows is None else rows
        most = max(_FEWEST_TOGETHER, at_a_time or count_in(targets))
        trial = _Trial(engine, model, loss, trained, inputs, targets, most)
        few = trial.examples()
        _show_sizes(trial.engine, *few)
        if _random(model, few[0]):
            for part in in_parts(few, most):
                _check_random_numbers(trial.engine, *part)
            stack.enter_context(_NoDropout())
            _set_layers_to_evaluation(model, few[0])
        found = trial.gradients()
        if not len(found.norms):
            raise ModelError(
                f"the gradients of all {count_in(targets)} examples that were tried are infinite or no "
                "numbers: nothing would be learned, and epsilon spent. Look at the scale of the model's "
                "initial weights, and at the loss.",
                field="loss",
            )
        true = found.true.norm(dim=1)
        same_norms = ((found.norms - true).abs() <= _tolerance(tensors(targets)[0].device) * true.max()).all()
        if not (same_norms and found.off.norm() <= _TOLERANCE * true.max() * len(true)):
            raise _gradients_differ(found)
        coarse = torch.is_autocast_enabled(trial.device.type)
        if not coarse and _wrong_parts(found.off, found.true).any():
            _check_beside_rounding(found)
        moderate = rows.moderate()
        if moderate is not None:
            _check_further(trial.of(moderate), huge=True)
        company = trial.of(rows.varied_rows(batch_size, seed=12))
        _check_in_company(company)
        if isinstance(engine, GhostEngine | FunctionalEngine):
            _check_in_company(company.loud(engine))
        with moved_parameters(model):
            _check_further(trial.of(rows.varied_rows(4, seed=13)), huge=False)
            _check_in_company(trial.of(rows.varied_rows(16 if at_a_time is None else min(16, most), seed=14)))


def check_company(
    engine: Engine, model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Inputs
) -> None:
    """Refuse an engine whose norm of an example, or what it adds to a sum, changes with the others.

    Args as for `check_engine`. The result follows from the model's present parameters and these examples: of
    released parameters and public examples it tells nothing about anybody.

    Raises:
        EngineRefusal: they change, or the engine cannot be used with this model.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with try_model(model), torch.enable_grad(), ExitStack() as stack:
        trial = _Trial(engine, model, loss, trained, inputs, targets, count_in(targets))
        few, _ = trial.examples()
        if _random(model, few):
            stack.enter_context(_NoDropout())
            _set_layers_to_evaluation(model, few)
        _check_in_company(trial, beside_rounding=True)


def check_padding(model: nn.Module, loss: LossFunction, pairs: Sequence[tuple[Examples, Examples]]) -> None:
    """Refuse a model or a loss for which what an example adds changes with its padding.

    The length that an example is padded to follows from others in its sample, so others would change what it
    adds. An example on which model or loss fail, or without a finite gradient, adds nothing, in either form.

    Args:
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        pairs: examples [1, ...] as they are, and padded.

    Raises:
        ModelError: it changes, or no example has a gradient in any form.

    >>> loss = nn.MSELoss(reduction="none")
    >>> row, padded = torch.ones(1, 2), torch.tensor([[1.0, 1.0, 0.0]])
    >>> class Sums(nn.Linear):
    ...     def forward(self, rows):
    ...         return super().forward(rows.sum(dim=1, keepdim=True))[:, 0]
    >>> check_padding(Sums(1, 1), loss, [((row, torch.ones(1)), (padded, torch.ones(1)))])
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def gradient(example: Examples) -> list[Tensor]:
        """Return what one example adds, by parameter."""
        try:
            losses = losses_of(loss, call_model(model, example[0]), example[1])
            found = torch.autograd.grad(losses.sum(), trained, allow_unused=True, materialize_grads=True)
        except Exception:
            return [torch.zeros_like(each) for each in trained]
        finite = all(bool(torch.isfinite(each).all()) for each in found)
        return [each if finite else torch.zeros_like(each) for each in found]

    with try_model(model), torch.enable_grad(), ExitStack() as stack:
        inputs = pairs[0][1][0]
        if _random(model, inputs):
            stack.enter_context(_NoDropout())
            _set_layers_to_evaluation(model, inputs)
        for parameters in (nullcontext(), moved_parameters(model)):
            with parameters:
                lengths, apart = [], []
                for own, padded in pairs:
                    one, other = gradient(own), gradient(padded)
                    lengths.append(torch.maximum(*(_lengths(each, trained).norm() for each in (one, other))))
                    apart.append(_lengths(map(torch.sub, one, other), trained).norm())
            longest = torch.stack(lengths).max()
            coarse = torch.is_autocast_enabled(longest.device.type)
            if not (torch.stack(apart) <= (_AUTOCAST_TOLERANCE if coarse else _PADDED) * longest).all():
                raise ModelError(
                    "the gradient of a row changes with its padding, whose length follows from other rows "
                    "of a sample, and epsilon does not count that. Let model and loss leave padding out: an "
                    "attention mask, lengths, a mean over the row's own positions, targets that are ignored "
                    "(ignore_index), positions that count from the row's own beginning. An embedding of "
                    "padding (padding_idx) does not suffice: noise moves it. Or pad all rows to one public "
                    "length in collate.",
                    field="padding",
                )
            if not longest > 0:
                raise ModelError(
                    "no row has a gradient by itself, so that rows cannot be compared with padded ones. "
                    "If the model demands more of a row than made-up ones have, give public rows that have "
                    "it: examples=[row, ...], as the dataset gives them.",
                    field="examples",
                )


def _random(model: nn.Module, inputs: Inputs) -> bool:
    """Return True if outputs change from pass to pass; a few draws may be equal by chance."""
    inputs = taken(inputs, slice(_ROWS))
    with torch.no_grad():
        first, *others = (output_tensors(outputs_of(model, inputs, seed=seed)) for seed in range(_PASSES))
    return not all(all(map(same, first, other)) for other in others)


def check_repetition(model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Inputs) -> None:
    """Refuse a loss that gives other numbers in each call, which no two gradients can be compared by.

    Raises:
        ModelError: it does.

    >>> model, loss = nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none")
    >>> check_repetition(model, loss, torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    """
    with try_model(model):
        outputs = outputs_of(model, inputs)
        found = []
        for seed in range(_PASSES):
            seed_generators(seed)
            found.append(losses_of(loss, outputs, targets))
    if not all(same(found[0], each) for each in found):
        raise ModelError(
            "the loss gives other numbers each time for the same outputs and targets: it draws random "
            "numbers, or keeps state from call to call. Let it follow from outputs and targets alone. Draw "
            "in the dataset, or in the model, in training mode alone (if self.training), and let the model "
            "return what it drew.",
            field="loss",
        )


class _NoDropout(TorchFunctionMode):
    """Takes the dropout out of models that call its function inside."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        keywords = dict(keywords or {})
        if function in _DROPOUT:
            return arguments[0] if arguments else keywords["input"]
        if "dropout_p" in keywords and function is torch.nn.functional.scaled_dot_product_attention:
            keywords["dropout_p"] = 0.0
        return function(*arguments, **keywords)


def _set_layers_to_evaluation(model: nn.Module, inputs: Inputs) -> None:
    """Set layers that draw random numbers to evaluation mode; all of the model if that does not suffice.

    What the model itself does in training mode alone, such as another order of examples, is tried then too.
    """
    for module in model.modules():
        if isinstance(module, _DropoutNd | nn.RNNBase | nn.MultiheadAttention):
            module.eval()
    if _random(model, inputs):
        model.eval()
        if _random(model, inputs):
            raise ModelError(
                "the model draws random numbers in evaluation mode too, so that no two passes can be "
                "compared. Let it draw them in training mode alone (if self.training), or take them as "
                "an input.",
                field="randomness",
            )


@dataclass(frozen=True)
class _Trial:
    """An engine of a model and a loss, and examples that it is tried on, at most `most` at a time."""

    engine: Engine
    model: nn.Module
    loss: LossFunction
    trained: list[nn.Parameter]
    inputs: Inputs
    targets: Inputs
    most: int

    @property
    def count(self) -> int:
        return count_in(self.targets)

    @property
    def device(self) -> torch.device:
        return tensors(self.targets)[0].device

    def of(self, inputs: Inputs) -> _Trial:
        """Return a trial of other examples, with the same targets in turns."""
        places = torch.arange(count_in(inputs)) % self.count
        return replace(self, inputs=inputs, targets=taken(self.targets, places))

    def loud(self, engine: GhostEngine | FunctionalEngine) -> _Trial:
        """The same with losses that are `_LOUD` times as large, as gradients of a whole batch may be: some
        code limits these, of all examples together, on the way back through a model (a hook)."""
        loss, louder = self.loss, copy(engine)
        louder.loss = lambda outputs, targets: _LOUD * loss(outputs, targets)
        return replace(self, engine=louder, loss=louder.loss)

    def examples(self) -> Examples:
        """Return the examples that model and loss accept alone."""
        inputs, targets = taken((self.inputs, self.targets), self.taken_alone())
        return inputs, targets

    def gradients(self) -> _Gradients:
        """Compare the engine's gradients of the examples whose true gradients are finite with these.

        Raises:
            ModelError: the model fails on each of them alone.
            EngineRefusal: the engine fails on examples that the model takes.
        """
        weights = torch.arange(1, self.count + 1, device=self.device) / self.count
        off = [torch.zeros_like(parameter) for parameter in self.trained]
        places, parts, failed = [], [], None
        for place in range(self.count):
            try:
                gradients = self.true_gradient(place)
            except Exception as error:
                failed = error
                continue
            lengths = _lengths(gradients, self.trained)
            parts.append(lengths)
            if torch.isfinite(lengths.norm()):
                places.append(place)
                _add(off, gradients, float(weights[place]))
            del gradients  # one at a time: each is as large as the model
        if failed is not None and not parts:
            raise ModelError(
                f"no gradient can be taken of the model's loss: {_without_hint(failed)}.{_advice_on(failed)}",
                field="loss",
            ) from failed
        true = torch.stack(parts)
        true = true[torch.isfinite(true.norm(dim=1))]
        inputs, targets = taken((self.inputs, self.targets), places)
        trial = replace(self, inputs=inputs, targets=targets)
        norms = [true.new_empty(0)]
        for x, y, part_weights in in_parts((inputs, targets, weights[places]), self.most):
            with _explain_failures(self.engine):
                measured = self.engine(x, y)
                norms.append(measured.norms)
                sums = measured.sum_gradients(part_weights.to(measured.norms))
            _add(off, _taken_out(sums, self.trained), -1.0)
        return _Gradients(trial, torch.cat(norms), _lengths(off, self.trained), true)

    def true_gradient(self, place: int) -> tuple[Tensor | None, ...]:
        """Return the gradient of one example by a backward pass of its own, by parameter."""
        x, y = taken((self.inputs, self.targets), [place])
        losses = self.loss(call_model(self.model, x), y).sum()
        return torch.autograd.grad(losses, self.trained, allow_unused=True)

    def is_steady(self, place: int) -> Tensor:
        """Return a mask of parameters whose true gradient stays as it is when their last digits change."""
        before = self.true_gradient(place)
        with _last_digits_changed(self.trained):
            try:
                after = self.true_gradient(place)
            except Exception:
                return torch.zeros(len(self.trained), dtype=torch.bool, device=self.device)
        changes = (
            None if one is None or other is None else one - other
            for one, other in zip(before, after, strict=True)
        )
        return _lengths(changes, self.trained) <= _TOLERANCE * _lengths(before, self.trained)

    def own_norm(self, place: int) -> Tensor:
        """Return the norm of one example's contribution to the engine's sum."""
        first = place // self.most * self.most
        measured = self.engine(*taken((self.inputs, self.targets), slice(first, first + self.most)))
        alone = (torch.arange(len(measured.norms)) == place - first).to(measured.norms)
        sums = measured.sum_gradients(alone)
        length: Tensor = _lengths(map(sums.get, self.trained), self.trained).norm()
        return length

    def computes_alike(self) -> bool:
        """Return whether the model gives examples together the losses that it gives each alone."""
        with torch.no_grad():
            alone, among = (
                torch.cat(
                    [
                        losses_of(self.loss, call_model(self.model, x), y)
                        for x, y in in_parts((self.inputs, self.targets), size)
                    ]
                )
                for size in (1, self.most)
            )
        return bool(((alone - among).abs() <= _TOLERANCE * alone.abs().max()).all())

    def measure_examples(self, places: Tensor, weights: Tensor) -> tuple[Tensor, Sums]:
        """Return the engine's norms of examples at these places, and their sum with weights by place."""
        with _explain_failures(self.engine):
            measured = self.engine(*taken((self.inputs, self.targets), places))
            norms = measured.norms
            return norms, measured.sum_gradients(weights[places].to(norms))

    def taken_alone(self) -> Tensor:
        """Return the places of examples that model and loss accept alone."""
        found: list[int] = []
        for part in torch.arange(self.count).split(self.most):
            taken_together = self._takes(part)
            found += [place for place in part.tolist() if taken_together or self._takes([place])]
        return torch.tensor(found, dtype=torch.int64)

    def _takes(self, places: Tensor | list[int]) -> bool:
        x, y = taken((self.inputs, self.targets), places)
        try:
            with torch.no_grad():
                losses_of(self.loss, call_model(self.model, x), y)
        except Exception:
            return False
        return True


class _Gradients(NamedTuple):
    """Lengths of the gradients of a trial's examples, all finite.

    Attributes:
        trial: of these examples alone.
        norms: by the engine, [batch].
        off: norms of the engine's weighted sum less the true one, by parameter, [parameters].
        true: norms by parameter, [batch, parameters].
    """

    trial: _Trial
    norms: Tensor
    off: Tensor
    true: Tensor


def _check_further(trial: _Trial, *, huge: bool) -> None:
    """Refuse norms that are too small, or another sum, of extreme rows or with other parameters.

    Larger norms allow for rounding, and `huge` for rows whose true gradients are a matter of rounding.
    """
    try:
        found = trial.gradients()
    except EngineRefusal:
        raise
    except ModelError:
        return  # rows or parameters that the model cannot meet
    _, norms, off, true = found
    if not len(norms):
        return
    size = true.norm(dim=1).max()
    small = (true.norm(dim=1) - norms > _tolerance(trial.device) * size).any()
    differs = small or off.norm() > _TOLERANCE * size * len(norms)
    if differs and not huge:
        raise _gradients_differ(found)
    coarse = torch.is_autocast_enabled(trial.device.type)
    if differs or ((huge or not coarse) and _wrong_parts(off, true).any()):
        _check_beside_rounding(found)


def _check_in_company(trial: _Trial, *, beside_rounding: bool = False) -> None:
    """Refuse an engine whose norm of an example, or what it adds to a sum, changes with the others.

    Half of the examples leave, and the others stand in another order. `beside_rounding` excuses norms that
    change as much with the last digits of parameters.
    """
    places = trial.taken_alone()
    generator = torch.Generator().manual_seed(15)
    weights = 0.5 + torch.rand(trial.count, generator=generator)
    while len(places) > 1:
        # An odd number, beside an even one: some models pair examples, and leave one over.
        staying = places[torch.randperm(len(places), generator=generator)[: len(places) // 2 | 1]]
        some = torch.zeros(len(weights)).index_copy(0, staying, weights[staying])
        norms, sums = trial.measure_examples(places, some)
        finite = torch.isfinite(norms).cpu()
        if finite.all():
            break
        places = places[finite]
    else:
        return
    total = [torch.zeros_like(each) for each in trial.trained]
    _add(total, _taken_out(sums, trial.trained), -1.0)
    fewer_norms, fewer = trial.measure_examples(staying, some)
    by_place = norms.new_zeros(len(weights)).index_copy(0, places.to(norms.device), norms)
    tolerance = _tolerance(trial.device) * norms.max()
    apart = (by_place[staying.to(norms.device)] - fewer_norms).abs().max()
    # A small part of each norm may mix as well, and adds up over the batch.
    parts = _lengths(map(fewer.get, trial.trained), trial.trained)
    _add(total, _taken_out(fewer, trial.trained))
    parts_off = _lengths(total, trial.trained)
    off = parts_off.norm()
    room = _SMALL_PART * norms.max() * len(staying) ** 0.5
    coarse = beside_rounding or torch.is_autocast_enabled(trial.device.type)
    small = coarse or bool((parts_off <= _TOLERANCE * parts + room).all())
    if apart <= tolerance and off <= tolerance * len(staying) ** 0.5 and small:
        return
    if beside_rounding:
        with _last_digits_changed(trial.trained):
            nearby, _ = trial.measure_examples(staying, some)
        if not (nearby - fewer_norms).abs().max() <= tolerance / 2:
            return
    raise _differs(trial.engine, len(places), "change with the other examples of the batch")


def _check_beside_rounding(found: _Gradients) -> None:
    """Refuse the engine unless true gradients are a matter of rounding wherever it differs from them.

    They are where they change as soon as the last digits of parameters do: those of an attention that huge
    numbers saturate. Other parameters are compared with the true sum, and an example with such parameters
    must move the engine's own sum by the norm that the engine says.
    """
    trial, norms, off, true = found
    steady = torch.stack([trial.is_steady(place) for place in range(len(norms))])
    wrong = steady.all(dim=0) & _wrong_parts(off, true)
    own = torch.stack([trial.own_norm(place) for place in range(len(norms))])
    expected = torch.where(steady.all(dim=1), true.norm(dim=1), own)
    same_norms = expected - norms <= _tolerance(trial.device) * expected.max()
    if wrong.any() or not same_norms.all():
        raise _differs(trial.engine, len(norms))


def _wrong_parts(off: Tensor, true: Tensor) -> Tensor:
    """Return a mask of parameters whose sums are off by more than rounding, [parameters]."""
    allowed = _TOLERANCE * len(true) * true.amax(dim=0)
    most = allowed + _NEGLIGIBLE * true.norm(dim=1).max()
    return torch.logical_not(off <= most)


def _lengths(values: Iterable[Tensor | None], trained: list[nn.Parameter]) -> Tensor:
    """Return the norm of each parameter's value, [parameters], in the parameters' precision; 0 for None."""
    norms = [
        parameter.new_zeros(()) if each is None else torch.linalg.vector_norm(each).to(parameter)
        for each, parameter in zip(values, trained, strict=True)
    ]
    return torch.stack([each.detach().to(norms[0]) for each in norms])


def _add(totals: list[Tensor], values: Iterable[Tensor | None], factor: float = 1.0) -> None:
    """Add values by parameter, times a factor, to totals in place; None adds nothing."""
    for total, each in zip(totals, values, strict=True):
        if each is not None:
            total.add_(each.to(total), alpha=factor)


def _taken_out(sums: Sums, trained: list[nn.Parameter]) -> Iterator[Tensor | None]:
    """Yield sums by parameter, None where there is none; each is dropped from `sums` when it is read."""
    return (sums.pop(each, None) for each in trained)


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


def _tolerance(device: torch.device) -> float:
    return _AUTOCAST_TOLERANCE if torch.is_autocast_enabled(device.type) else _TOLERANCE


def _name(engine: Engine) -> str:
    return getattr(engine, "__name__", type(engine).__name__)


def _gradients_differ(found: _Gradients) -> ModelError:
    """Return the refusal of an engine whose gradients are not those of examples alone."""
    count = len(found.norms)
    if found.trial.computes_alike():
        return _differs(found.trial.engine, count)
    return EngineRefusal(
        f"the model gives {count} examples together other losses than each of them alone. A change in place "
        "of a view (values.flatten(1).mul_(2), also of reshape and contiguous) reaches the values or a copy "
        "of them, by the order in which memory holds them, and that may change with the number of examples. "
        "Let it return a new tensor (values.flatten(1) * 2), and let nothing else depend on how many "
        "examples there are.",
        field="gradients",
    )


def _differs(engine: Engine, count: int, how: str = "") -> ModelError:
    how = how or "differ from those of one backward pass each"
    return EngineRefusal(
        f"{_name(engine)}'s gradients of {count} examples {how}. A parameter may be used outside of "
        "the layer that owns it (such as F.linear(x, self.words.weight); call the layer), a hook may change "
        "a layer's outputs or their gradient (outputs.register_hook), a tensor may be changed through .data, "
        "which PyTorch does not notice, or examples may change places on their way (sorted by length: "
        "enforce_sorted=False does without).",
        field="gradients",
    )


def _without_hint(error: Exception) -> str:
    """Return what an error says, without PyTorch's advice to look for the place."""
    return error_text(error).partition(" Hint: enable anomaly detection")[0].rstrip(".")


def _advice_on(error: Exception) -> str:
    """Return what to write in place of a change that PyTorch refuses; nothing for other errors."""
    if "inplace" not in str(error):
        return ""
    return (
        " The model changes a tensor in place that its backward pass reads. Let it return a new one: "
        "y = y + x in place of y += x, y = 2 * y of y.mul_(2), nn.ReLU() of nn.ReLU(inplace=True); or change "
        "y.clone()."
    )


def _check_random_numbers(engine: Engine, inputs: Inputs, targets: Inputs) -> None:
    with _explain_failures(engine):
        measured = engine(inputs, targets)
    # An engine of the user's own says nothing about it.
    redraw_mask = measured.redraw_mask if isinstance(measured, MeasuredBatch) else None
    if redraw_mask is not None and redraw_mask.any():
        raise EngineRefusal(
            "a module that torch.func runs again for one example at a time draws random numbers (dropout) in "
            "an order of its own. Leave them out of that module.",
            field="dropout",
        )


@contextmanager
def _explain_failures(engine: Engine) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise EngineRefusal(
            f"{_name(engine)} cannot take per-example gradients of this model: {str(error).rstrip('.')}."
            f"{_advice_on(error)}",
            field="engine",
        ) from error


def _show_sizes(engine: Engine, inputs: Inputs, targets: Inputs) -> None:
    """Let an engine see several sizes: it may mistake a table of as many rows for the batch until then."""
    for size in (2, 3):
        with suppress(Exception):
            engine(*taken((inputs, targets), slice(size)))
