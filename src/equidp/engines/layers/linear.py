"""Products with a weight matrix: a row's gradient is an outer product with a cheap norm (Goodfellow 2015)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from torch import Tensor

from equidp.engines.layers.rule import Call, Gradients, Norms, Rule, run_layer
from equidp.engines.layers.sums import (
    FEW_POSITIONS,
    KEPT,
    ByName,
    add_tensors,
    by_example,
    chunk_numbers,
    lengths,
    lost_to_underflow,
    outer_sum,
    position_norms,
    precise,
    squared_lengths,
    weighted_sum,
    with_rounding,
)
from equidp.kernel.noise import to_double


@final
class LinearGradients(Gradients):
    """Gradients of W and b in outputs = inputs W' + b, which each example uses once or at several positions.

    Args:
        inputs: [batch, in] or [batch, positions, in].
        gradient: [batch, out] or [batch, positions, out], of the outputs.
        weight, bias: names of W and b, or None if there is none, or it is frozen.
        form: (gradient of W, [..., out, in]) -> gradient of the layer's weight, of which W is another form.
    """

    def __init__(
        self,
        inputs: Tensor,
        gradient: Tensor,
        weight: str | None,
        bias: str | None,
        form: Callable[[Tensor], Tensor] = lambda weights: weights,
    ) -> None:
        self.inputs, self.gradient = precise(inputs, gradient)
        self.held = (inputs, gradient)
        self.weight, self.bias, self._form = weight, bias, form

    def example_gradients(self) -> ByName:
        gradients = {}
        if self.weight is not None:
            gradients[self.weight] = self._weights()
        if self.bias is not None:
            gradients[self.bias] = self._bias_gradients()
        return gradients

    def squared_norms(self) -> Norms:
        if self.inputs.dim() == 2:
            norms = lengths(self.gradient).square()
            if self.weight is None:
                return norms, None
            norms += lost_to_underflow(norms, self.gradient.shape[1])
            squares = lengths(self.inputs).square()
            squares += lost_to_underflow(squares, self.inputs.shape[1]) if self.bias is None else 1.0
            return norms * squares, None
        norms, gradients = self.gradient.new_zeros(len(self.gradient)), None
        if self.weight is not None:
            squares, gradients = self._weight_norms(self.weight)
            norms = norms + squares
        if self.bias is not None:
            biases = self._bias_gradients()
            norms = norms + squared_lengths({self.bias: biases})
            if gradients is not None:
                gradients[self.bias] = biases
        return norms, gradients

    def _weights(self) -> Tensor:
        inputs, gradient = by_position(self.inputs), by_position(self.gradient)
        return self._form(gradient.transpose(1, 2) @ inputs)

    def _bias_gradients(self) -> Tensor:
        return self.gradient if self.gradient.dim() == 2 else self.gradient.sum(dim=1)

    def _weight_norms(self, name: str) -> Norms:
        inputs, gradient = self.inputs, self.gradient
        positions, features, outputs = inputs.shape[1], inputs.shape[2], gradient.shape[2]
        if features * outputs < KEPT * positions * (features + outputs):
            weights = {name: self._weights()}
            return squared_lengths(weights), weights
        squares = position_norms(inputs, gradient)
        if positions <= FEW_POSITIONS:
            return squares, None
        terms = lengths(inputs.flatten(1)) * lengths(gradient.flatten(1))  # >= the sum of |g_t| |x_t|
        return with_rounding(squares, terms, positions), None

    def weighted_gradients(self, weights: Tensor) -> ByName:
        sums = {}
        gradient = self.gradient
        if gradient.dim() == 2:
            gradient = to_double(gradient)  # once for weight and bias
        if self.bias is not None:
            # Summed for each example first: these are the numbers whose norms were taken.
            biases = gradient if gradient.dim() == 2 else self._bias_gradients()
            sums[self.bias] = weighted_sum(weights, biases)
        if self.weight is not None:
            sums[self.weight] = self._form(self._weighted_weights(weights, gradient))
        return sums

    def _weighted_weights(self, weights: Tensor, gradient: Tensor) -> Tensor:
        inputs = self.inputs
        if inputs.dim() == 2:
            return outer_sum(weights, gradient, inputs)
        positions = inputs.shape[1]
        if positions <= FEW_POSITIONS:
            weights = weights.repeat_interleave(positions)
            return outer_sum(weights, gradient.flatten(0, 1), inputs.flatten(0, 1))
        size = max(1, chunk_numbers(inputs) // (inputs.shape[2] * gradient.shape[2]))
        parts = zip(weights.split(size), gradient.split(size), inputs.split(size), strict=True)
        return add_tensors(weighted_sum(some, left.transpose(1, 2) @ right) for some, left, right in parts)


def _read_gradients(transposed: bool, call: Call, inputs: Tensor, gradient: Tensor) -> LinearGradients:
    """Gradients of nn.Linear on inputs [batch * rows, ..., features]. All but the ends are positions."""
    weight, bias = (name if name in call.parameters else None for name in ("weight", "bias"))
    if inputs.dim() != 2 or call.rows > 1:
        inputs, gradient = by_position(inputs, call.rows), by_position(gradient, call.rows)
    if transposed:
        return LinearGradients(inputs, gradient, weight, bias, lambda weights: weights.mT)
    return LinearGradients(inputs, gradient, weight, bias)


LINEAR = Rule(partial(run_layer, partial(_read_gradients, False)))
TRANSPOSED_LINEAR = Rule(partial(run_layer, partial(_read_gradients, True)))
"""Conv1D of `transformers`, whose weight is [in, out]."""


def by_position(values: Tensor, rows: int = 1) -> Tensor:
    """[batch * rows, ..., features] as [batch, positions, features], over all rows of an example."""
    return by_example(values, rows).flatten(1, -2)
