"""The functional engine: per-example gradients by torch.func, for any module. The oracle that other engines are held to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from equidp.engines.layers import RandomState, unrolled
from equidp.engines.layers.sums import held_to_norms
from equidp.errors import SettingError
from equidp.kernel.engine import LossFunction

_CHUNK_NUMBERS = 2**26
"""Gradient entries held at a time: a quarter of a gibibyte in float32."""


class FunctionalEngine:
    """Per-example gradients by `vmap(grad)`, in chunks that bound memory.

    A batch of one chunk keeps its gradients for the weighted sum; a longer one computes them again, with the same random numbers
    (dropout), chunk by chunk, and holds them to the norms that it gave.

    Args:
        model: any module whose outputs for one example do not depend on others.
        loss: (outputs, targets) -> losses [batch].
        chunk_size: examples at a time; None: as many as keep the gradients within a quarter of a gibibyte.
    """

    def __init__(self, model: nn.Module, loss: LossFunction, chunk_size: int | None = None) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise SettingError(f"chunk_size={chunk_size}; expected None or a whole number >= 1.")
        self.model, self.loss = model, loss
        size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self.chunk_size = chunk_size or max(1, _CHUNK_NUMBERS // max(1, size))
        self._batch: tuple[Tensor, Tensor] | None = None
        self._kept: list[dict[str, Tensor]] = []
        self._random: RandomState | None = None
        self._norms = torch.empty(0)

    def norms(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """See `GradientEngine.norms`."""
        self._batch, self._kept = (inputs, targets), []
        self._random = RandomState(inputs.device)
        norms = []
        for gradients in self._chunks():
            norms.append(_norms_of(gradients))
            if len(inputs) <= self.chunk_size:
                self._kept = [gradients]
        self._norms = torch.cat(norms)
        return self._norms.clone()

    def weighted_sum(self, weights: Tensor) -> None:
        """See `GradientEngine.weighted_sum`."""
        assert self._random is not None, "norms() comes first"
        parameters = dict(self.model.named_parameters())
        with nullcontext() if self._kept else self._random.again():
            chunks = torch.split(weights, self.chunk_size), torch.split(self._norms, self.chunk_size)
            for gradients, part, before in zip(self._kept or self._chunks(), *chunks, strict=True):
                if not self._kept:
                    part = held_to_norms(part, gradients, before, _norms_of(gradients))
                for name, gradient in gradients.items():
                    with torch.autocast(gradient.device.type, enabled=False):
                        total = torch.tensordot(part.to(gradient.dtype), gradient, dims=1)
                    parameter = parameters[name]
                    parameter.grad = total if parameter.grad is None else parameter.grad + total
        self._batch, self._kept = None, []

    def _chunks(self) -> Iterator[dict[str, Tensor]]:
        """Per-example gradients by parameter name, [chunk, *shape] each."""
        assert self._batch is not None
        parameters = dict(self.model.named_parameters())
        trained = {name: value.detach() for name, value in parameters.items() if value.requires_grad}
        fixed = {name: value.detach() for name, value in parameters.items() if not value.requires_grad}
        fixed |= dict(self.model.named_buffers())

        def example_loss(trained: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(self.model, {**trained, **fixed}, (x.unsqueeze(0),))
            return self.loss(outputs, y.unsqueeze(0)).squeeze(0)

        gradient = vmap(grad(example_loss), in_dims=(None, 0, 0), randomness="different")
        inputs, targets = self._batch
        for x, y in zip(
            torch.split(inputs, self.chunk_size), torch.split(targets, self.chunk_size), strict=True
        ):
            with unrolled(self.model):
                gradients = gradient(trained, x, y)
            yield gradients


def _norms_of(gradients: dict[str, Tensor]) -> Tensor:
    rows = [_lengths(gradient.flatten(1)) for gradient in gradients.values()]
    norms: Tensor = torch.linalg.vector_norm(torch.stack(rows), dim=0)
    return norms


def _lengths(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(
        rows, dim=1, dtype=torch.promote_types(rows.dtype, torch.float32)
    )
    return lengths
