"""Embeddings and bags: a row's gradient is the sum of output gradients at its token's positions."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from equidp.engines.layers.linear import by_position
from equidp.engines.layers.rule import LayerGradients, Norms, Rule, run_layer
from equidp.engines.layers.sums import ByName, by_example, gram_norms
from equidp.kernel.noise import to_double


class _TableGradients(LayerGradients):
    """Gradients of a table of embeddings; never a table per example for norms or sums."""

    @abstractmethod
    def _by_row(self) -> tuple[Tensor, Tensor]:
        """Return tokens [batch * rows, T] and their gradients [batch * rows, T, features], 0 at padding."""

    @final
    def _positions(self) -> tuple[Tensor, Tensor]:
        """Return tokens and gradients by example, whose positions are the positions of all its rows."""
        tokens, gradient = self._by_row()
        if self.rows == 1:
            return tokens, gradient
        return by_example(tokens, self.rows).flatten(1), by_position(gradient, self.rows)

    @final
    def squared_norms(self) -> Norms:
        tokens, gradient = self._positions()
        different = tokens.unsqueeze(1) != tokens.unsqueeze(2)
        received = to_double(gradient)
        products = (received @ received.transpose(1, 2)).masked_fill(different.to(received.device), 0.0)
        return gram_norms(products, gradient.shape[2]).to(gradient), None

    @final
    def example_gradients(self) -> ByName:
        tokens, gradient = self._positions()
        batch, positions = tokens.shape
        rows = tokens + self.module.num_embeddings * torch.arange(batch, device=tokens.device).unsqueeze(1)
        table = gradient.new_zeros(batch * self.module.num_embeddings, gradient.shape[2])
        table.index_add_(0, rows.flatten(), gradient.reshape(batch * positions, -1))
        return {"weight": table.reshape(batch, self.module.num_embeddings, -1)}

    @final
    def weighted_gradients(self, weights: Tensor) -> ByName:
        tokens, gradient = self._positions()
        weighted = (to_double(gradient) * to_double(weights)[:, None, None]).flatten(0, 1)
        table = weighted.new_zeros(self.module.weight.shape)
        return {"weight": table.index_add_(0, tokens.flatten().to(table.device), weighted)}


@final
class EmbeddingGradients(_TableGradients):
    """nn.Embedding on token indices [batch, ...]."""

    def _by_row(self) -> tuple[Tensor, Tensor]:
        _, gradient = self.pair()
        tokens = self.inputs.reshape(len(self.inputs), -1)
        gradient = gradient.reshape(*tokens.shape, -1)
        if self.module.padding_idx is not None:
            gradient = gradient * (tokens != self.module.padding_idx).unsqueeze(2)
        return tokens, gradient


@final
class EmbeddingBagGradients(_TableGradients):
    """nn.EmbeddingBag, summing or averaging, on bags [batch, tokens], one per row."""

    def _shares(self) -> Tensor:
        """Share of each token in its bag, [batch, tokens]."""
        padding = self.module.padding_idx
        counted = torch.ones_like(self.inputs) if padding is None else (self.inputs != padding)
        counted = counted.to(self.pair()[1].dtype)
        if self.module.mode != "mean":
            return counted
        return counted / counted.sum(dim=1, keepdim=True).clamp_min(1.0)

    def _by_row(self) -> tuple[Tensor, Tensor]:
        return self.inputs, self._shares().unsqueeze(2) * self.pair()[1].unsqueeze(1)


def _covers_embedding(module: Any) -> bool:
    # Frequencies are counted over the batch, and max_norm rewrites weights in the forward pass.
    return not module.scale_grad_by_freq and module.max_norm is None


def _covers_bag(module: Any) -> bool:
    return _covers_embedding(module) and module.mode != "max"


EMBEDDING = Rule(partial(run_layer, EmbeddingGradients), _covers_embedding)
EMBEDDING_BAG = Rule(partial(run_layer, EmbeddingBagGradients), _covers_bag)
