"""A module without a rule: its own per-example gradients by torch.func, for that module alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from equidp.engines.layers.decomposed import unrolled
from equidp.engines.layers.rng_state import RandomState
from equidp.engines.layers.rule import LayerCall
from equidp.engines.layers.sums import held_to_norms, precise, squared_lengths, weighted_sums
from equidp.errors import ModelError

_ALIKE, _ALIKE_AUTOCAST = 1e-3, 0.05
"""How far an example's outputs may be from those with the same random numbers, of their norm: rounding is below."""


class FallbackCall(LayerCall):
    """Any module that computes each example's output from that example's inputs, called again under `vmap(vjp)`.

    Tensors among the arguments whose first dimension is the batch, whatever size that was in earlier calls, are taken apart; all
    else is passed to every example as it is. Of several outputs, those that the loss depends on count. Random numbers are drawn
    again as they were; an example that gets others this time, for want of the order, contributes nothing here.

    Args:
        whole: which arguments are known not to follow the batch; told of those that this call shows.

    Attributes:
        drew_otherwise: which examples got other random numbers when it was run again, [batch]; None where it draws none.
        grad_outputs: gradients of the flattened outputs by position, [batch, ...]; set by the backward pass.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: dict[str, nn.Parameter],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        whole: set[tuple[int, int]],
    ) -> None:
        self._flat, self._structure = tree_flatten((arguments, keywords))
        self._flat = [each.detach() if isinstance(each, Tensor) else each for each in self._flat]
        super().__init__(module, parameters)
        self.inputs = next(each for each in self._flat if isinstance(each, Tensor))
        places = [(len(self._flat), position) for position in range(len(self._flat))]
        whole.update(
            place for place, each in zip(places, self._flat, strict=True) if not self._looks_like_batch(each)
        )
        self._split = [place not in whole for place in places]
        self.grad_outputs: dict[int, Tensor] = {}
        self._random: RandomState | None = None
        self.drew_otherwise: Tensor | None = None
        self._outputs: list[Any] = []
        device = self.inputs.device.type
        self._coarse = torch.is_autocast_enabled(device)
        self._autocast = torch.autocast(device, torch.get_autocast_dtype(device), enabled=self._coarse)

    def _looks_like_batch(self, argument: object) -> bool:
        return isinstance(argument, Tensor) and argument.shape[:1] == self.inputs.shape[:1]

    def receive_at(self, position: int, gradient: Tensor) -> None:
        """Takes the gradient of one of the flattened outputs."""
        self.grad_outputs[position] = gradient
        self.grad_output, self._reached = gradient, True

    def draw_again(self, random: RandomState, outputs: Sequence[Any]) -> None:
        """Told of a call that drew random numbers, with their state before it and its flattened outputs."""
        self._random = random
        # Copies: what follows may change outputs in place.
        self._outputs = [each.detach().clone() if isinstance(each, Tensor) else each for each in outputs]

    def drop(self) -> None:
        super().drop()
        self._flat, self._outputs, self.grad_outputs = [], [], {}

    def weighted_gradients(self, weights: Tensor) -> dict[str, Tensor]:
        """As ever, but no gradient is longer than its norm was said to be."""
        gradients = self.example_gradients()
        if self.squares is not None:
            now = squared_lengths(gradients).sqrt()
            weights = held_to_norms(weights, gradients, self.squares.sqrt(), now)
        return weighted_sums(weights, gradients)

    def example_gradients(self) -> dict[str, Tensor]:
        batch = len(self.inputs)
        positions, gradients = list(self.grad_outputs), tuple(self.grad_outputs.values())
        if any(len(gradient) != batch for gradient in gradients):
            raise ModelError(
                f"{type(self.module).__name__} has outputs whose first dimension is not the batch; use those that have it, "
                "or engine='functional'."
            )
        every = dict(self.module.named_parameters())
        trained = {name: every[name].detach() for name in self.parameters}
        fixed = {name: value.detach() for name, value in every.items() if name not in trained}
        fixed |= dict(self.module.named_buffers())

        def one(gradients: tuple[Tensor, ...], *own: Tensor) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
            parts = iter(own)
            flat = [
                next(parts).unsqueeze(0) if apart else each
                for each, apart in zip(self._flat, self._split, strict=True)
            ]
            arguments, keywords = tree_unflatten(flat, self._structure)

            def outputs(trained: dict[str, Tensor]) -> Any:
                given = tree_flatten(functional_call(self.module, {**trained, **fixed}, arguments, keywords))[
                    0
                ]
                return tuple(given[position] for position in positions)

            given, pullback, *_ = vjp(outputs, trained)
            pulled: dict[str, Tensor] = pullback(tuple(each.unsqueeze(0) for each in gradients))[0]
            return pulled, tuple(each.squeeze(0) for each in given)

        own = [each for each, apart in zip(self._flat, self._split, strict=True) if apart]
        try:
            with (
                unrolled(self.module),
                self._autocast,
                self._random.again() if self._random else nullcontext(),
            ):
                alone = vmap(one, randomness="different" if self._random else "error")
                gradients_by_name, outputs = alone(gradients, *own)
        except RuntimeError as error:
            raise ModelError(
                f"{type(self.module).__name__} cannot be computed one example at a time by torch.func ({error}). "
                "Replace it by layers that can."
            ) from error
        gradients_by_name = {name: precise(each, each)[0] for name, each in gradients_by_name.items()}
        if self._random:
            same = self._drawn_again(dict(zip(positions, outputs, strict=True)))
            for each in gradients_by_name.values():
                each[~same] = 0.0
        return gradients_by_name

    def _drawn_again(self, outputs: dict[int, Tensor]) -> Tensor:
        """Which examples have their outputs of the pass itself again, [batch]: gradients belong to the numbers drawn there."""
        allowed = _ALIKE_AUTOCAST if self._coarse else _ALIKE
        same = torch.ones(len(self.inputs), dtype=torch.bool, device=self.inputs.device)
        finite = same.clone()
        for position, again in outputs.items():
            first, again = self._outputs[position].flatten(1).float(), again.flatten(1).float()
            same &= (again - first).norm(dim=1) <= allowed * first.norm(dim=1)
            finite &= torch.isfinite(first).all(dim=1)
        self.drew_otherwise = finite & ~same
        return same
