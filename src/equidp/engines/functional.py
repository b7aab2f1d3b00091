"""The functional engine: per-example gradients by torch.func, for any module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from equidp.engines.generator_states import GeneratorStates
from equidp.engines.layers.decomposed import quiet_vmap, without_fused_layers
from equidp.engines.layers.sums import as_rows, held_to_norms, lengths, weighted_sums, zero_left_out
from equidp.engines.model import are_finite, arguments, call_with, full_precision, outputs_in
from equidp.errors import ModelError, SettingError
from equidp.kernel.engine import Context, LossFunction, LossOfExample, Measured, Sums
from equidp.kernel.inputs import Inputs, count_in, taken, tensors
from equidp.losses import as_plain

_CHUNK_NUMBERS = 2**26
"""Number of gradient entries in memory at a time: a quarter of a gibibyte in float32."""


Objective = Callable[[LossOfExample, dict[str, Tensor], Context], tuple[Tensor, Tensor]]
"""`Policy.objective` of a policy that changes losses."""


class FunctionalEngine:
    """Measures batches by `vmap(grad)`, in chunks that bound memory; see `kernel.engine.Engine`.

    A batch of one chunk keeps its gradients for the weighted sum. A longer batch computes them again, chunk
    by chunk and with the same random numbers (dropout). It scales down gradients that come out longer than
    their norm.

    Args:
        model: any module whose outputs for one example do not depend on others; a `UnitModel` for examples of
            several rows.
        loss: (outputs, targets) -> losses [batch].
        chunk_size: examples at a time. None: the number that keeps gradients within a quarter of a gibibyte.
        objective: function to differentiate instead of the loss if examples have a context.

    Raises:
        SettingError: chunk_size < 1.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        chunk_size: int | None = None,
        objective: Objective | None = None,
    ) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise SettingError(f"chunk_size={chunk_size}; expected None or a whole number >= 1.")
        self.model, self.loss, self.objective = model, loss, objective
        size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self.chunk_size = chunk_size or max(1, _CHUNK_NUMBERS // max(1, size))

    def __call__(self, inputs: Inputs, targets: Inputs, *context: Tensor) -> Measured:
        """See `kernel.engine.Engine`."""
        batch = inputs, targets, context
        if count_in(targets) <= self.chunk_size:
            ((gradients, terms),) = self._chunks(*batch)
            norms = _norms_of(gradients)
            return Measured(norms, terms, partial(self._sums, gradients, norms))
        random = GeneratorStates(tensors(targets)[0].device)
        chunks = [(_norms_of(gradients), terms) for gradients, terms in self._chunks(*batch)]
        norms = torch.cat([each for each, _ in chunks])
        terms = torch.cat([each for _, each in chunks if each is not None]) if context else None
        return Measured(norms, terms, partial(self._sum_again, batch, random, norms))

    def _sum_again(
        self, batch: tuple[Inputs, Inputs, Context], random: GeneratorStates, norms: Tensor, weights: Tensor
    ) -> Sums:
        """Compute the gradients a second time: all chunks together may not fit in memory."""
        parts = zip(weights.split(self.chunk_size), norms.split(self.chunk_size), strict=True)
        sums: Sums = {}
        with random.again():
            for (gradients, _), (part, before) in zip(self._chunks(*batch), parts, strict=True):
                now = _norms_of(gradients)
                held = held_to_norms(part, before, now)
                for parameter, total in self._sums(gradients, now, held).items():
                    sums[parameter] = sums[parameter].add_(total) if parameter in sums else total
        return sums

    def _sums(self, gradients: dict[str, Tensor], norms: Tensor, weights: Tensor) -> Sums:
        """Return the weighted sum of the finite gradients."""
        if not are_finite(norms):
            broken = ~torch.isfinite(norms)
            gradients = {name: zero_left_out(each, broken) for name, each in gradients.items()}
        parameters = dict(self.model.named_parameters())
        with full_precision(weights.device):
            sums = weighted_sums(weights, gradients)
        return {parameters[name]: total for name, total in sums.items()}

    def _chunks(
        self, inputs: Inputs, targets: Inputs, context: Context
    ) -> Iterator[tuple[dict[str, Tensor], Tensor | None]]:
        """Per-example gradients by parameter name, [chunk, *shape] each, and terms of the losses."""
        parameters = dict(self.model.named_parameters())
        trained = {name: value.detach() for name, value in parameters.items() if value.requires_grad}
        fixed = {name: value.detach() for name, value in parameters.items() if not value.requires_grad}
        fixed |= dict(self.model.named_buffers())

        def loss_of(trained: dict[str, Tensor], x: Inputs, y: Inputs) -> tuple[Tensor, Any]:
            alone = arguments(taken(x, None))
            outputs = outputs_in(call_with(self.model, {**trained, **fixed}, *alone))
            return self.loss(outputs, taken(y, None)).reshape(()), as_plain(outputs)

        def objective(
            trained: dict[str, Tensor], x: Inputs, y: Inputs, context: Context
        ) -> tuple[Tensor, Tensor]:
            assert self.objective is not None
            return self.objective(lambda parameters: loss_of(parameters, x, y), trained, context)

        examples = (inputs, targets, context) if context else (inputs, targets)
        in_dims = (None, *(0 for _ in examples))
        gradient: Any = vmap(
            grad_and_value(objective if context else loss_of, has_aux=True),
            in_dims=in_dims,
            randomness="different",
        )
        for start in range(0, count_in(targets), self.chunk_size):
            part = taken(examples, slice(start, start + self.chunk_size))
            try:
                again = second_derivatives() if context else nullcontext()
                with without_fused_layers(self.model), quiet_vmap(), again:
                    gradients, (_, aside) = gradient(trained, *part)
            except RuntimeError as error:
                if "data-dependent control flow" not in str(error):
                    raise
                raise ModelError(
                    "the model decides by values of its inputs how it computes, as `transformers` does with "
                    "attention masks, and torch.func cannot follow that.",
                    field="model",
                ) from error
            yield gradients, aside if context else None


def second_derivatives() -> AbstractContextManager[None]:
    """Return a context in which attention is computed in a form that can be differentiated twice."""
    return sdpa_kernel(SDPBackend.MATH)


def _norms_of(gradients: dict[str, Tensor]) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(
        torch.stack([lengths(as_rows(each)) for each in gradients.values()]), dim=0
    )
    return norms
