"""Whether examples of a batch affect each other, or what a model keeps, as far as made-up batches show."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from equidp.engines.attributes import Attributes
from equidp.engines.layers.rng_state import RandomState
from equidp.engines.made_up_rows import MadeUpInputs
from equidp.engines.moved import moved
from equidp.engines.preserved import same
from equidp.engines.trying import losses_of
from equidp.errors import ModelError
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, joined, mapped, taken

_BATCH, _SMALL_BATCH = 40, 8
"""Examples per batch: some models mix in large batches only. Further passes of a random model are small."""
_SEEDS = 10
"""How often a model that draws random numbers is run: it may mix examples in some passes only."""
_OTHER_SIZE, _OTHER_SIZE_AUTOCAST = 0.01, 0.2
"""How far outputs may be apart in batches of other sizes, relative to the largest: rounding differs."""
_LARGER = 1e3
"""What outputs are multiplied by, for losses that are enormous beside others."""
_ORDINARY, _PADDED = [0, -1], [1, -2]
"""Where the examples that are compared stand in every batch."""

Forward = Callable[[Inputs, int], Tensor]
"""(inputs [batch, ...], seed) -> outputs [batch, ...], with the same random numbers for the same seed."""


def check_mixing(
    model: nn.Module, loss: LossFunction, forward: Forward, inputs: Inputs, targets: Tensor
) -> None:
    """Refuses a model or loss whose results for an example change with others, or that keeps data.

    Two ordinary examples stand among 38 others like them, then among extremes (constant, huge, full and empty
    rows), then alone; two padded ones among others as short, then among extremes. All are made up, of the
    shape and type of the inputs. Rows that the model cannot run on are left out. All of it is done once more
    with parameters that were moved (`moved.moved`): a gate that starts at 0 hides what training will open.
    The loss is compared on the same rows, and where one example's outputs are a thousand times as large.

    Args:
        model: in training mode.
        loss: its attributes must not change with the data either.
        forward: runs the model.
        inputs, targets: a few examples that the model runs on, [batch, ...].

    Raises:
        ModelError: names what changed.
    """
    trial = _Trial(model, loss, forward, targets)
    torch.manual_seed(0)
    random = RandomState(targets.device)
    trial.run(taken(inputs, slice(2)), 0)
    seeds = _SEEDS if random.moved() else 1
    rows = MadeUpInputs.like(inputs, model)
    if trial.attempt(rows.full(2, seed=1), 0) is None:
        rows = MadeUpInputs.like(inputs, model, centred=False)
    extremes = trial.runnable([*rows.extremes(), rows.short(2, seed=3)])
    for seed in range(seeds):
        size = _SMALL_BATCH if seed else _BATCH
        ordinary = trial.attempt(rows.full(size, seed=4), seed)
        if ordinary is None:
            ordinary = trial.run(taken(inputs, torch.arange(size) % len(targets)), seed)
        padded = trial.attempt(rows.short(_SMALL_BATCH, seed=5), seed) if rows.shaped else None
        among = trial.run(_between(ordinary.inputs, (padded or ordinary).inputs, extremes), seed)
        name = ordinary.attributes.differing(among.attributes)
        if name is not None and trial.carries(ordinary, among, seed):
            raise ModelError(
                f"attribute {name} changes with the data in training and carries it from step to step, past "
                "the noise. Compute it from each example itself, or keep it in evaluation mode only."
            )
        _compare(ordinary, among, _ORDINARY)
        if padded is not None and (seeds == 1 or size == _SMALL_BATCH):
            _compare(padded, among, _PADDED, other_size=size != _SMALL_BATCH)
        if seeds == 1:
            _compare(ordinary, trial.run(taken(ordinary.inputs, _ORDINARY), seed), _ORDINARY, other_size=True)
        if not seed:
            with moved(model):
                others = _check_moved(trial, taken(ordinary.inputs, slice(_SMALL_BATCH)), extremes)
            _check_losses(trial, ordinary.outputs if others is None else others)


def _check_moved(trial: _Trial, rows: Inputs, extremes: list[Any]) -> Tensor | None:
    """Compares a few once more, and returns their outputs.

    None where the model fails with other parameters: it may never have such.
    """
    ordinary = trial.attempt(rows, 0)
    among = trial.attempt(_between(rows, rows, extremes), 0)
    if among is None:
        among = trial.attempt(_between(rows, rows, trial.runnable(extremes)), 0)
    if ordinary is None or among is None:
        return None
    _compare(ordinary, among, _ORDINARY)
    return ordinary.outputs


def _check_losses(trial: _Trial, outputs: Tensor) -> None:
    """Compares losses where one example's outputs are a thousand times as large, beside others and alike."""
    if not outputs.is_floating_point() or not ((outputs < 0) | (outputs > 1)).any():
        return  # these may be probabilities, and larger ones would end the process on a GPU
    outputs = outputs[torch.arange(_BATCH) % len(outputs)]  # outliers stand out in large batches only
    places = torch.arange(len(outputs))
    expected = trial.losses(outputs, places)
    for place in range(_SMALL_BATCH):
        one_large = outputs.clone()
        one_large[place] *= _LARGER
        losses = trial.losses(one_large, places)
        same = torch.full_like(places, place)
        all_large = trial.losses(one_large[same], same)
        if expected is None or losses is None or all_large is None:
            return
        others = places != place
        if not _equal(all_large[place], losses[place]) or not _equal(expected[others], losses[others]):
            raise _mixing_loss()


class _Ran(NamedTuple):
    """A batch, outputs [batch, ...] and losses [batch], and the attributes of model and loss after it."""

    inputs: Inputs
    outputs: Tensor
    losses: Tensor
    attributes: Attributes


@final
class _Trial:
    """Runs model and loss on batches, each time with their attributes as they were."""

    def __init__(self, model: nn.Module, loss: LossFunction, forward: Forward, targets: Tensor) -> None:
        self._model, self._loss, self._forward, self._targets = model, loss, forward, targets
        self._before = Attributes(model, loss)

    def _asked(self, count: int) -> Tensor:
        """Targets, the same from either end in batches of all sizes, for examples that are compared."""
        places = torch.arange(count)
        places[count // 2 :] -= count
        return self._targets[places % len(self._targets)]

    def _pass(self, inputs: Inputs, seed: int) -> tuple[Tensor, Tensor]:
        outputs = self._forward(inputs, seed)
        return outputs, losses_of(self._loss, outputs, self._asked(len(outputs)))

    def run(self, inputs: Inputs, seed: int) -> _Ran:
        try:
            return _Ran(inputs, *self._pass(inputs, seed), Attributes(self._model, self._loss))
        finally:
            self._before.restore()

    def losses(self, outputs: Tensor, places: Tensor) -> Tensor | None:
        """Losses [batch] of outputs, asked for what stands at these places; None where the loss fails.

        Random numbers are the same each time.
        """
        torch.manual_seed(0)
        try:
            return losses_of(self._loss, outputs, self._asked(len(outputs))[places])
        except ModelError:
            return None
        finally:
            self._before.restore()

    def carries(self, first: _Ran, second: _Ran, seed: int) -> bool:
        """Returns whether the second batch changes the outputs of the first, or what it leaves behind.

        What a pass only leaves behind, such as attention maps to look at, the next one overwrites.
        """
        again, after = self._after(first.inputs, first.inputs, seed)
        then, after_others = self._after(second.inputs, first.inputs, seed)
        return not same(again, then) or after.differing(after_others) is not None

    def _after(self, first: Inputs, second: Inputs, seed: int) -> tuple[Tensor, Attributes]:
        """Outputs and attributes of the second of two passes."""
        try:
            self._pass(first, seed)
            outputs, _ = self._pass(second, seed)
            return outputs, Attributes(self._model, self._loss)
        finally:
            self._before.restore()

    def attempt(self, inputs: Inputs, seed: int) -> _Ran | None:
        """Returns None where the model cannot be run: it may never meet rows such as these."""
        try:
            return self.run(inputs, seed)
        except Exception:
            return None

    def runnable(self, kinds: list[Any]) -> list[Any]:
        """Returns those kinds of rows that the model runs on."""
        if self.attempt(joined(*kinds), 0) is not None:
            return kinds
        return [kind for kind in kinds if self.attempt(kind, 0) is not None]


def _between(ordinary: Inputs, padded: Inputs, kinds: list[Any]) -> Any:
    """A batch as large, with what is compared in its place, and rows of all kinds in turns in between."""
    return mapped(_tensor_between, ordinary, padded, *kinds)


def _tensor_between(ordinary: Tensor, padded: Tensor, *kinds: Tensor) -> Tensor:
    batch = ordinary.clone()
    rows = [row for kind in zip(*kinds, strict=True) for row in kind]
    for place, row in enumerate(islice(cycle(rows), len(batch) - 4), start=2):
        batch[place] = row
    batch[_PADDED] = padded[_PADDED]
    return batch


def _compare(ran: _Ran, again: _Ran, places: list[int], *, other_size: bool = False) -> None:
    """Refuses outputs or losses at these places that differ; a batch of two consists of nothing else."""
    others = slice(None) if len(again.outputs) == len(places) else places
    if not _equal(ran.outputs[places], again.outputs[others], other_size=other_size):
        raise ModelError(
            "the model's output for one example changes with the other examples in the batch, so no "
            "example's influence is bounded. Look for statistics over the batch, trimming to its longest "
            "sequence, or attention over the batch axis (batch_first=True?), also behind a gate or scale "
            "that starts at 0."
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
        "mean, a quantile or a rank over the batch."
    )
