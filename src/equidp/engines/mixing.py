"""Whether examples of a batch affect each other, or what a model keeps, as far as made-up batches show."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice, zip_longest
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from equidp.engines.attributes import Attributes
from equidp.engines.layers.rng_state import RandomState
from equidp.engines.made_up_rows import GivenRows, MadeUpInputs, TrialRows
from equidp.engines.moved import moved
from equidp.engines.preserved import same
from equidp.engines.trying import losses_of
from equidp.errors import ModelError
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, joined, mapped, taken, tensors

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
    model: nn.Module,
    loss: LossFunction,
    forward: Forward,
    inputs: Inputs,
    targets: Tensor,
    rows: TrialRows | None = None,
) -> None:
    """Refuses a model or loss whose results for an example change with others, or that keeps data.

    Two ordinary examples stand among 38 others like them, then among extremes (constant, huge, full and empty
    rows of all lengths), then alone; one among copies of itself, which an expert of limited room may not all
    take; two padded ones among others as short, then among extremes. All are made up, of the shape and type
    of the inputs. Rows that the model cannot run on alone are left out; a batch of
    others that it cannot run on is refused. All of it is done once more with parameters that were moved
    (`moved.moved`): a gate that starts at 0 hides what training will open.
    The loss is compared on the same rows, and where one example's outputs are a thousand times as large.

    Args:
        model: in training mode.
        loss: its attributes must not change with the data either.
        forward: runs the model.
        inputs, targets: a few examples that the model runs on, [batch, ...].
        rows: to try; None: made up, or these examples where the model runs on none of those.

    Raises:
        ModelError: names what changed.
    """
    trial = _Trial(model, loss, forward, targets)
    torch.manual_seed(0)
    random = RandomState(targets.device)
    trial.run(taken(inputs, slice(2)), 0)
    seeds = _SEEDS if random.moved() else 1
    rows = trial.rows_like(inputs, model) if rows is None else rows
    short = rows.short(2, seed=3)
    extremes = trial.runnable([*rows.extremes(), *([] if short is None else [short])])
    for seed in range(seeds):
        size = _SMALL_BATCH if seed else _BATCH
        ordinary = trial.together(rows.full(size, seed=4), seed)
        if ordinary is None:
            ordinary = trial.run(taken(inputs, torch.arange(size) % len(targets)), seed)
        short = rows.short(_SMALL_BATCH, seed=5)
        padded = None if short is None else trial.together(short, seed)
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
        copies = trial.run(taken(ordinary.inputs, [-1] * size), seed)
        _compare(ordinary, copies, _ORDINARY[-1:])
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
    ordinary = trial.together(rows, 0)
    if ordinary is None:
        return None
    among = trial.run(_between(ordinary.inputs, ordinary.inputs, trial.runnable(extremes)), 0)
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
        """Returns those kinds of rows that the model runs on, two rows of each.

        Raises:
            ModelError: it does not run on a batch of all of these.
        """
        if not kinds or self.attempt(joined(*kinds), 0) is not None:
            return kinds
        left = [running for kind in kinds if len(tensors(running := self._running(kind))[0])]
        if left:
            self._run_together(joined(*left), 0)
        return left

    def together(self, inputs: Inputs, seed: int) -> _Ran | None:
        """Runs the rows that the model runs on, some of them twice if others are left out; None: no row is.

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
                f"the model or the loss fails on a batch of examples that it takes one at a time: {error}"
            ) from error

    def rows_like(self, inputs: Inputs, model: nn.Module) -> TrialRows:
        """Rows made up like these inputs, or these inputs where the model runs on none of those."""
        for rows in MadeUpInputs.choices(inputs, model):
            if self.attempt(rows.full(2, seed=1), 0) is not None:
                return rows
        return GivenRows(inputs)


def _between(ordinary: Inputs, padded: Inputs, kinds: list[Any]) -> Any:
    """A batch as large, with what is compared in its place, and rows of all kinds in turns in between."""
    return mapped(_tensor_between, ordinary, padded, *kinds)


def _tensor_between(ordinary: Tensor, padded: Tensor, *kinds: Tensor) -> Tensor:
    batch = ordinary.clone()
    rows = [row for kind in zip_longest(*kinds) for row in kind if row is not None]
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
