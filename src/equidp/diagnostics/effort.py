"""Effort of a diagnosis, and its cost."""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from equidp._validate import check_number, check_whole
from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.curvature import GroupHessian
from equidp.diagnostics.gradients import Subject


@dataclass(frozen=True)
class Effort:
    """Amount that a diagnosis measures. More of everything lowers standard errors and takes longer.

    Attributes:
        batches: Poisson samples that expectations are estimated from, >= 2.
        gradient_examples: examples of each group for its gradient and norms; None: all, which is exact.
        curvature_examples: examples of a group in a product with its Hessian, drawn again for each batch and
            each trace vector, so that standard errors count the drawing (eigenvalues are those of one draw);
            None: all.
        trace_vectors: the most Rademacher vectors for a trace.
        trace_error: relative standard error at which a trace is accepted.
        eigenvalue_products: the most products for the extreme eigenvalues.
        eigenvalue_error: relative residual at which they are accepted.

    Raises:
        SettingError: a number outside its range.

    Example:
        >>> import equidp
        >>> equidp.Effort(batches=4, gradient_examples=2000).trace_vectors
        100
    """

    batches: int = 8
    gradient_examples: int | None = None
    curvature_examples: int | None = 64
    trace_vectors: int = 100
    trace_error: float = 0.1
    eigenvalue_products: int = 20
    eigenvalue_error: float = 0.01

    def __post_init__(self) -> None:
        for name, least in (("batches", 2), ("trace_vectors", 2), ("eigenvalue_products", 1)):
            check_whole(least, **{name: getattr(self, name)})
        for name in ("gradient_examples", "curvature_examples"):
            if getattr(self, name) is not None:
                check_whole(1, **{name: getattr(self, name)})
        for name in ("trace_error", "eigenvalue_error"):
            check_number("[0, 1)", ", a relative error", **{name: getattr(self, name)})


@dataclass(frozen=True)
class Cost:
    """The most that one diagnosed step takes.

    Attributes:
        gradients: per-example gradients.
        products: examples in products with a Hessian.
        seconds: extrapolated from one chunk of each.
    """

    gradients: int
    products: int
    seconds: float


def cost_of(
    subject: Subject, data: GroupedDataset, groups: Sequence[int], batch_size: float, effort: Effort
) -> Cost:
    """Return the most that `diagnose` would take; time one chunk.

    Args:
        subject, data: as for a diagnosis.
        groups: indices of those diagnosed.
        batch_size: b, expected.
        effort: how much.
    """
    sizes = data.group_sizes().tolist()
    gradients = sum(min(size, effort.gradient_examples or size) for size in sizes)
    gradients += math.ceil(2 * effort.batches * batch_size)
    per_product = [min(sizes[group], effort.curvature_examples or sizes[group]) for group in groups]
    products = sum(per_product) * (2 * effort.batches + effort.trace_vectors + effort.eigenvalue_products)
    count = min(subject.chunk_size, len(data), max(per_product))
    few = torch.arange(count, device=data.groups.device)
    hessian = GroupHessian(subject, data, few)
    vector = torch.ones_like(subject.zeros())
    seconds = gradients * _seconds(
        lambda: [measured.norms for measured, _ in subject.measure_chunks(data, few)]
    )
    seconds += products * _seconds(lambda: hessian.product(vector))
    return Cost(gradients, products, seconds / count)


def _seconds(work: Callable[[], object]) -> float:
    return timeit.repeat(work, number=1, repeat=2)[1]  # the first time includes setup
