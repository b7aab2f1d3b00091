"""Embeddings and bags of them: the gradient of a row is the sum of the output gradients where its token stands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equidp.engines.layers.rule import LayerCall
from equidp.engines.layers.sums import gram_norms


class EmbeddingCall(LayerCall):
    """nn.Embedding on token indices [batch, ...]; never a table per example."""

    module: Any

    @classmethod
    def covers(cls, module: Any) -> bool:
        """Scaling by frequency counts tokens over the batch, and max_norm rewrites weights in the forward pass."""
        return not module.scale_grad_by_freq and module.max_norm is None

    def _positions(self) -> tuple[Tensor, Tensor]:
        """Tokens [batch, T] and output gradients [batch, T, features], 0 at padding."""
        _, gradient = self.pair()
        tokens = self.inputs.reshape(len(self.inputs), -1)
        gradient = gradient.reshape(*tokens.shape, -1)
        if self.module.padding_idx is not None:
            gradient = gradient * (tokens != self.module.padding_idx).unsqueeze(2)
        return tokens, gradient

    def example_gradients(self) -> dict[str, Tensor]:
        tokens, gradient = self._positions()
        batch, positions = tokens.shape
        rows = tokens + self.module.num_embeddings * torch.arange(batch, device=tokens.device).unsqueeze(1)
        table = gradient.new_zeros(batch * self.module.num_embeddings, gradient.shape[2])
        table.index_add_(0, rows.flatten(), gradient.reshape(batch * positions, -1))
        return {"weight": table.reshape(batch, self.module.num_embeddings, -1)}

    def squared_norms(self) -> Tensor:
        tokens, gradient = self._positions()
        same = tokens.unsqueeze(1) == tokens.unsqueeze(2)
        return gram_norms(torch.where(same, gradient @ gradient.transpose(1, 2), 0.0))

    def weighted_gradients(self, weights: Tensor) -> dict[str, Tensor]:
        tokens, gradient = self._positions()
        weighted = (gradient * weights.to(gradient.dtype)[:, None, None]).flatten(0, 1)
        table = torch.zeros_like(self.module.weight, dtype=gradient.dtype)
        return {"weight": table.index_add_(0, tokens.flatten(), weighted)}


class EmbeddingBagCall(EmbeddingCall):
    """nn.EmbeddingBag, summing or averaging, on bags [batch, tokens], one a row."""

    @classmethod
    def covers(cls, module: Any) -> bool:
        return super().covers(module) and module.mode != "max"

    def _shares(self) -> Tensor:
        """How much of its bag each token is, [batch, tokens]."""
        padding = self.module.padding_idx
        counted = torch.ones_like(self.inputs) if padding is None else (self.inputs != padding)
        counted = counted.to(self.pair()[1].dtype)
        return (
            counted / counted.sum(dim=1, keepdim=True).clamp_min(1.0)
            if self.module.mode == "mean"
            else counted
        )

    def _positions(self) -> tuple[Tensor, Tensor]:
        return self.inputs, self._shares().unsqueeze(2) * self.pair()[1].unsqueeze(1)

    def squared_norms(self) -> Tensor:
        shares = self._shares()
        same = self.inputs.unsqueeze(1) == self.inputs.unsqueeze(2)
        pairs = torch.where(same, shares.unsqueeze(1) * shares.unsqueeze(2), 0.0)
        return pairs.sum(dim=(1, 2)) * self.pair()[1].square().sum(dim=1)
