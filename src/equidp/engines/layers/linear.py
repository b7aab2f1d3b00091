"""Products with a weight matrix: a row's gradient is an outer product with a cheap norm (Goodfellow 2015)."""

from __future__ import annotations

from functools import partial
from typing import final

import torch
from torch import Tensor

from equidp.engines.layers.call import Call, Gradients, Norms
from equidp.engines.layers.rule import Rule, run_layer
from equidp.engines.layers.sums import (
    ByName,
    by_example,
    lost_to_underflow,
    precise,
    product_norms,
    squared_lengths,
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
        """Reads nn.Linear on inputs [batch * rows, ..., features]; all but the ends are positions."""
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
            lengths: Tensor = torch.linalg.vector_norm(self.gradient, dim=1).square()
            if self.weight is None:
                return lengths, None
            lengths += lost_to_underflow(lengths, self.gradient.shape[1])
            squares: Tensor = torch.linalg.vector_norm(self.inputs, dim=1).square()
            squares += lost_to_underflow(squares, self.inputs.shape[1]) if self.bias is None else 1.0
            return lengths * squares, None
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
        if positions * (features + outputs) <= features * outputs:
            # |sum_t g_t x_t'|^2 = sum_st <x_s, x_t> <g_s, g_t>: T^2 numbers, not in * out (Li et al. 2022).
            products = inputs @ inputs.transpose(1, 2), gradient @ gradient.transpose(1, 2)
            return product_norms(*products, (features, outputs)), None
        weights = {name: gradient.transpose(1, 2) @ inputs}
        small = weights[name].numel() <= inputs.numel() + gradient.numel()
        return squared_lengths(weights), weights if small else None

    def weighted_gradients(self, weights: Tensor) -> ByName:
        sums = {}
        inputs, gradient, weights = self.inputs, self.gradient, weights.to(self.gradient.dtype)
        if self.bias is not None:
            # Summed for each example first: terms that cancel must not meet the sums of other examples.
            sums[self.bias] = weights @ self._bias_gradients()
        if self.weight is not None:
            if inputs.dim() != 2:
                weights = weights.repeat_interleave(inputs.shape[1])
                inputs, gradient = inputs.flatten(0, 1), gradient.flatten(0, 1)
            sums[self.weight] = (gradient * weights.unsqueeze(1)).T @ inputs
        return sums


@final
class TransposedGradients(Gradients):
    """Gradients of W and b in outputs = inputs W + b: those of a linear layer with W', turned.

    Args:
        linear: of the layer with W'.
    """

    def __init__(self, linear: LinearGradients) -> None:
        self._linear, self.held = linear, linear.held

    @classmethod
    def read(cls, call: Call, inputs: Tensor, gradient: Tensor) -> TransposedGradients:
        """Reads Conv1D of `transformers` on inputs [batch, ..., features]."""
        return cls(LinearGradients.read(call, inputs, gradient))

    def example_gradients(self) -> ByName:
        return _turned(self._linear.example_gradients())

    def squared_norms(self) -> Norms:
        squares, small = self._linear.squared_norms()
        return squares, None if small is None else _turned(small)

    def weighted_gradients(self, weights: Tensor) -> ByName:
        return _turned(self._linear.weighted_gradients(weights))


def _turned(gradients: ByName) -> ByName:
    return {name: each.mT if name == "weight" else each for name, each in gradients.items()}


LINEAR = Rule(partial(run_layer, LinearGradients.read))
TRANSPOSED_LINEAR = Rule(partial(run_layer, TransposedGradients.read))


def by_position(values: Tensor, rows: int = 1) -> Tensor:
    """[batch * rows, ..., features] as [batch, positions, features]: those of all rows of an example."""
    return by_example(values, rows).flatten(1, -2)
