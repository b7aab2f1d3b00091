"""Checks of a model, a loss and an engine: an example's gradient must depend only on that example.

`checked_engine` looks before anything is spent, on plain rows that are made up. `check_rows` looks inside
charged steps, on rows of the sample: it finds every kind of mixing and every wrong gradient that these show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from equidp._validate import unknown_name
from equidp.engines.functional import FunctionalEngine
from equidp.engines.generator_states import GeneratorStates
from equidp.engines.ghost import GhostEngine
from equidp.engines.layers.decomposed import attention_in_full
from equidp.engines.layers.rule import NotByExample
from equidp.engines.made_up import made_up_inputs, made_up_targets
from equidp.engines.model import (
    Examples,
    call_model,
    device_of,
    exact_products,
    flat,
    preserve_model,
    replaced,
    set_training_mode,
)
from equidp.engines.table import ENGINES, NAMES, make_engine
from equidp.engines.units import as_units, reader_of
from equidp.errors import EquidpError, ModelError, error_text
from equidp.kernel.bounding import SMALLEST_NORM
from equidp.kernel.engine import Engine, LossFunction
from equidp.kernel.inputs import Inputs, count_changes, count_in, map_tensors, same, taken
from equidp.kernel.policy import Policy
from equidp.losses import Loss, map_outputs, output_tensors

_MADE_UP, ROWS_ALONE = 40, 8
"""Number of made-up rows, and of rows that each have their own backward pass."""
_FINE = 1e-3, 1e-5
"""Largest error of an example's loss and norm, and of a parameter's share of a sum: relative to its own size,
and relative to the largest norm."""
_COARSE = 0.2, 0.05
"""The same under autocast."""
_ALONE = 0.1
"""Largest change of an example's norm among copies of itself, as a share of the largest norm."""


_ATTEMPTS, _LAST_DIGITS = 4, 1e-5
"""Distance between places at all of which a faulty gradient is wrong. Passes with different rounding may put
a unit on the other side of a kink at one of them, but a fault shows at each."""


class EngineRefusal(ModelError):
    """An engine cannot take a model; another engine may."""


class Mixing(ModelError):
    """A model or a loss mixes the examples of a batch."""


class Checked(NamedTuple):
    """An engine that was checked, and examples that model and loss took, [batch, ...]."""

    engine: GhostEngine | FunctionalEngine
    inputs: Any
    targets: Any


def checked_engine(
    name: str,
    model: nn.Module,
    loss: LossFunction,
    row: Examples,
    class_names: Sequence[str] = (),
    *,
    policy: Policy | None = None,
    examples: Examples | None = None,
    at_a_time: int | None = None,
) -> Checked:
    """Return the engine of that name, after model, loss and engine were tried on made-up rows.

    It rejects layers that mix examples (BatchNorm in training mode), parameters too coarse for sums
    (float16), buffers that a pass writes to, and losses that are not [batch]. It also rejects a model, a loss
    or an engine whose losses, norms or sums differ from those of each example by itself, on these rows and
    these parameters. If the ghost engine is rejected, "auto" uses the functional engine.

    Args:
        name: "ghost", "functional" or "auto".
        model: reads rows, [batch, ...]; restored at the end.
        loss: loss of examples of one row, or a `Loss` of several.
        row: inputs and targets of one row or more. Their shapes and types are read, no value.
        class_names: one name per class, if targets are classes.
        policy: policy that the engine measures for. One that changes losses has the functional engine.
        examples: public rows of these shapes and types, for a model that takes none that are made up.
        at_a_time: the most examples that training gives the engine at a time. None: no limit.

    Raises:
        ModelError: says what was found, and what to do.

    >>> loss, row = nn.CrossEntropyLoss(reduction="none"), (torch.zeros(1, 2), torch.tensor([1]))
    >>> checked_engine("auto", nn.Linear(2, 2), loss, row, ("no", "yes")).engine
    <equidp.engines.ghost.GhostEngine object at ...>
    """
    check_parameters(model)
    value = Loss.of(loss)
    of_row: LossFunction = value.by_row() if value.several_rows else loss
    count = _MADE_UP if at_a_time is None else min(_MADE_UP, max(ROWS_ALONE, at_a_time))
    with trial(model):
        inputs, targets = _rows_to_try(model, of_row, row, class_names, examples, count)
    check_model(model, of_row, inputs, targets, class_names)
    given = as_units(inputs, cast(Any, targets), rows=2) if value.several_rows else (inputs, targets)
    reader, refusals = reader_of(model, loss), list[ModelError]()
    if name not in NAMES:
        raise unknown_name("engine", name, NAMES)
    chosen = "functional" if policy is not None and policy.loss_terms else name
    left = [make_engine(each, reader, loss, policy) for each in ENGINES if chosen in ("auto", each)]
    while left:
        engine = left.pop(0)
        try:
            check_engine(engine, reader, loss, *given)
            return Checked(engine, inputs, targets)
        except Mixing:
            raise
        except NotByExample as error:  # of a layer that reads positions: the module around it reads examples
            refusals.append(error)
            around = _parent(reader, error.module)
            if isinstance(engine, GhostEngine) and around not in (None, reader, model):
                left.insert(0, GhostEngine(reader, loss, (*engine.whole, around)))
        except ModelError as error:
            refusals.append(error)
    kinds = "No engine takes this model." if name == "auto" else "engine='auto' may take it."
    raise EngineRefusal(f"{refusals[0]} {kinds}", field=refusals[0].field) from refusals[0]


def check_model(
    model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Inputs, class_names: Sequence[str] = ()
) -> None:
    """Reject a model or a loss whose losses are not [batch], or differ from each example's loss by itself.

    Args:
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: a few examples, [batch, ...], best made up, so that a refusal reveals no data.
        class_names: one name per class, if targets are classes.

    Raises:
        ModelError: as for `checked_engine`.
    """

    def check() -> None:
        with torch.no_grad():
            _check_last_class(loss, outputs_of(model, inputs), targets, class_names)
            with without_dropout(model):
                _check_halves(model, loss, inputs, targets)
                rows = _Rows(model, loss, *taken((inputs, targets), slice(ROWS_ALONE)))
                alone = [rows.loss_alone(place) for place in range(rows.count)]
                _check_alike(rows.losses, torch.stack(alone))

    check_parameters(model)
    _at_two_places(model, check)


def check_engine(
    engine: Engine, model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Inputs
) -> None:
    """Reject an engine whose norms or sums differ from each example's by itself.

    Args:
        engine: engine of this model and loss, such as one of your own.
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: a few examples, [batch, ...], best made up.

    Raises:
        EngineRefusal: they differ.
    """

    def check() -> None:
        some = taken((inputs, targets), slice(ROWS_ALONE))
        with torch.enable_grad():
            for size in (2, 3):  # an engine may mistake a table of as many rows for the batch until then
                engine(*taken(some, slice(size)))
            check_rows(engine, model, loss, *some)

    try:
        _at_two_places(model, check)
    except ModelError:
        raise
    except Exception as error:
        raise EngineRefusal(
            f"{type(engine).__name__} cannot take per-example gradients of this model: {error_text(error)}. "
            "Where it changes a tensor in place that its backward pass reads, let it return a new one: "
            "y = y + x for y += x, nn.ReLU() for nn.ReLU(inplace=True).",
            field="engine",
        ) from error


def check_rows(engine: Engine, model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Inputs) -> None:
    """Reject an engine whose norms or sum of a few examples differ from a backward pass of each, and a model
    or loss that mixes them.

    Dropout is off. An example by itself is run in a batch of its copies, so that its numbers are rounded as
    in the batch, and random ones are the same.

    Args:
        engine: engine of this model and loss.
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: inputs and targets of the examples, [batch, ...]. Pass at most eight: each has its
            own passes.

    Raises:
        ModelError: they differ; names the layer.

    >>> from equidp.engines import make_engine
    >>> model, loss = nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none")
    >>> check_rows(make_engine("ghost", model, loss), model, loss, torch.eye(2), torch.tensor([0, 1]))
    """
    names, trained = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    wrong = _wrong_gradients(engine, model, loss, inputs, targets, trained)
    for attempt in range(1, _ATTEMPTS):
        if not wrong.any():
            return
        with parameters_moved(model, _LAST_DIGITS, seed=attempt):
            wrong &= _wrong_gradients(engine, model, loss, inputs, targets, trained)
    if not wrong.any():
        return
    place = int(wrong.int().argmax())
    where = f", first in {names[place]}" if place < len(names) else ""
    raise EngineRefusal(
        f"{type(engine).__name__}'s gradients of {count_in(targets)} examples together differ from those of "
        f"one backward pass each{where}. A parameter may be used outside of the layer that owns it "
        "(F.linear(x, self.words.weight): call the layer), a hook or .data may change a tensor on its "
        "way, or examples may change places (sorted by length: enforce_sorted=False does without). "
        "engine='functional' measures each example alone.",
        field="gradients",
    )


def _wrong_gradients(
    engine: Engine,
    model: nn.Module,
    loss: LossFunction,
    inputs: Inputs,
    targets: Inputs,
    trained: Sequence[nn.Parameter],
) -> Tensor:
    """Mask of parameters whose weighted sum is wrong, and of examples whose norm is, [parameters + batch].

    It rejects a model or loss that mixes examples.
    """
    device = device_of(model)
    tolerance, rounding = _tolerances(device)
    with preserve_model(model), torch.enable_grad(), exact_products(device), without_dropout(model):
        random = GeneratorStates(device)
        norms, _, sums = engine(inputs, targets)
        with random.again():
            rows = _Rows(model, loss, inputs, targets)
        largest = norms.nan_to_num(nan=0.0, posinf=0.0).max().clamp_min(SMALLEST_NORM / rounding)
        weights = torch.where(norms.isfinite(), 1 / norms.clamp_min(1e-3 * float(largest)), 0.0)
        missing, losses, lengths, norms_alone = [torch.zeros_like(each) for each in trained], [], [], []
        for place in range(rows.count):
            alone = rows.loss_among_copies(place)
            norms_alone.append(_lengths(_gradients(alone, trained)).norm().to(norms))
            losses.append(alone.detach())
            gradients = _gradients(rows.losses[place], trained)
            lengths.append(_lengths(gradients))
            weights[place] *= lengths[-1].isfinite().all()
            if weights[place] > 0:
                _add(missing, gradients, float(weights[place]))
            del gradients  # one at a time: each is as large as the model
        _check_alike(rows.losses, torch.stack(losses))
        total = sums(weights)
        _add(missing, [total.get(each) for each in trained], -1.0)
    true = torch.stack(lengths).to(norms)
    true_norms, used = true.norm(dim=1), weights > 0
    if ((true_norms - torch.stack(norms_alone)).abs() > max(_ALONE, tolerance) * largest)[used].any():
        raise _mixing()
    finite = true_norms.isfinite()
    low = true_norms - norms > tolerance * true_norms + rounding * largest
    high = norms - true_norms > (tolerance + rounding) * largest
    lost = ~norms.isfinite() & (true_norms < 1e15)
    allowed = tolerance * weights[used] @ true[used] + rounding * rows.count
    off = ~(_lengths(missing).to(norms) <= allowed)
    return torch.cat([off, (low | high) & finite | lost])


def check_padding(model: nn.Module, loss: LossFunction, pairs: Sequence[tuple[Examples, Examples]]) -> None:
    """Reject a model or a loss by which an example's gradient changes with its padding.

    The padded length of an example depends on the others in its sample. An example on which model or loss
    fail, or without a finite gradient, adds nothing, in either form.

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

    def gradient(example: Examples) -> Tensor:
        nothing = flat([None] * len(trained), trained)
        try:
            found = flat(_gradients(_Rows(model, loss, *example).losses[0], trained), trained)
        except Exception:
            return nothing
        return found if found.isfinite().all() else nothing

    for moved in (nullcontext(), parameters_moved(model)):
        with moved, trial(model), torch.enable_grad(), without_dropout(model):
            both = [(gradient(own), gradient(padded)) for own, padded in pairs]
        longest = max(float(each.norm()) for pair in both for each in pair)
        allowed = _tolerances(trained[0].device)[0] * longest
        if not all(float((own - padded).norm()) <= allowed for own, padded in both):
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


def _tolerances(device: torch.device) -> tuple[float, float]:
    return _COARSE if torch.is_autocast_enabled(device.type) else _FINE


def _at_two_places(model: nn.Module, check: Callable[[], None]) -> None:
    """Check a model at its parameters, and at others, with which it may fail: it may never have such."""
    with trial(model):
        check()
    with parameters_moved(model):
        try:
            with trial(model):
                check()
        except (Mixing, EngineRefusal):
            raise
        except Exception:
            return


class _Rows:
    """A few examples, and their losses together, [batch], with their graph."""

    def __init__(self, model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Inputs) -> None:
        self.model, self.loss, self.examples, self.count = model, loss, (inputs, targets), count_in(targets)
        self.random = GeneratorStates(device_of(model))
        self.losses = losses_of(loss, outputs_of(model, inputs), targets)
        self.draws = self.random.have_moved()

    def loss_alone(self, place: int) -> Tensor:
        """The loss of one example by itself, a number."""
        if not self.draws:
            try:
                x, y = taken(self.examples, [place])
                return losses_of(self.loss, call_model(self.model, x), y)[0]
            except Exception:
                if self.count == 1:
                    raise
        return self.loss_among_copies(place)

    def loss_among_copies(self, place: int) -> Tensor:
        """The loss of one example in a batch of its copies, a number: rounded and drawn as in the batch."""
        x, y = taken(self.examples, [place] * self.count)
        with self.random.again() if self.draws else nullcontext():
            return losses_of(self.loss, call_model(self.model, x), y)[place]


def _check_halves(model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Inputs) -> None:
    """Reject a model or loss whose losses change when half of the examples leave and the rest change places.

    One that draws random numbers would draw others.
    """
    all_rows = _Rows(model, loss, inputs, targets)
    if not all_rows.draws:
        generator = torch.Generator().manual_seed(4)
        order = torch.randperm(all_rows.count, generator=generator)[: all_rows.count // 2 | 1]
        half = _Rows(model, loss, *taken(all_rows.examples, order))
        _check_alike(all_rows.losses[order.to(all_rows.losses.device)], half.losses)


def _check_alike(some: Tensor, others: Tensor) -> None:
    some, (tolerance, _) = some.detach(), _tolerances(some.device)
    usual = some.abs().nan_to_num(nan=0.0, posinf=0.0).median()
    floor = 0.1 * tolerance * float(usual) + 1e-6
    if not torch.allclose(some, others.detach().to(some), rtol=tolerance, atol=floor, equal_nan=True):
        raise _mixing()


def _mixing() -> Mixing:
    return Mixing(
        "the loss of one example changes with the others in its batch, so no example's influence is bounded. "
        "Look in the model for statistics over the batch, trimming to its longest sequence, or attention "
        "over the batch axis (batch_first=True?), and in the loss for a division by the size of the batch, "
        "or a mean, a quantile or a rank over it.",
        field="losses",
    )


def _gradients(loss: Tensor, trained: Sequence[nn.Parameter]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True, materialize_grads=True)


def _lengths(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of each parameter's gradient, [parameters]."""
    norms = [torch.linalg.vector_norm(each) for each in gradients]
    return torch.stack([each.to(norms[0]) for each in norms])


def _add(totals: Sequence[Tensor], values: Sequence[Tensor | None], factor: float) -> None:
    for total, each in zip(totals, values, strict=True):
        if each is not None:
            total.add_(each.to(total), alpha=factor)


def check_parameters(model: nn.Module) -> None:
    """Reject parameters and layers that cannot be trained, before the model is run."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(
            "the model has no trainable parameter; set requires_grad on those that training should change.",
            field="model",
        )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter) or parameter.is_meta:
            raise ModelError(
                f"parameter {name} has no values yet (a lazy layer, or the meta device). Run the model once "
                "on a batch, or load it, before making the optimizer.",
                field=name,
            )
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise ModelError(
                f"parameter {name} is {parameter.dtype}, in which sums are too coarse for a bound; expected "
                "torch.float32. Keep parameters in float32 and train under torch.autocast(..., "
                "dtype=torch.bfloat16).",
                field=name,
            )
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise ModelError(
                f"{name or 'the model'} is {type(module).__name__}, which mixes the examples of a batch: no "
                "example's influence is bounded then. Use GroupNorm or LayerNorm, let "
                "equidp.make_compatible(model) replace it, or freeze it first (docs/models.md).",
                field=name or "model",
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ModelError(
                f"{name or 'the model'} has sparse gradients, and noise makes every entry count. Make it "
                "with sparse=False, and take a dense optimizer.",
                field=name or "model",
            )


@contextmanager
def trial(model: nn.Module) -> Iterator[None]:
    """Run a model in training mode; restore modes, gradients, generators and buffers at the end.

    Raises:
        ModelError: a pass wrote to a buffer or to a parameter.
    """
    buffers = {name: (each, each.detach().clone()) for name, each in model.named_buffers()}
    parameters = {name: (each, count_changes(each)) for name, each in model.named_parameters()}
    with preserve_model(model), exact_products(device_of(model)), attention_in_full():
        set_training_mode(model)
        yield
    now = dict(model.named_buffers())
    changed = [name for name, each in now.items() if name not in buffers or each is not buffers[name][0]]
    for name, (each, before) in buffers.items():
        if not same(each.detach(), before):
            changed.append(name)
            each.detach().copy_(before)
    changed += [name for name, (each, before) in parameters.items() if count_changes(each) != before]
    if changed:
        raise ModelError(
            f"{changed[0]} changes when the model runs: it would carry data past the noise, as statistics do "
            "(track_running_stats=False), or follow the private number of passes (spectral_norm). Leave it "
            "out; nothing but the optimizer may change parameters and buffers.",
            field=changed[0],
        )


@contextmanager
def parameters_moved(model: nn.Module, share: float = 0.1, seed: int = 5) -> Iterator[None]:
    """Move each trained parameter by a share of its size, and back. By a tenth, gates at 0 open."""
    generator = torch.Generator().manual_seed(seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in trained]
    try:
        with torch.no_grad():
            for parameter, values in zip(trained, before, strict=True):
                size = float(torch.linalg.vector_norm(values)) / max(1, values.numel()) ** 0.5
                noise = torch.randn(values.shape, generator=generator).to(values)
                parameter.add_(noise, alpha=share * (size or 1.0))
        torch.clear_autocast_cache()
        yield
    finally:
        with torch.no_grad():
            for parameter, values in zip(trained, before, strict=True):
                parameter.copy_(values)
        torch.clear_autocast_cache()


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Take dropout out of a model, by its functions and out of fused layers, inside the context."""
    functions = vars(torch.nn.functional)
    attend = "scaled_dot_product_attention"
    fused = [each for each in model.modules() if isinstance(each, nn.RNNBase | nn.MultiheadAttention)]
    with replaced(
        [
            *((functions, each, _first) for each in functions if each.rstrip("123d").endswith("dropout")),
            (functions, attend, partial(_attend, functions[attend])),
            *((vars(each), "dropout", 0.0) for each in fused),
        ]
    ):
        yield


def _first(*given: Any, **named: Any) -> Any:
    return given[0] if given else named["input"]


def _attend(attend: Callable[..., Tensor], *given: Any, **named: Any) -> Tensor:
    before, after = given[:4], given[5:]
    if len(given) > 4:
        return attend(*before, 0.0, *after, **named)
    return attend(*before, **{**named, "dropout_p": 0.0})


def _rows_to_try(
    model: nn.Module,
    loss: LossFunction,
    row: Examples,
    class_names: Sequence[str],
    examples: Examples | None,
    count: int,
) -> Examples:
    """`count` public rows, or made-up ones, each of which model and loss accept by itself.

    Raises:
        ModelError: they take none, or have an infinite loss for all.
    """
    if examples is None:
        inputs = made_up_inputs(model, row[0], count)
        targets = made_up_targets(model, inputs, row[1], len(class_names) or None, count)
    else:
        inputs, targets = taken(examples, torch.arange(count) % count_in(examples[1]))
    losses, errors = dict[int, Tensor](), list[Exception]()
    for place in range(count):
        x, y = taken((inputs, targets), [place, place])
        try:
            with torch.no_grad():
                losses[place] = losses_of(loss, outputs_of(model, x), y)
        except Exception as error:
            errors.append(error)
    if not losses:
        raise errors[0]
    if not any(each.isfinite().all() for each in losses.values()):
        raise ModelError(
            "the losses of all rows that were tried are infinite or no numbers: nothing would be learned, "
            "and epsilon spent. Look at the scale of the model's initial weights, and at the loss.",
            field="loss",
        )
    tried: Examples = taken((inputs, targets), (list(losses) * count)[:count])
    return tried


def outputs_of(model: nn.Module, inputs: Inputs) -> Any:
    """Return outputs, [batch, ...], or reject a model that fails or returns anything else, with a reason."""
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
    """Return the losses, [batch], or reject a loss that fails or returns anything else, with a reason."""
    try:
        losses = loss(outputs, targets)
    except EquidpError:  # has a reason of its own
        raise
    except Exception as error:
        shapes = map_outputs(lambda each: list(each.shape), (outputs, targets))
        other = _dtype_that_works(loss, outputs, targets)
        if other is not None:
            raise ModelError(
                f"the loss cannot be taken of these targets ({error_text(error)}); expected {other}. Let the "
                f"dataset give them as such: targets.to({other}).",
                field="targets",
            ) from error
        raise ModelError(
            f"the loss fails on outputs {shapes[0]} and targets {shapes[1]} ({error_text(error)}). If the "
            "outputs are a mapping with 'logits', it gets these. The targets are made up: numbers, or "
            "classes from 0 on (if the data names no classes, as many as the model has outputs). Let the "
            "loss accept these, or give public rows: examples=(inputs, targets).",
            field="loss",
        ) from error
    count = count_in(targets)
    if isinstance(losses, Tensor) and losses.shape[:1] == (count,) and losses.numel() == count:
        return losses.reshape(count)
    given = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else f"type {type(losses).__name__}"
    raise ModelError(
        f"the loss has {given} for {count} examples; expected one number per example, [{count}]. Use a loss "
        "that does not average, such as CrossEntropyLoss(reduction='none'), and add up the losses of several "
        "heads. For a loss of a whole batch, such as a gap between groups, see docs/own-method.md.",
        field="loss",
    )


def _dtype_that_works(loss: LossFunction, outputs: Any, targets: Any) -> torch.dtype | None:
    """Another type of targets for which the loss can be computed. None: there is none."""
    for dtype in (torch.int64, outputs.dtype) if isinstance(outputs, Tensor) else ():
        with suppress(Exception):
            if isinstance(targets, Tensor) and dtype != targets.dtype:
                assert isinstance(loss(outputs, torch.zeros_like(targets, dtype=dtype)), Tensor)
                return dtype
    return None


def _check_last_class(loss: LossFunction, outputs: Any, targets: Any, class_names: Sequence[str]) -> None:
    """Try the loss on the last class, which may be rare: it would end training in the middle."""
    if not class_names or not isinstance(targets, Tensor):
        return
    try:
        loss(outputs, torch.full_like(targets, len(class_names) - 1))
    except Exception as error:
        try:
            loss(outputs, torch.zeros_like(targets))
        except Exception:
            return  # it fails for all of them
        raise ModelError(
            f"the data has {len(class_names)} classes, and the loss fails for the last, {class_names[-1]!r} "
            f"({error_text(error)}). Give the model one output per class.",
            field="class_names",
        ) from error


def _parent(model: nn.Module, module: nn.Module) -> nn.Module | None:
    """The module of a model that holds this one. None: none does."""
    return next((each for each in model.modules() if module in set(each.children())), None)
