"""Products with a weight matrix. The gradient of one row is an outer product, so its norm needs no product (Goodfellow, 2015)."""

from __future__ import annotations

import torch
from torch import Tensor

from equidp.engines.layers.rule import LayerCall
from equidp.engines.layers.sums import gram_norms, precise, squared_lengths


class LinearUse:
    """outputs = inputs W' + b, once or at several positions of each example: what that adds to the gradients of W and b.

    Args:
        inputs: [batch, in] or [batch, positions, in].
        gradient: [batch, out] or [batch, positions, out], of the outputs.
        weight, bias: names of W and b; None where there is none, or it is frozen.
    """

    def __init__(self, inputs: Tensor, gradient: Tensor, weight: str | None, bias: str | None) -> None:
        self.inputs, self.gradient = precise(inputs, gradient)
        self.weight, self.bias = weight, bias
        self.kept: dict[str, Tensor] | None = None

    def example_gradients(self) -> dict[str, Tensor]:
        """[batch, out, in] and [batch, out], by name."""
        gradients = {}
        if self.weight is not None:
            inputs, gradient = by_position(self.inputs), by_position(self.gradient)
            gradients[self.weight] = gradient.transpose(1, 2) @ inputs
        if self.bias is not None:
            gradients[self.bias] = self._bias_gradients()
        return gradients

    def squared_norms(self) -> Tensor:
        """Over weight and bias together, [batch]; by the cheapest of three ways. Fills `kept` where that is the gradients' own."""
        if self.inputs.dim() == 2:
            lengths: Tensor = torch.linalg.vector_norm(self.gradient, dim=1).square()
            if self.weight is None:
                return lengths
            squares: Tensor = torch.linalg.vector_norm(self.inputs, dim=1).square()
            return lengths * (squares if self.bias is None else squares + 1.0)
        norms = self.gradient.new_zeros(len(self.gradient))
        if self.weight is not None:
            norms = norms + self._squared_weight_norms()
        if self.bias is not None:
            norms = norms + squared_lengths({"": self._bias_gradients()})
        return norms

    def _bias_gradients(self) -> Tensor:
        return self.gradient if self.gradient.dim() == 2 else self.gradient.sum(dim=1)

    def _squared_weight_norms(self) -> Tensor:
        inputs, gradient = self.inputs, self.gradient
        positions, features, outputs = inputs.shape[1], inputs.shape[2], gradient.shape[2]
        if positions * (features + outputs) <= features * outputs:
            # |sum_t g_t x_t'|^2 = sum_st <x_s, x_t> <g_s, g_t>: T^2 numbers in place of in * out (Li et al., 2022).
            return gram_norms((inputs @ inputs.transpose(1, 2)) * (gradient @ gradient.transpose(1, 2)))
        weights = gradient.transpose(1, 2) @ inputs
        if weights.numel() <= inputs.numel() + gradient.numel():
            self.kept = {str(self.weight): weights}
            if self.bias is not None:
                self.kept[self.bias] = self._bias_gradients()
        return squared_lengths({"": weights})

    def weighted_gradients(self, weights: Tensor) -> dict[str, Tensor]:
        """[out, in] and [out], by name."""
        sums = {}
        inputs, gradient, weights = self.inputs, self.gradient, weights.to(self.gradient.dtype)
        if inputs.dim() != 2:
            weights = weights.repeat_interleave(inputs.shape[1])
            inputs, gradient = inputs.flatten(0, 1), gradient.flatten(0, 1)
        if self.weight is not None:
            sums[self.weight] = (gradient * weights.unsqueeze(1)).T @ inputs
        if self.bias is not None:
            sums[self.bias] = weights @ gradient
        return sums


class LinearCall(LayerCall):
    """nn.Linear on inputs [batch, ..., features]: dimensions between are positions of one example."""

    _read: LinearUse | None = None

    def _use(self) -> LinearUse:
        if self._read is None:
            assert self.grad_output is not None
            names = (name if name in self.parameters else None for name in ("weight", "bias"))
            inputs, gradient = self.inputs, self.grad_output
            if inputs.dim() != 2:
                inputs, gradient = by_position(inputs), by_position(gradient)
            self._read = LinearUse(inputs, gradient, *names)
        return self._read

    def drop(self) -> None:
        super().drop()
        self._read = None

    def example_gradients(self) -> dict[str, Tensor]:
        return self._use().example_gradients()

    def squared_norms(self) -> Tensor:
        use = self._use()
        norms = use.squared_norms()
        self.kept = use.kept
        return norms

    def weighted_gradients(self, weights: Tensor) -> dict[str, Tensor]:
        return self._use().weighted_gradients(weights)


def by_position(values: Tensor) -> Tensor:
    """[batch, ..., features] as [batch, positions, features]."""
    return values.unsqueeze(1) if values.dim() == 2 else values.reshape(len(values), -1, values.shape[-1])
