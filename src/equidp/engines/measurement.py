"""Norms and weighted sums of gradients, of a batch or of a whole dataset."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from equidp.engines.model import call_model
from equidp.kernel.engine import Context, Engine, LossFunction, Sums, measure
from equidp.kernel.generators import GeneratorStates
from equidp.kernel.inputs import Inputs, in_parts, map_tensors, moved_to, taken
from equidp.kernel.noise import to_double

Example = tuple[Inputs, Tensor]
"""Inputs and targets, [batch, ...]."""


@final
class MeasuredBatch:
    """Norms of a batch and, once, a weighted sum of its gradients; see `kernel.engine.Measured`.

    Args:
        norms: [batch].
        sum_under: function of weights [batch] that returns the weighted sum. It holds all tensors that this
            takes, and is dropped after its only use.
        drew_otherwise: mask of examples that got other random numbers (dropout) when a module was run again,
            [batch]; None: no example did.
        terms: terms that a policy adds to the losses, [batch, terms]; None: no context.
    """

    def __init__(
        self,
        norms: Tensor,
        sum_under: Callable[[Tensor], Sums],
        drew_otherwise: Tensor | None = None,
        terms: Tensor | None = None,
    ) -> None:
        self.norms, self.drew_otherwise, self.terms = norms, drew_otherwise, terms
        self._sum_under: Callable[[Tensor], Sums] | None = sum_under

    def sum_gradients(self, weights: Tensor) -> Sums:
        """See `kernel.engine.Measured`.

        Raises:
            RuntimeError: at the second use, of this or of `weighted_sum`.
        """
        if self._sum_under is None:
            raise RuntimeError(
                "the weighted sum of this batch was taken before, which freed its gradients; measure the "
                "batch again: engine(inputs, targets)."
            )
        sum_under, self._sum_under = self._sum_under, None
        return sum_under(weights)

    def weighted_sum(self, weights: Tensor) -> None:
        """Adds sum_i weights[i] * gradient_i to p.grad (created where missing), for a loop without noise."""
        for parameter, total in self.sum_gradients(weights).items():
            total = total.to(parameter)
            parameter.grad = total if parameter.grad is None else parameter.grad + total


def measured_where_it_runs(
    measure: Callable[..., MeasuredBatch],
    model: nn.Module,
    loss: LossFunction,
    examples: Example,
    *context: Tensor,
    public: Example | None = None,
) -> MeasuredBatch:
    """Measures a batch, also if the model or the loss fails on some of its examples.

    Whether training goes on must not follow from private examples. Those on which model or loss fail alone
    have infinite norms, and the others are measured as if they had not been there: nothing was measured
    before, and random numbers are fresh ones. Where a batch still fails whose examples run alone, as where
    a layer reads some of them, each has a backward pass of its own, which is exact and slow.

    Errors that no private example decides are raised: lack of memory, and a failure on a public example.

    Args:
        measure: (inputs, targets, *context) -> the measured batch.
        model, loss: model and loss that it runs.
        examples: inputs and targets, [batch, ...].
        context: of the examples, [batch, ...].
        public: examples of which the model took the first when it was tried; None: not known, so that a batch
            that fails ends in its error unless some of its examples run alone and others do not.
    """
    try:
        return measure(*examples, *context)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        with torch.no_grad():
            places = range(len(examples[1]))
            running = torch.tensor([_runs(model, loss, taken(examples, [place])) for place in places])
            known = running.any() if public is None else _runs(model, loss, taken(public, [0]))
        if not known or (running.all() and public is None):
            raise
    kept = running.nonzero()[:, 0].to(examples[1].device)
    norms = torch.full((len(running),), math.inf, device=kept.device)
    if not len(kept):
        return MeasuredBatch(norms, lambda weights: {})
    measured = _measured_anyhow(measure, model, loss, taken((*examples, *context), kept))
    norms = norms.to(measured.norms.dtype).index_copy(0, kept, measured.norms)
    terms = measured.terms
    if terms is not None:
        terms = terms.new_zeros(len(running), terms.shape[1]).index_copy(0, kept, terms)
    return MeasuredBatch(norms, lambda weights: measured.sum_gradients(weights[kept]), None, terms)


def dataset_norms(
    engine: Engine,
    inputs: Inputs,
    targets: Tensor,
    chunk_size: int = 256,
    device: torch.device | None = None,
    context: Context = (),
) -> Tensor:
    """Returns the gradient norm of each example at the model's present parameters, [n].

    They are private: never release them. Costs less than training on as many examples: no sum is taken.

    Args:
        engine: of the model.
        inputs, targets: [n, ...], n >= 1.
        chunk_size: examples at a time; bounds memory.
        device: device of the model, to which each chunk is moved; None: the examples are already there.
        context: of a policy that changes losses, [n, ...] each.

    >>> from equidp.engines import make_engine
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> weight = torch.nn.init.zeros_(model.weight)  # each class has probability 1/2
    >>> engine = make_engine("ghost", model, torch.nn.CrossEntropyLoss(reduction="none"))
    >>> dataset_norms(engine, torch.ones(5, 2), torch.zeros(5, dtype=torch.int64))
    tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
    """
    parts = iter(in_parts((inputs, targets, context), chunk_size))
    if device is not None:
        parts = (moved_to(part, device) for part in parts)
    return torch.cat([measure(engine, *part).norms.detach() for part in parts])


def _runs(model: nn.Module, loss: LossFunction, example: Example) -> bool:
    try:
        loss(call_model(model, example[0]), example[1])
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return False
    return True


def _measured_anyhow(
    measure: Callable[..., MeasuredBatch], model: nn.Module, loss: LossFunction, batch: tuple[Any, ...]
) -> MeasuredBatch:
    """Measures examples that run alone, together if that is possible, or by one backward pass each."""
    try:
        return measure(*batch)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        if len(batch) > 2:  # with a context: the functional engine takes each example alone anyway
            raise
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    states, norms = [], []

    def gradients(place: int) -> list[Tensor]:
        x, y = taken(batch, [place])
        with torch.enable_grad():
            losses = loss(call_model(model, map_tensors(Tensor.detach, x)), y).sum()
        found = torch.autograd.grad(losses, trained, allow_unused=True, materialize_grads=True)
        return [to_double(each) for each in found]

    for place in range(len(batch[1])):
        states.append(GeneratorStates(batch[1].device))
        norms.append(torch.linalg.vector_norm(torch.cat([each.flatten() for each in gradients(place)])))

    def sum_under(weights: Tensor) -> Sums:
        totals = [torch.zeros_like(to_double(each)) for each in trained]
        for place, (state, weight, norm) in enumerate(zip(states, weights.tolist(), norms, strict=True)):
            if not weight:
                continue
            with state.again():
                found = gradients(place)
            now = torch.linalg.vector_norm(torch.cat([each.flatten() for each in found]))
            share = float((norm / now).clamp(max=1.0).nan_to_num(nan=0.0)) if now > 0 else 0.0
            for total, each in zip(totals, found, strict=True):
                total += weight * share * each
        return dict(zip(trained, totals, strict=True))

    return MeasuredBatch(
        torch.stack(norms).to(torch.promote_types(trained[0].dtype, torch.float32)), sum_under
    )
