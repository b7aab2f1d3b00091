"""The functional engine: per-example gradients by torch.func, for any module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from equidp.engines.called import arguments, outputs_in
from equidp.engines.layers.decomposed import without_fused_layers
from equidp.engines.layers.rng_state import RandomState
from equidp.engines.layers.sums import held_to_norms, lengths, weighted_sums, zero_left_out
from equidp.engines.measured import Example, MeasuredBatch, measured_where_it_runs
from equidp.engines.precision import full_precision
from equidp.errors import ModelError, SettingError
from equidp.kernel.engine import LossFunction, Sums
from equidp.kernel.inputs import Inputs, taken

_CHUNK_NUMBERS = 2**26
"""Gradient entries held at a time: a quarter of a gibibyte in float32."""


@final
@dataclass(frozen=True, eq=False)
class _Added:
    """Terms of a penalty: factors of each example, [batch, 2], and the direction by parameter name."""

    factors: Tensor
    direction: dict[str, Tensor]


class FunctionalEngine:
    """Measures batches by `vmap(grad)`, in chunks that bound memory; see `kernel.engine.Engine`.

    A batch of one chunk keeps its gradients for the weighted sum. A longer one computes them again, chunk by
    chunk and with the same random numbers (dropout), and scales down those that come out longer than their
    norm.

    Args:
        model: any module whose outputs for one example do not depend on others; a `UnitModel` for examples of
            several rows.
        loss: (outputs, targets) -> losses [batch].
        chunk_size: examples at a time; None: the number that keeps gradients within a quarter of a gibibyte.

    Attributes:
        public: examples that model and loss accepted in a trial; None: no trial was made.

    Raises:
        SettingError: chunk_size < 1.
    """

    public: Example | None = None

    def __init__(self, model: nn.Module, loss: LossFunction, chunk_size: int | None = None) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise SettingError(f"chunk_size={chunk_size}; expected None or a whole number >= 1.")
        self.model, self.loss = model, loss
        size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self.chunk_size = chunk_size or max(1, _CHUNK_NUMBERS // max(1, size))

    def __call__(self, inputs: Inputs, targets: Tensor) -> MeasuredBatch:
        """See `kernel.engine.Engine`."""
        return measured_where_it_runs(
            self.measured_together, self.model, self.loss, (inputs, targets), public=self.public
        )

    def measured_together(self, inputs: Inputs, targets: Tensor) -> MeasuredBatch:
        """Measures a batch in one pass, or fails."""
        return self._measure_batch(inputs, targets, None)

    def penalised(self, inputs: Inputs, targets: Tensor, factors: Tensor, direction: Tensor) -> MeasuredBatch:
        """See `kernel.engine.PenalisingEngine`; for classifiers, whose outputs are [batch, classes]."""
        trained = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        parts = direction.split([parameter.numel() for parameter in trained.values()])
        along = {
            name: part.reshape(parameter.shape).to(parameter)
            for (name, parameter), part in zip(trained.items(), parts, strict=True)
        }
        return measured_where_it_runs(
            lambda x, y, own: self._measure_batch(x, y, _Added(own, along)),
            self.model,
            self.loss,
            (inputs, targets),
            factors,
            public=self.public,
        )

    def _measure_batch(self, inputs: Inputs, targets: Tensor, added: _Added | None) -> MeasuredBatch:
        if len(targets) <= self.chunk_size:
            ((gradients, terms),) = self._chunks(inputs, targets, added)
            norms = _norms_of(gradients)
            return MeasuredBatch(norms, partial(self._sums, gradients, norms), terms=terms)
        random = RandomState(targets.device)
        chunks = [(_norms_of(gradients), terms) for gradients, terms in self._chunks(inputs, targets, added)]
        norms = torch.cat([each for each, _ in chunks])
        terms = None if added is None else torch.cat([each for _, each in chunks if each is not None])
        again = partial(self._sum_again, inputs, targets, added, random, norms.clone())
        return MeasuredBatch(norms, again, terms=terms)

    def _sum_again(
        self,
        inputs: Inputs,
        targets: Tensor,
        added: _Added | None,
        random: RandomState,
        norms: Tensor,
        weights: Tensor,
    ) -> Sums:
        """Computes the gradients a second time: all chunks together may not fit in memory."""
        parts = zip(weights.split(self.chunk_size), norms.split(self.chunk_size), strict=True)
        sums: Sums = {}
        with random.again():
            chunks = zip(self._chunks(inputs, targets, added), parts, strict=True)
            for (gradients, _), (part, before) in chunks:
                now = _norms_of(gradients)
                held = held_to_norms(part, gradients, before, now)
                for parameter, total in self._sums(gradients, now, held).items():
                    sums[parameter] = sums[parameter].add_(total) if parameter in sums else total
        return sums

    def _sums(self, gradients: dict[str, Tensor], norms: Tensor, weights: Tensor) -> Sums:
        """Return the weighted sum of the finite gradients."""
        broken = ~torch.isfinite(norms)
        if broken.any():
            gradients = {name: zero_left_out(each, broken) for name, each in gradients.items()}
        parameters = dict(self.model.named_parameters())
        with full_precision(weights.device)():
            sums = weighted_sums(weights, gradients)
        return {parameters[name]: total for name, total in sums.items()}

    def _chunks(
        self, inputs: Inputs, targets: Tensor, added: _Added | None
    ) -> Iterator[tuple[dict[str, Tensor], Tensor | None]]:
        """Per-example gradients by parameter name, [chunk, *shape] each, and terms of the losses."""
        parameters = dict(self.model.named_parameters())
        trained = {name: value.detach() for name, value in parameters.items() if value.requires_grad}
        fixed = {name: value.detach() for name, value in parameters.items() if not value.requires_grad}
        fixed |= dict(self.model.named_buffers())

        def plain(trained: dict[str, Tensor], x: Inputs, y: Tensor) -> tuple[Tensor, Any]:
            alone = arguments(taken(x, None))
            outputs = outputs_in(functional_call(self.model, {**trained, **fixed}, *alone))
            loss = self.loss(outputs, y.unsqueeze(0)).squeeze(0)
            return loss, (loss, outputs)

        def penalised_loss(
            direction: dict[str, Tensor], trained: dict[str, Tensor], x: Inputs, y: Tensor, factors: Tensor
        ) -> tuple[Tensor, Any]:
            # Two backward passes: torch differentiates tangents of LayerNorm wrongly.
            own, (loss, outputs) = grad(plain, has_aux=True)(trained, x, y)
            slope = sum((own[name] * direction[name]).sum() for name in own)
            terms = torch.stack([slope, closeness(outputs).squeeze(0).to(slope.dtype)])
            return loss + (factors.to(terms) * terms).sum(), terms

        chosen: Any = plain if added is None else partial(penalised_loss, added.direction)
        examples = (inputs, targets) if added is None else (inputs, targets, added.factors)
        in_dims = (None, *(0 for _ in examples))
        gradient: Any = vmap(grad(chosen, has_aux=True), in_dims=in_dims, randomness="different")
        for start in range(0, len(targets), self.chunk_size):
            part = taken(examples, slice(start, start + self.chunk_size))
            try:
                with (
                    without_fused_layers(self.model),
                    nullcontext() if added is None else second_derivatives(),
                ):
                    gradients, aside = gradient(trained, *part)
            except RuntimeError as error:
                if "data-dependent control flow" not in str(error):
                    raise
                raise ModelError(
                    "the model decides by values of its inputs how it computes, as `transformers` does with "
                    "attention masks, and torch.func cannot follow that."
                ) from error
            yield gradients, None if added is None else aside


def second_derivatives() -> AbstractContextManager[None]:
    """Returns a context in which attention is computed in a form that can be differentiated twice."""
    return sdpa_kernel(SDPBackend.MATH)


def closeness(outputs: Tensor) -> Tensor:
    """Returns how close examples are to the decision boundary, 1 - sum_c p_c^2, [batch], of [batch, classes].

    It stands for the trace of the loss's Hessian (Tran, Dinh, Fioretto, NeurIPS 2021).

    >>> closeness(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    tensor([0.5000, 0.0904])
    """
    return 1 - outputs.softmax(dim=1).square().sum(dim=1)


def _norms_of(gradients: dict[str, Tensor]) -> Tensor:
    rows = []
    for gradient in gradients.values():
        gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        rows.append(lengths(gradient.reshape(len(gradient), -1)))
    norms: Tensor = torch.linalg.vector_norm(torch.stack(rows), dim=0)
    return norms
