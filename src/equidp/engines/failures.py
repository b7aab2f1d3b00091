"""Measurement of a batch although the model or the loss fails on some of its examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from equidp.engines.layers.decomposed import without_fused_layers
from equidp.engines.measurement import Examples, MeasuredBatch
from equidp.engines.model import call_model
from equidp.kernel.engine import LossFunction, Sums
from equidp.kernel.generators import GeneratorStates
from equidp.kernel.inputs import count_in, map_tensors, taken, tensors
from equidp.kernel.noise import to_double

T = TypeVar("T")


def measure_despite_failures(
    measure_batch: Callable[..., MeasuredBatch],
    model: nn.Module,
    loss: LossFunction,
    examples: Examples,
    *context: Tensor,
    public: Examples | None = None,
) -> MeasuredBatch:
    """Measure a batch; an example on which the model or the loss fails alone does not end training.

    | batch that fails | result |
    | --- | --- |
    | the forward or backward pass of an example fails alone | its norm is infinite, and it adds nothing; the
      others are measured without it, with fresh random numbers |
    | the others still fail together, as where a layer reads some of them | each is measured alone: exact and
      slow |
    | no example can be measured | all norms are infinite, and `terms` is None |
    | the model fails on the first public example too | the error is raised |
    | `public` is None, and all examples fail alone, or none does | the error is raised: nothing shows whether
      the model can be measured at all |
    | lack of memory | the error is raised |

    Two of the errors may follow from private examples: a large example can exhaust memory, and without
    `public` a failing example ends training where it is alone in its batch. That the model fails on a public
    example follows from released parameters, though the batch decides in which step it shows.

    Args:
        measure_batch: (inputs, targets, *context) -> the measured batch.
        model, loss: model and loss that it runs.
        examples: inputs and targets, [batch, ...].
        context: of the examples, [batch, ...] each.
        public: examples that the model accepted in a trial, of which the first is used; None: no trial was
            made.
    """
    batch = (*examples, *context)
    try:
        return measure_batch(*batch)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        count = count_in(examples[1])
        works = [_has_gradients(model, loss, taken(examples, [place])) for place in range(count)]
        if public is None:
            model_can_be_measured = any(works) and not all(works)
        else:
            model_can_be_measured = _has_gradients(model, loss, taken(public, [0]))
        if not model_can_be_measured:
            raise
    places = torch.tensor(works).nonzero()[:, 0].to(tensors(examples[1])[0].device)
    norms = torch.full((count,), math.inf, device=places.device)
    if not len(places):
        return MeasuredBatch(norms, lambda weights: {})
    others = taken(batch, places)
    measured = _result_of(partial(measure_batch, *others))
    if measured is None:
        measured = _measure_one_by_one(measure_batch, model, loss, others)

    def with_zeros_of_failed(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        return values.new_zeros(count, *values.shape[1:]).index_copy(0, places, values)

    return MeasuredBatch(
        norms.to(measured.norms.dtype).index_copy(0, places, measured.norms),
        lambda weights: measured.sum_gradients(weights[places]),
        with_zeros_of_failed(measured.redraw_mask),
        with_zeros_of_failed(measured.terms),
    )


def _result_of(action: Callable[[], T]) -> T | None:
    """Result of an action; None if it fails by anything but lack of memory."""
    try:
        return action()
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return None


def _has_gradients(model: nn.Module, loss: LossFunction, example: Examples) -> bool:
    """Return True if the forward and the backward pass of one example [1, ...] succeed."""
    return _result_of(partial(_gradients, model, loss, example)) is not None


def _gradients(model: nn.Module, loss: LossFunction, example: Examples) -> list[Tensor]:
    """Gradients of one example [1, ...] by the trained parameters, in their order."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with without_fused_layers(model), torch.enable_grad():  # on a GPU, fused ones in evaluation mode fail
        losses = loss(call_model(model, map_tensors(Tensor.detach, example[0])), example[1])
        return list(torch.autograd.grad(losses.sum(), trained, allow_unused=True, materialize_grads=True))


class _MeasuredExample(NamedTuple):
    """Norm of one example, its gradients in float64, and terms of its loss, [1, terms]."""

    norm: float
    gradients: list[Tensor]
    terms: Tensor | None


def _measure_one_by_one(
    measure_batch: Callable[..., MeasuredBatch], model: nn.Module, loss: LossFunction, batch: tuple[Any, ...]
) -> MeasuredBatch:
    """Measure each example by a pass of its own, for norms and again for the sum: one gradient is held."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def measure_alone(place: int) -> _MeasuredExample:
        example = taken(batch, [place])
        if len(example) > 2:  # with a context, which the engine alone knows the objective of
            measured = measure_batch(*example)
            sums = measured.sum_gradients(torch.ones_like(measured.norms))
            gradients = [sums[each] if each in sums else torch.zeros_like(each) for each in trained]
            return _MeasuredExample(float(measured.norms), gradients, measured.terms)
        gradients = [to_double(each) for each in _gradients(model, loss, example)]
        return _MeasuredExample(
            float(torch.linalg.vector_norm(torch.cat([each.flatten() for each in gradients]))),
            gradients,
            None,
        )

    states, norms, terms = [], [], []
    device = tensors(batch[1])[0].device
    for place in range(count_in(batch[1])):
        states.append(GeneratorStates(device))
        alone = _result_of(partial(measure_alone, place))
        norms.append(math.inf if alone is None else alone.norm)
        terms.append(None if alone is None else alone.terms)
        del alone  # frees its gradients

    def sum_gradients(weights: Tensor) -> Sums:
        totals = [torch.zeros_like(to_double(each)) for each in trained]
        for place, (state, weight, norm) in enumerate(zip(states, weights.tolist(), norms, strict=True)):
            if weight == 0 or not math.isfinite(norm):
                continue
            with state.again():
                again = _result_of(partial(measure_alone, place))
            if again is None or not 0 < again.norm < math.inf:
                continue
            # A model may run differently the second time: no gradient counts as longer than it was measured.
            share = min(1.0, norm / again.norm)
            for total, each in zip(totals, again.gradients, strict=True):
                total += weight * share * each
        return dict(zip(trained, totals, strict=True))

    dtype = torch.promote_types(trained[0].dtype, torch.float32)
    return MeasuredBatch(
        torch.tensor(norms, dtype=torch.float64).to(device, dtype),
        sum_gradients,
        terms=_join_rows(terms),
    )


def _join_rows(rows: Sequence[Tensor | None]) -> Tensor | None:
    """Rows [1, ...] of examples as one tensor, zeros where an example has none; None where none has."""
    some = next((each for each in rows if each is not None), None)
    if some is None:
        return None
    return torch.cat([torch.zeros_like(some) if each is None else each.detach() for each in rows])
