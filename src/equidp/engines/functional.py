"""The functional engine: per-example gradients by torch.func, for any module."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from equidp.engines.called import arguments, outputs_in
from equidp.engines.layers.decomposed import unrolled
from equidp.engines.layers.rng_state import RandomState
from equidp.engines.layers.sums import accumulate, held_to_norms, weighted_sums
from equidp.engines.measured import MeasuredBatch
from equidp.errors import ModelError, SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, taken

_CHUNK_NUMBERS = 2**26
"""Gradient entries held at a time: a quarter of a gibibyte in float32."""


class FunctionalEngine:
    """Measures batches by `vmap(grad)`, in chunks that bound memory; see `kernel.engine.Engine`.

    A batch of one chunk keeps its gradients for the weighted sum. A longer one computes them again, chunk by
    chunk and with the same random numbers (dropout), and scales down those that come out longer than their
    norm.

    Args:
        model: any module whose outputs for one example do not depend on others; a `UnitModel` for examples of
            several rows.
        loss: (outputs, targets) -> losses [batch].
        chunk_size: examples at a time; None: as many as keep the gradients within a quarter of a gibibyte.

    Raises:
        SettingError: chunk_size < 1.
    """

    def __init__(self, model: nn.Module, loss: LossFunction, chunk_size: int | None = None) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise SettingError(f"chunk_size={chunk_size}; expected None or a whole number >= 1.")
        self.model, self.loss = model, loss
        size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self.chunk_size = chunk_size or max(1, _CHUNK_NUMBERS // max(1, size))

    def __call__(self, inputs: Inputs, targets: Tensor) -> MeasuredBatch:
        """See `kernel.engine.Engine`."""
        random = RandomState(targets.device)
        if len(targets) <= self.chunk_size:
            (gradients,) = self._chunks(inputs, targets)
            return MeasuredBatch(_norms_of(gradients), partial(self._add, gradients))
        norms = torch.cat([_norms_of(gradients) for gradients in self._chunks(inputs, targets)])
        return MeasuredBatch(norms, partial(self._add_again, inputs, targets, random, norms.clone()))

    def _add_again(
        self, inputs: Inputs, targets: Tensor, random: RandomState, norms: Tensor, weights: Tensor
    ) -> None:
        """Computes the gradients a second time: all chunks together may not fit in memory."""
        parts = zip(weights.split(self.chunk_size), norms.split(self.chunk_size), strict=True)
        with random.again():
            for gradients, (part, before) in zip(self._chunks(inputs, targets), parts, strict=True):
                self._add(gradients, held_to_norms(part, gradients, before, _norms_of(gradients)))

    def _add(self, gradients: dict[str, Tensor], weights: Tensor) -> None:
        with torch.autocast(weights.device.type, enabled=False):
            accumulate(dict(self.model.named_parameters()), weighted_sums(weights, gradients))

    def _chunks(self, inputs: Inputs, targets: Tensor) -> Iterator[dict[str, Tensor]]:
        """Per-example gradients by parameter name, [chunk, *shape] each."""
        parameters = dict(self.model.named_parameters())
        trained = {name: value.detach() for name, value in parameters.items() if value.requires_grad}
        fixed = {name: value.detach() for name, value in parameters.items() if not value.requires_grad}
        fixed |= dict(self.model.named_buffers())

        def example_loss(trained: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
            alone = arguments(taken(x, None))
            outputs = outputs_in(functional_call(self.model, {**trained, **fixed}, *alone))
            return self.loss(outputs, y.unsqueeze(0)).squeeze(0)

        gradient = vmap(grad(example_loss), in_dims=(None, 0, 0), randomness="different")
        for start in range(0, len(targets), self.chunk_size):
            part = taken((inputs, targets), slice(start, start + self.chunk_size))
            try:
                with unrolled(self.model):
                    gradients = gradient(trained, *part)
            except RuntimeError as error:
                if "data-dependent control flow" not in str(error):
                    raise
                raise ModelError(
                    "the model decides by values of its inputs how it computes, as `transformers` does with "
                    "attention masks, and torch.func cannot follow that. Use engine='ghost'."
                ) from error
            yield gradients


def _norms_of(gradients: dict[str, Tensor]) -> Tensor:
    rows = []
    for gradient in gradients.values():
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        rows.append(torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1, dtype=dtype))
    norms: Tensor = torch.linalg.vector_norm(torch.stack(rows), dim=0)
    return norms
