"""A module without a rule: its own per-example gradients by torch.func, for that module alone.

Each call runs as it is, and again under `vmap(vjp)` for gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from equidp.engines.layers.decomposed import without_fused_layers
from equidp.engines.layers.rule import Call, Gradients, Norms, Tape, without_base
from equidp.engines.layers.sums import (
    KEPT,
    ByName,
    by_example,
    held_to_norms,
    precise,
    squared_lengths,
    sum_of_rows,
    weighted_sums,
)
from equidp.engines.model import call_with, is_coarse
from equidp.errors import ModelError
from equidp.kernel.generators import GeneratorStates

_OUTPUT = -1
"""Marks places of outputs, among those of arguments that do not follow the batch."""
KEPT_ANYWAY = 2**23
"""Numbers of a call's per-example gradients, 32 MiB, that are kept between norms and sum in any case: the
module would have to run a third time."""
_SAME, _SAME_COARSE = 1e-3, 0.05
"""Tolerance for outputs with the same random numbers, relative to their norm."""


def _distinct(outputs: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among outputs, each once."""
    return list({id(each): each for each in outputs if isinstance(each, Tensor)}.values())


def _apart(made: Sequence[Tensor], lent: Iterable[Tensor]) -> list[Tensor]:
    """Return outputs as tensors that are no views, so that a change in place is followed.

    Those that share memory with each other, with `lent` or between examples are copied.
    """
    taken = {each.untyped_storage().data_ptr() for each in lent}
    outputs = []
    for each in made:
        memory = each.untyped_storage().data_ptr()
        each = each.clone() if memory in taken or 0 in each.stride() else without_base(each)
        taken.add(memory)
        outputs.append(each)
    return outputs


def _follow_batch(flat: Sequence[Any], whole: set[tuple[int, int]]) -> list[bool]:
    """Return which of the flattened arguments are split by example; adds to `whole` those that are not."""
    read = [each for each in flat if isinstance(each, Tensor)]
    places = [(len(flat), position) for position in range(len(flat))]
    for place, each in zip(places, flat, strict=True):
        if not isinstance(each, Tensor) or each.shape[:1] != read[0].shape[:1]:
            whole.add(place)
    return [place not in whole for place in places]


def _alone(flat: Sequence[Any], split: Sequence[bool], own: Sequence[Tensor]) -> list[Any]:
    """Return the flattened arguments of a call with one example, [1, ...], whose own parts are given."""
    parts = iter(own)
    return [next(parts).unsqueeze(0) if follows else each for each, follows in zip(flat, split, strict=True)]


def run_module(
    call: Call,
    forward: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    whole: set[tuple[int, int]],
    tape: Tape,
) -> Any:
    """Run a module by its own forward, and later again for its gradients.

    An output that has no row for each example, as that of a table of positions [positions, features], is
    given once per example, as [batch, positions, features]: it broadcasts to what it did, and each example
    has a gradient of its own.

    Outputs that share memory, and all of several distinct ones, are given as copies: one may be computed from
    another, and each then receives what reaches it from outside the module alone.

    Args:
        call: of a module that computes each example's output from that example's inputs.
        forward: the module's own.
        arguments, keywords: what it was called with.
        whole: places of arguments and outputs that do not follow the batch; what this call shows is added.
        tape: of the forward pass.
    """
    random = GeneratorStates(next(iter(call.parameters.values())).device)
    result = forward(*arguments, **keywords)
    outputs, structure = tree_flatten(result)
    followed = [each for each in _distinct(outputs) if each.requires_grad]
    lent = (each for each in tree_flatten((arguments, keywords))[0] if isinstance(each, Tensor))
    given = _apart(followed, (*lent, *call.module.parameters(), *call.module.buffers()))
    if len(followed) > 1:
        given = [each.clone() if each is made else each for each, made in zip(given, followed, strict=True)]
    apart = dict(zip(map(id, followed), given, strict=True))
    outputs = [apart.get(id(each), each) for each in outputs]
    drew = random.has_moved()
    for position, each in enumerate(outputs):
        if not drew and _is_for_all(each, position, whole, tape.batch):
            whole.add((_OUTPUT, position))
            tape.read_once = call.module
            once = each if len(each) == 1 and each.dim() > 2 else each.unsqueeze(0)
            outputs[position] = once.expand(tape.batch, *once.shape[1:])
    result = tree_unflatten(outputs, structure)
    again = RerunGradients(call, arguments, keywords, whole, outputs, random if drew else None)

    def receive(position: int, gradient: Tensor) -> None:
        again.receive(position, gradient)
        call.pending = lambda: again

    watched: set[int] = set()
    for position, each in enumerate(outputs):
        if isinstance(each, Tensor) and id(each) not in watched:
            watched.add(id(each))
            tape.watch(call.module, again.inputs, each, partial(receive, position))
    return result


def _is_for_all(output: Any, position: int, whole: set[tuple[int, int]], batch: int) -> bool:
    """Return whether an output is one for all examples, as this or an earlier call of another size shows."""
    if not isinstance(output, Tensor) or not output.requires_grad or output.dim() < 2:
        return False
    return batch not in output.shape or (_OUTPUT, position) in whole


@final
class RerunGradients(Gradients):
    """Gradients of a module that is called again under `vmap(vjp)`.

    Tensors among the arguments whose first dimension is the batch, whatever size it had in earlier calls, are
    split by example; all other arguments are passed to every example as they are. Of several outputs, those
    that the loss depends on count. Random numbers are drawn again as they were; an example that gets others
    this time, because the order differs, contributes nothing.

    Args:
        call: of a module that computes each example's output from that example's inputs.
        arguments, keywords: what it was called with.
        whole: places of arguments and outputs that do not follow the batch; what this call shows is added.
        outputs: what the call returned, flattened.
        random: the state of random numbers before the call; None: it drew none.

    Attributes:
        inputs: the first tensor of the arguments.
        grad_outputs: gradients of the flattened outputs by position, [batch, ...]; filled by the backward
            pass.
    """

    def __init__(
        self,
        call: Call,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        whole: set[tuple[int, int]],
        outputs: Sequence[Any],
        random: GeneratorStates | None,
    ) -> None:
        self.module, self._trained, self._rows = call.module, tuple(call.parameters), call.rows
        self._flat, self._structure = tree_flatten((arguments, keywords))
        self._flat = [each.detach() if isinstance(each, Tensor) else each for each in self._flat]
        read = [each for each in self._flat if isinstance(each, Tensor)]
        if not read:
            raise ModelError(
                f"{type(call.module).__name__} reads no tensor, and makes one output for all examples. Give "
                "it a tensor [batch, ...].",
                field=type(call.module).__name__,
            )
        self.inputs = read[0]
        self._split = _follow_batch(self._flat, whole)
        self.grad_outputs: dict[int, Tensor] = {}
        self._random, self._outputs = random, []
        if random:  # copies: later layers may change outputs in place
            self._outputs = [each.detach().clone() if isinstance(each, Tensor) else each for each in outputs]
        self._norms = torch.empty(0)
        device = self.inputs.device.type
        autocast = torch.is_autocast_enabled(device)
        self._coarse = is_coarse(self.inputs.device)
        self._autocast = torch.autocast(device, torch.get_autocast_dtype(device), enabled=autocast)

    def receive(self, position: int, gradient: Tensor) -> None:
        """Take the gradient of one of the flattened outputs."""
        self.grad_outputs[position] = gradient
        self.budget = max(KEPT_ANYWAY, KEPT * (self.inputs.numel() + gradient.numel()))

    def squared_norms(self) -> Norms:
        squares, small = super().squared_norms()
        self._norms = squares.sqrt()
        return squares, small

    def without(self, left_out: Tensor) -> Gradients:
        """These gradients: `held_to_norms` leaves out what is not finite; what is has weight 0."""
        return self

    def weighted_gradients(self, weights: Tensor) -> ByName:
        """The sum; no gradient counts as longer than it was measured."""
        gradients = self.example_gradients()
        now = squared_lengths(gradients).sqrt()
        return weighted_sums(held_to_norms(weights, gradients, self._norms, now), gradients)

    def example_gradients(self) -> ByName:
        batch = len(self.inputs)
        positions, gradients = list(self.grad_outputs), tuple(self.grad_outputs.values())
        if any(len(gradient) != batch for gradient in gradients):
            raise ModelError(
                f"{type(self.module).__name__} has outputs whose first dimension is not the batch; use those "
                "that have it.",
                field=type(self.module).__name__,
            )
        every = dict(self.module.named_parameters())
        trained = {name: every[name].detach() for name in self._trained}
        fixed = {name: value.detach() for name, value in every.items() if name not in trained}
        fixed |= dict(self.module.named_buffers())

        def one(gradients: tuple[Tensor, ...], *own: Tensor) -> tuple[ByName, tuple[Tensor, ...]]:
            arguments, keywords = tree_unflatten(_alone(self._flat, self._split, own), self._structure)

            def outputs(trained: ByName) -> Any:
                result = call_with(self.module, {**trained, **fixed}, arguments, keywords)
                flattened = tree_flatten(result)[0]
                return tuple(flattened[position] for position in positions)

            given, pullback, *_ = vjp(outputs, trained)
            shaped = (each.reshape(own.shape) for each, own in zip(gradients, given, strict=True))
            pulled: ByName = pullback(tuple(shaped))[0]
            return pulled, tuple(each.squeeze(0) for each in given)

        own = [each for each, split in zip(self._flat, self._split, strict=True) if split]
        random = self._random.again() if self._random else nullcontext()
        try:
            with without_fused_layers(self.module), self._autocast, random:
                alone = vmap(one, randomness="different" if self._random else "error")
                by_name, outputs = alone(gradients, *own)
        except RuntimeError as error:
            raise ModelError(
                f"{type(self.module).__name__} cannot be computed one example at a time by torch.func "
                f"({error}). Replace it by layers that can.",
                field=type(self.module).__name__,
            ) from error
        by_name = {name: precise(each, each)[0] for name, each in by_name.items()}
        if self._random:
            same = self._drawn_again(dict(zip(positions, outputs, strict=True)))
            for each in by_name.values():
                each[~same] = 0.0
        return {name: sum_of_rows(each, self._rows) for name, each in by_name.items()}

    def _drawn_again(self, outputs: dict[int, Tensor]) -> Tensor:
        """Which examples have their first outputs again, and so the same random numbers, [batch]."""
        allowed = _SAME_COARSE if self._coarse else _SAME
        same = torch.ones(len(self.inputs), dtype=torch.bool, device=self.inputs.device)
        finite = same.clone()
        for position, again in outputs.items():
            first, again = self._outputs[position].flatten(1).float(), again.flatten(1).float()
            same &= (again - first).norm(dim=1) <= allowed * first.norm(dim=1)
            finite &= torch.isfinite(first).all(dim=1)
        self.redraw_mask = by_example(finite & ~same, self._rows).any(dim=1)
        return same
