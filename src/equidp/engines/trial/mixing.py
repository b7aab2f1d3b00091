"""Refuse models and losses through which examples of a batch affect each other, as far as batches show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice, zip_longest
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equidp.engines.model import same
from equidp.engines.trial.rows import GivenRows, MadeUpInputs, TrialRows
from equidp.engines.trial.running import (
    check_parameters,
    checksum,
    losses_of,
    outputs_of,
    seed_generators,
    try_model,
)
from equidp.errors import ModelError, error_text, shape_text
from equidp.kernel.engine import LossFunction
from equidp.kernel.generators import GeneratorStates
from equidp.kernel.inputs import Inputs, count_in, join_batches, map_tensors, taken, tensors
from equidp.losses import map_outputs, output_tensors


def check_model(
    model: nn.Module,
    loss: LossFunction,
    inputs: Inputs,
    targets: Inputs,
    class_names: Sequence[str] = (),
    rows: TrialRows | None = None,
    at_a_time: int | None = None,
) -> None:
    """Refuse a model or loss for which per-example gradients make no sense.

    Args:
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: a few examples, [batch, ...], best made up (`made_up_examples`): what is accepted
            should not tell about data. Further ones of their shape and type are made up here.
        class_names: one per class, where targets are classes.
        rows: further ones to try; None: made up here.
        at_a_time: the most examples that training gives the model at a time; it is tried on no more, but on 8
            at least. None: no limit.

    Raises:
        ModelError: BatchNorm, or anything else through which examples of a batch affect each other, as far as
            made-up batches show (`mixing.check_mixing`); buffers or parameters that change with data; no
            trainable parameter, or one in less than single precision; sparse gradients; a loss that is not
            one number per example, or fails for the last class.
    """
    check_parameters(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(
            parameter.requires_grad for parameter in module.parameters()
        ):
            raise ModelError(
                f"{name or 'the model'} is a scripted or traced module, whose layers cannot be read: engines "
                "measure gradients layer by layer. Train the Python module, and script it after training.",
                field=name or "model",
            )
        if isinstance(module, _BatchNorm):
            raise ModelError(
                f"{name or 'the model'} is {type(module).__name__}, which mixes the examples of a batch: no "
                "example's influence is bounded then. Use GroupNorm or LayerNorm, or let "
                "equidp.make_compatible(model) replace it, which keeps the statistics of one that is frozen "
                "(requires_grad_(False)).",
                field=name or "model",
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ModelError(
                f"{name or 'the model'} has sparse gradients, and noise makes every entry count. Make it "
                "with sparse=False, and take a dense optimizer.",
                field=name or "model",
            )
    if count_in(targets) == 1:
        inputs, targets = taken((inputs, targets), [0, 0])
    if at_a_time is not None:
        inputs, targets = taken((inputs, targets), slice(max(_SMALL_BATCH, at_a_time)))
    with try_model(model) as buffers:
        outputs = outputs_of(model, inputs)
        _check_buffers(model, buffers, inputs)
        if class_names and isinstance(targets, Tensor):
            _check_last_class(loss, outputs, targets, class_names)
        losses_of(loss, outputs, targets)
        check_mixing(model, loss, partial(outputs_of, model), inputs, targets, rows, at_a_time)


def _check_buffers(model: nn.Module, before: dict[str, Tensor], inputs: Inputs) -> None:
    """Refuse buffers that a forward pass changed, also with other parameters, and say from what."""
    found = _changed_buffer(model, before, inputs)
    if found is None:
        with moved_parameters(model):
            try:
                outputs_of(model, inputs)
                found = _changed_buffer(model, before, inputs)
            except ModelError:
                return  # it fails with other parameters, and may never have such
    if found is None:
        return
    name, follows_from_data = found
    if follows_from_data:
        raise ModelError(
            f"buffer {name} changes in training: it carries statistics of the data past the noise. "
            "Turn its tracking off (track_running_stats=False).",
            field=name,
        )
    raise ModelError(
        f"buffer {name} changes in every forward pass, whatever the model reads, as those of spectral_norm "
        "do: how many passes a step takes follows from the size of its sample, which is private. Leave it "
        "out, or take weight_norm, which has no buffers.",
        field=name,
    )


def _changed_buffer(model: nn.Module, before: dict[str, Tensor], inputs: Inputs) -> tuple[str, bool] | None:
    """A buffer that the last forward pass, of these inputs, changed, and whether it follows from them."""
    now = {name: buffer.clone() for name, buffer in model.named_buffers()}
    changed = [name for name in now if name not in before or not same(now[name], before[name])]
    if not changed:
        return None
    for name, buffer in model.named_buffers():
        if name in before:
            buffer.copy_(before[name])
    outputs_of(model, taken(inputs, slice(2)))
    others = dict(model.named_buffers())
    differing = [name for name in changed if name not in others or not same(others[name], now[name])]
    return (differing or changed)[0], bool(differing)


def _check_last_class(loss: LossFunction, outputs: Any, targets: Tensor, class_names: Sequence[str]) -> None:
    """Try the loss on the last class, which may be rare: it would end training in the middle."""
    try:
        loss(outputs, torch.zeros_like(targets))
    except Exception:
        return  # it fails for all of them
    try:
        loss(outputs, torch.full_like(targets, len(class_names) - 1))
    except Exception as error:
        shapes = " and ".join(shape_text(each, "batch") for each in output_tensors(outputs))
        raise ModelError(
            f"the data has {len(class_names)} classes, and the loss fails for the last, {class_names[-1]!r} "
            f"({error_text(error)}). The model's outputs are {shapes}; give one "
            "per class.",
            field="class_names",
        ) from error


_BATCH, _SMALL_BATCH = 40, 8
"""Examples per batch: some models mix in large batches only. Further passes of a random model are small."""
_SEEDS = 10
"""Number of passes of a model that draws random numbers: it may mix examples in some passes only."""
_OTHER_SIZE, _OTHER_SIZE_AUTOCAST = 0.01, 0.2
"""Largest difference of outputs between batch sizes, relative to the largest output, by rounding."""
_LARGER = 1e3
"""Factor of outputs that makes losses enormous beside others."""
_ORDINARY, _PADDED = [0, -1], [1, -2]
"""Places of the compared examples in every batch."""

Forward = Callable[[Inputs, int], Any]
"""(inputs [batch, ...], seed) -> outputs [batch, ...], with the same random numbers for the same seed."""


def check_mixing(
    model: nn.Module,
    loss: LossFunction,
    forward: Forward,
    inputs: Inputs,
    targets: Inputs,
    rows: TrialRows | None = None,
    at_a_time: int | None = None,
) -> None:
    """Refuse a model or loss whose results for an example change with others.

    Two ordinary examples stand among 38 others like them, then among extremes (constant, huge, full and empty
    rows of all lengths), then alone; one among copies of itself, which an expert of limited room may not all
    take; two padded ones among others as short, then among extremes. All are made up, of the shape and type
    of the inputs. Rows that the model cannot run on alone are left out; a batch of
    others that it cannot run on is refused. All of it is done once more with parameters that were moved
    (`moved_parameters`): a gate that starts at 0 hides what training will open.
    The loss is compared on the same rows, and where one example's outputs are a thousand times as large.

    Args:
        model: in training mode.
        loss: (outputs, targets) -> losses [batch].
        forward: runs the model.
        inputs, targets: a few examples that the model runs on, [batch, ...].
        rows: to try; None: made up, or these examples where the model runs on none of those.
        at_a_time: the most examples that training gives the model at a time; batches are no larger, but 8 at
            least, and as many as extremes need. None: 40.

    Raises:
        ModelError: names what changed.
    """
    most = _BATCH if at_a_time is None else min(_BATCH, max(_SMALL_BATCH, at_a_time))
    trial = _Trial(loss, forward, targets, most)
    seed_generators(0)
    random = GeneratorStates(tensors(targets)[0].device)
    trial.run(taken(inputs, slice(2)), 0)
    seeds = _SEEDS if random.has_moved() else 1
    rows = trial.rows_like(inputs, model) if rows is None else rows
    short = rows.short(2, seed=3)
    extremes = trial.runnable([*rows.extremes(), *([] if short is None else [short])])
    for seed in range(seeds):
        size = _SMALL_BATCH if seed else most
        ordinary = trial.together(rows.full(size, seed=4), seed)
        if ordinary is None:
            ordinary = trial.run(taken(inputs, torch.arange(size) % count_in(targets)), seed)
        short = rows.short(_SMALL_BATCH, seed=5)
        padded = None if short is None else trial.together(short, seed)
        batches = _between(ordinary.inputs, (padded or ordinary).inputs, extremes)
        for batch in islice(batches, 1 if seed else None):
            among = trial.run(batch, seed, one_target=True)
            _compare(ordinary, among, _ORDINARY)
            if padded is not None and (seeds == 1 or size == _SMALL_BATCH):
                _compare(padded, among, _PADDED, other_size=size != _SMALL_BATCH)
        copies = trial.run(taken(ordinary.inputs, [-1] * size), seed)
        _compare(ordinary, copies, _ORDINARY[-1:])
        if seeds == 1:
            _compare(ordinary, trial.run(taken(ordinary.inputs, _ORDINARY), seed), _ORDINARY, other_size=True)
        if not seed:
            with moved_parameters(model):
                others = _check_moved(trial, taken(ordinary.inputs, slice(_SMALL_BATCH)), extremes)
            _check_losses(trial, ordinary.outputs if others is None else others)


def keeps_examples_apart(model: nn.Module, inputs: Inputs, targets: Inputs) -> bool:
    """Return whether a model in evaluation mode passes `check_mixing`; False too where it cannot be tried.

    Args:
        model: restored at the end.
        inputs, targets: as in `check_mixing`.
    """
    try:
        with try_model(model):
            model.eval()
            check_mixing(model, _no_loss, partial(outputs_of, model), inputs, targets)
    except Exception:
        return False
    return True


def _no_loss(outputs: Any, targets: Any) -> Tensor:
    """Losses of 0, [batch], where outputs alone are compared."""
    return torch.zeros(count_in(targets), device=tensors(targets)[0].device)


def _check_moved(trial: _Trial, rows: Inputs, extremes: list[Any]) -> Any | None:
    """Compare a few once more, and return their outputs.

    None where the model fails with other parameters: it may never have such.
    """
    ordinary = trial.together(rows, 0)
    if ordinary is None:
        return None
    for batch in _between(ordinary.inputs, ordinary.inputs, trial.runnable(extremes)):
        _compare(ordinary, trial.run(batch, 0), _ORDINARY)
    return ordinary.outputs


def _check_losses(trial: _Trial, outputs: Any) -> None:
    """Compare losses where one example's outputs are a thousand times as large, beside others and alike."""
    found = output_tensors(outputs)
    if not any(map(_may_be_enlarged, found)):
        return
    # Outliers stand out in large batches only.
    outputs = _some_of(outputs, torch.arange(trial.most) % len(found[0]))
    places = torch.arange(trial.most)
    expected = trial.losses(outputs, places)
    for place in range(_SMALL_BATCH):
        one_large = map_outputs(partial(_enlarge_one, place), outputs)
        losses = trial.losses(one_large, places)
        same = torch.full_like(places, place)
        all_large = trial.losses(_some_of(one_large, same), same)
        if expected is None or losses is None or all_large is None:
            return
        others = places != place
        if not _equal(all_large[place], losses[place]) or not _equal(expected[others], losses[others]):
            raise _mixing_loss()


def _may_be_enlarged(values: Tensor) -> bool:
    """Return whether values are no probabilities: larger ones would end the process on a GPU."""
    return values.is_floating_point() and bool(((values < 0) | (values > 1)).any())


def _enlarge_one(place: int, values: Tensor) -> Tensor:
    if not _may_be_enlarged(values):
        return values
    values = values.clone()
    values[place] *= _LARGER
    return values


def _some_of(outputs: Any, places: Tensor | list[int] | slice) -> Any:
    return map_outputs(lambda each: each[places], outputs)


class _Ran(NamedTuple):
    """A batch and what it gave.

    Attributes:
        outputs: those of the first and last `_SMALL_BATCH` / 2 examples, or all of a smaller batch.
        losses: of the same examples.
    """

    inputs: Inputs
    outputs: Any
    losses: Tensor


@final
class _Trial:
    """Runs model and loss on batches."""

    def __init__(self, loss: LossFunction, forward: Forward, targets: Inputs, most: int) -> None:
        self._loss, self._forward, self._targets = loss, forward, targets
        self.most = most

    def _targets_for(self, count: int, *, one_target: bool = False) -> Any:
        """Targets, the same from either end in batches of all sizes, for examples that are compared.

        `one_target`: the examples between these all have the first target.
        """
        places = torch.arange(count)
        places[count // 2 :] -= count
        if one_target:
            places[len(_ORDINARY) : -len(_PADDED)] = 0
        return taken(self._targets, places % count_in(self._targets))

    def run(self, inputs: Inputs, seed: int, *, one_target: bool = False) -> _Ran:
        targets = self._targets_for(count_in(inputs), one_target=one_target)
        outputs = self._forward(inputs, seed)
        losses = losses_of(self._loss, outputs, targets)
        return _Ran(inputs, map_outputs(_ends, outputs), _ends(losses))

    def losses(self, outputs: Any, places: Tensor) -> Tensor | None:
        """Losses [batch] of outputs, asked for what stands at these places; None where the loss fails.

        Random numbers are the same each time.
        """
        seed_generators(0)
        try:
            return losses_of(self._loss, outputs, taken(self._targets_for(len(places)), places))
        except ModelError:
            return None

    def attempt(self, inputs: Inputs, seed: int) -> _Ran | None:
        """Return None where the model cannot be run: it may never meet rows such as these."""
        try:
            return self.run(inputs, seed)
        except Exception:
            return None

    def runnable(self, kinds: list[Any]) -> list[Any]:
        """Return those kinds of rows that the model runs on, two rows of each.

        Raises:
            ModelError: it does not run on a batch of all of these.
        """
        found = []
        for first in range(0, len(kinds), self.most // 2):
            some = kinds[first : first + self.most // 2]
            if self.attempt(join_batches(*some), 0) is None:
                some = [running for kind in some if len(tensors(running := self._running(kind))[0])]
                if some:
                    self._run_together(join_batches(*some), 0)
            found += some
        return found

    def together(self, inputs: Inputs, seed: int) -> _Ran | None:
        """Run the rows that the model runs on, some of them twice if others are left out; None: no row is.

        Raises:
            ModelError: it does not run on a batch of these.
        """
        ran = self.attempt(inputs, seed)
        if ran is not None:
            return ran
        running = self._running(inputs)
        count = len(tensors(running)[0])
        if not count:
            return None
        return self._run_together(taken(running, torch.arange(len(tensors(inputs)[0])) % count), seed)

    def _running(self, inputs: Any) -> Any:
        """The rows that the model runs on alone."""
        places = range(len(tensors(inputs)[0]))
        return taken(
            inputs, [place for place in places if self.attempt(taken(inputs, [place, place]), 0) is not None]
        )

    def _run_together(self, inputs: Inputs, seed: int) -> _Ran:
        try:
            return self.run(inputs, seed)
        except ModelError as error:
            raise ModelError(
                f"the model or the loss fails on a batch of examples that it takes one at a time: {error}",
                field="model",
            ) from error

    def rows_like(self, inputs: Inputs, model: nn.Module) -> TrialRows:
        """Rows made up like these inputs, or these inputs where the model runs on none of those."""
        for rows in MadeUpInputs.choices(inputs, model):
            if self.attempt(rows.full(2, seed=1), 0) is not None:
                return rows
        return GivenRows(inputs)


def _ends(values: Tensor) -> Tensor:
    """Values of the first and last examples, which are compared: outputs may be large."""
    some = _SMALL_BATCH // 2
    return values if len(values) <= _SMALL_BATCH else torch.cat([values[:some], values[-some:]])


def _between(ordinary: Inputs, padded: Inputs, kinds: list[Any]) -> Iterator[Any]:
    """Batches as large, with what is compared in its place, and rows of all kinds in turns in between.

    There is one batch where all of these rows have room in it.
    """
    room = len(tensors(ordinary)[0]) - len(_ORDINARY + _PADDED)
    count = sum(len(tensors(kind)[0]) for kind in kinds)
    for first in range(0, max(count, 1), room):
        yield map_tensors(partial(_tensor_between, first), ordinary, padded, *kinds)


def _tensor_between(first: int, ordinary: Tensor, padded: Tensor, *kinds: Tensor) -> Tensor:
    batch = ordinary.clone()
    rows = [row for kind in zip_longest(*kinds) for row in kind if row is not None]
    for place, row in enumerate(islice(cycle(rows), first, first + len(batch) - 4), start=2):
        batch[place] = row
    batch[_PADDED] = padded[_PADDED]
    return batch


def _compare(ran: _Ran, again: _Ran, places: list[int], *, other_size: bool = False) -> None:
    """Refuse outputs or losses at these places that differ; a batch of two consists of nothing else."""
    others = slice(None) if len(again.losses) == len(places) else places
    pairs = zip(output_tensors(ran.outputs), output_tensors(again.outputs), strict=True)
    if not all(_equal(one[places], other[others], other_size=other_size) for one, other in pairs):
        raise ModelError(
            "the model's output for one example changes with the other examples in the batch, so no "
            "example's influence is bounded. Look for statistics over the batch, trimming to its longest "
            "sequence, or attention over the batch axis (batch_first=True?), also behind a gate or scale "
            "that starts at 0.",
            field="outputs",
        )
    if not _equal(ran.losses[places], again.losses[others], other_size=other_size):
        raise _mixing_loss()


def _equal(first: Tensor, again: Tensor, *, other_size: bool = False) -> bool:
    absolute = 1e-5
    if other_size:
        share = _OTHER_SIZE_AUTOCAST if torch.is_autocast_enabled(first.device.type) else _OTHER_SIZE
        absolute += share * float(first.abs().nan_to_num(nan=0.0, posinf=0.0).max())
    return first.shape == again.shape and torch.allclose(
        first, again, rtol=1e-3, atol=absolute, equal_nan=True
    )


def _mixing_loss() -> ModelError:
    return ModelError(
        "the loss of one example changes with the other examples in the batch, so no example's influence is "
        "bounded. Look for division by the size of the batch, or for outliers that are left out or cut by a "
        "mean, a quantile or a rank over the batch.",
        field="losses",
    )


_SHARE = 0.1
_NOISE = 2**20 + 7
"""Numbers of noise that are drawn for a parameter; a larger one gets them again, in other columns."""


@contextmanager
def moved_parameters(model: nn.Module) -> Iterator[None]:
    """Move each trainable parameter, by the same numbers every time, and back at the end.

    A parameter of one value everywhere (a gate, a scale) is drawn again, with its sign, or with any where it
    is 0, whatever its size: a closed gate opens. Others get normal noise of a tenth of their size. Weights
    are moved the less the more numbers they sum. What the model wrote to meanwhile is left as it is, for
    `running.try_model` to find.
    """
    generator = torch.Generator().manual_seed(6)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    after = {}
    for name, parameter in trained.items():
        parameter.data.copy_(_elsewhere(parameter.detach(), generator))
        after[name] = checksum(parameter)
    torch.clear_autocast_cache()  # copies from before the move
    try:
        yield
    finally:
        for name, parameter in trained.items():
            if checksum(parameter) == after[name]:
                parameter.data.copy_(before[name])
        torch.clear_autocast_cache()


def _elsewhere(values: Tensor, generator: torch.Generator) -> Tensor:
    if not values.numel():
        return values
    usual = (len(values) / values.numel()) ** 0.5 if values.dim() > 1 else 1.0
    if (values == values.flatten()[0]).all():
        sizes = usual * (_SHARE + (1 - _SHARE) * torch.rand(values.shape, generator=generator))
        drawn = torch.randint(2, values.shape, generator=generator).to(values) * 2 - 1
        return torch.where(values == 0, drawn, values.sign()) * sizes.to(values)
    size = max(float(torch.linalg.vector_norm(values)) / values.numel() ** 0.5, usual)
    moved = values.clone(memory_format=torch.contiguous_format)
    noise = torch.randn(min(values.numel(), _NOISE), generator=generator).to(values)
    for part in moved.view(-1).split(len(noise)):
        part.add_(noise[: len(part)], alpha=_SHARE * size)
    return moved
