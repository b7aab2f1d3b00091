"""Products with a weight matrix: a row's gradient is an outer product with a cheap norm (Goodfellow 2015)."""

from __future__ import annotations

from copy import copy
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
    zero_left_out,
)


@final
class LinearGradients(Gradients):
    """Gradients of W and b in outputs = inputs W' + b, which each example uses once or at several positions.

    Args:
        inputs: [batch, in] or [batch, positions, in].
        gradient: [batch, out] or [batch, positions, out], of the outputs.
        weight, bias: names of W and b; None where there is none, or it is frozen.
    """

    def __init__(self, inputs: Tensor, gradient: Tensor, weight: str | None, bias: str | None) -> None:
        self.inputs, self.gradient = precise(inputs, gradient)
        self.held = (inputs, gradient)
        self.weight, self.bias = weight, bias

    @classmethod
    def read(cls, call: Call, inputs: Tensor, gradient: Tensor) -> LinearGradients:
        """Read nn.Linear on inputs [batch * rows, ..., features]; all but the ends are positions."""
        names = (name if name in call.parameters else None for name in ("weight", "bias"))
        if inputs.dim() != 2 or call.rows > 1:
            inputs, gradient = by_position(inputs, call.rows), by_position(gradient, call.rows)
        return cls(inputs, gradient, *names)

    def example_gradients(self) -> ByName:
        gradients = {}
        if self.weight is not None:
            inputs, gradient = by_position(self.inputs), by_position(self.gradient)
            gradients[self.weight] = gradient.transpose(1, 2) @ inputs
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

    def _bias_gradients(self) -> Tensor:
        return self.gradient if self.gradient.dim() == 2 else self.gradient.sum(dim=1)

    def _weight_norms(self, name: str) -> Norms:
        inputs, gradient = self.inputs, self.gradient
        positions, features, outputs = inputs.shape[1], inputs.shape[2], gradient.shape[2]
        if features * outputs < KEPT * positions * (features + outputs):
            weights = {name: gradient.transpose(1, 2) @ inputs}
            return squared_lengths(weights), weights
        squares = position_norms(inputs, gradient)
        if positions <= FEW_POSITIONS:
            return squares, None
        terms = lengths(inputs.flatten(1)) * lengths(gradient.flatten(1))  # >= the sum of |g_t| |x_t|
        return with_rounding(squares, terms, positions), None

    def weighted_gradients(self, weights: Tensor) -> ByName:
        sums = {}
        if self.bias is not None:
            # Summed for each example first: these are the numbers whose norms were taken.
            sums[self.bias] = weighted_sum(weights, self._bias_gradients())
        if self.weight is not None:
            sums[self.weight] = self._weighted_weights(weights)
        return sums

    def _weighted_weights(self, weights: Tensor) -> Tensor:
        inputs, gradient = self.inputs, self.gradient
        if inputs.dim() == 2:
            return outer_sum(weights, gradient, inputs)
        positions = inputs.shape[1]
        if positions <= FEW_POSITIONS:
            weights = weights.repeat_interleave(positions)
            return outer_sum(weights, gradient.flatten(0, 1), inputs.flatten(0, 1))
        size = max(1, chunk_numbers(inputs) // (inputs.shape[2] * gradient.shape[2]))
        parts = zip(weights.split(size), gradient.split(size), inputs.split(size), strict=True)
        return add_tensors(weighted_sum(some, left.transpose(1, 2) @ right) for some, left, right in parts)

    def without(self, left_out: Tensor) -> LinearGradients:
        gradients = copy(self)
        gradients.inputs, gradients.gradient = (
            zero_left_out(self.inputs, left_out),
            zero_left_out(self.gradient, left_out),
        )
        return gradients


@final
class TransposedGradients(Gradients):
    """Gradients of W and b in outputs = inputs W + b: gradients of a linear layer with W', transposed.

    Args:
        linear: of the layer with W'.
    """

    def __init__(self, linear: LinearGradients) -> None:
        self._linear, self.held = linear, linear.held

    @classmethod
    def read(cls, call: Call, inputs: Tensor, gradient: Tensor) -> TransposedGradients:
        """Read Conv1D of `transformers` on inputs [batch, ..., features]."""
        return cls(LinearGradients.read(call, inputs, gradient))

    def example_gradients(self) -> ByName:
        return _transpose_weights(self._linear.example_gradients())

    def squared_norms(self) -> Norms:
        squares, small = self._linear.squared_norms()
        return squares, None if small is None else _transpose_weights(small)

    def weighted_gradients(self, weights: Tensor) -> ByName:
        return _transpose_weights(self._linear.weighted_gradients(weights))

    def without(self, left_out: Tensor) -> TransposedGradients:
        return TransposedGradients(self._linear.without(left_out))


def _transpose_weights(gradients: ByName) -> ByName:
    return {name: each.mT if name == "weight" else each for name, each in gradients.items()}


LINEAR = Rule(partial(run_layer, LinearGradients.read))
TRANSPOSED_LINEAR = Rule(partial(run_layer, TransposedGradients.read))


def by_position(values: Tensor, rows: int = 1) -> Tensor:
    """[batch * rows, ..., features] as [batch, positions, features]: those of all rows of an example."""
    return by_example(values, rows).flatten(1, -2)
