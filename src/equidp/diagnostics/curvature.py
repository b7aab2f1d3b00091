"""Quadratic forms, traces and extreme eigenvalues of Hessians, and losses that have none everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad, jvp

from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.gradients import Subject
from equidp.engines.functional import second_derivatives
from equidp.engines.layers.decomposed import without_fused_layers
from equidp.engines.model import arguments, call_model, call_with, flat, outputs_in
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs
from equidp.kernel.noise import to_double

Product = Callable[[Tensor], Tensor]
"""Maps a vector [parameters] to the Hessian times it, [parameters]."""

_FEWEST_VECTORS = 30
"""With fewer, the standard error itself is too uncertain for three of them to cover 99% of cases."""


class GroupHessian:
    """The Hessian of the mean loss over some examples, by products (forward over reverse differentiation).

    A product takes about the memory of a gradient of `subject.chunk_size` examples, and of a few vectors.

    Args:
        subject: with the model and the loss.
        data, members: the examples, by their indices, [n].
        sample_size: examples in a product, drawn again for each, so that products are unbiased and their
            spread shows the error of drawing; None: all.
        generator: of the draws; on the CPU.
    """

    def __init__(
        self,
        subject: Subject,
        data: GroupedDataset,
        members: Tensor,
        *,
        sample_size: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self._subject, self._data, self._members = subject, data, members
        self._sample_size, self._generator = sample_size, generator

    def fix_draw(self) -> GroupHessian:
        """Return the Hessian of one draw of examples, the same in every product."""
        return GroupHessian(self._subject, self._data, self._draw())

    def _draw(self) -> Tensor:
        if self._sample_size is None or self._sample_size >= len(self._members):
            return self._members
        order = torch.randperm(len(self._members), generator=self._generator)[: self._sample_size]
        return self._members[order.to(self._members.device)]

    def product(self, vector: Tensor) -> Tensor:
        """Return H v, [parameters]."""
        members = self._draw()
        trained, fixed, direction = self._arguments(vector)
        total = torch.zeros_like(vector)
        # Tangents double the memory of a chunk.
        halves = replace(self._subject, chunk_size=max(1, self._subject.chunk_size // 2))
        # The other kernels of attention have no forward-mode derivative.
        with without_fused_layers(self._subject.model), second_derivatives():
            for x, y, *_ in halves.chunks(self._data, members):
                moved = jvp(grad(partial(self._loss, fixed, x, y)), (trained,), (direction,))[1]
                total += flat(list(moved.values()), list(trained.values()))
        return total / len(members)

    def _loss(
        self, fixed: dict[str, Tensor], inputs: Inputs, targets: Tensor, trained: dict[str, Tensor]
    ) -> Tensor:
        outputs = outputs_in(call_with(self._subject.model, {**trained, **fixed}, *arguments(inputs)))
        return self._subject.loss(outputs, targets).sum()

    def quadratic(self, *vectors: Tensor) -> list[float]:
        """Return v' H v of each vector, all over the same examples."""
        fixed = self.fix_draw()
        return [float(to_double(vector) @ to_double(fixed.product(vector))) for vector in vectors]

    def _arguments(self, vector: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Return trained parameters, all else, and the vector in the shapes of the former, by name."""
        model = self._subject.model
        values = {name: value.detach() for name, value in model.named_parameters()}
        trained = {name: values.pop(name) for name, each in model.named_parameters() if each.requires_grad}
        parts = vector.split([value.numel() for value in trained.values()])
        pairs = zip(trained.items(), parts, strict=True)
        direction = {name: part.reshape(value.shape) for (name, value), part in pairs}
        return trained, values | dict(model.named_buffers()), direction


@dataclass(frozen=True)
class TraceEstimate:
    """A trace with its standard error.

    Attributes:
        value: mean of v' H v over Rademacher vectors v.
        standard_error: of that mean.
        vectors: how many were drawn.
    """

    value: float
    standard_error: float
    vectors: int


def hutchinson_trace(
    product: Product,
    like: Tensor,
    *,
    generator: torch.Generator,
    relative_error: float = 0.0,
    max_vectors: int = 100,
) -> TraceEstimate:
    """Estimate the trace of a matrix from its products with random signs (Hutchinson 1990).

    Args:
        product: of the matrix, exact or unbiased; its spread is in the standard error.
        like: a vector, [parameters], of the length, type and device of those to draw.
        generator: of the signs; on the CPU.
        relative_error: stops when standard error / |estimate| is at most this; draws at least 30 vectors.
        max_vectors: the most vectors.
    """
    values: list[float] = []
    mean, error = 0.0, math.inf
    while len(values) < max_vectors:
        signs = torch.randint(0, 2, like.shape, generator=generator).mul_(2).sub_(1).to(like)
        values.append(float(to_double(signs) @ to_double(product(signs))))
        if len(values) >= min(_FEWEST_VECTORS, max_vectors):
            mean = math.fsum(values) / len(values)
            error = float(torch.tensor(values, dtype=torch.float64).std() / math.sqrt(len(values)))
            if error <= relative_error * abs(mean):
                break
    return TraceEstimate(mean, error, len(values))


@dataclass(frozen=True)
class ExtremeEigenvalues:
    """The two ends of a spectrum.

    Attributes:
        smallest, largest: Ritz values: within the spectrum, and at its ends when converged.
        residual: the larger of the two residual norms: each value has an eigenvalue within this distance.
        products: how many were computed.

    Values and residual are NaN where a product is not finite.
    """

    smallest: float
    largest: float
    residual: float
    products: int


def extreme_eigenvalues(
    product: Product,
    like: Tensor,
    *,
    generator: torch.Generator,
    relative_error: float = 1e-3,
    max_products: int = 20,
) -> ExtremeEigenvalues:
    """Estimate the extreme eigenvalues of a symmetric matrix by Lanczos, with full reorthogonalisation.

    From the same products, power iteration uses the last alone and Lanczos the best combination of all, so it
    is never behind. ARPACK returns no values when stopped at a number of products, which a budget needs.

    Args:
        product: of the matrix; deterministic.
        like: a vector, [parameters], of the length, type and device of those to compute.
        generator: of the first vector; on the CPU.
        relative_error: stops when both residuals are at most this, relative to the larger absolute
            eigenvalue.
        max_products: the most products.
    """
    vector = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    basis = [vector / vector.norm()]
    alphas: list[float] = []
    betas: list[float] = []
    while True:
        image = product(basis[-1])
        alphas.append(float(basis[-1] @ image))
        for _ in range(2):  # in floating point, one pass does not make them orthogonal
            for each in basis:
                image = image - (each @ image) * each
        beta = float(image.norm())
        if not math.isfinite(beta):  # the model diverged
            return ExtremeEigenvalues(math.nan, math.nan, math.nan, len(alphas))
        values, vectors = _tridiagonal(alphas, betas)
        residuals = vectors[-1, [0, -1]].abs() * beta
        size = float(values.abs().max())
        done = float(residuals.max()) <= relative_error * size or beta <= torch.finfo(like.dtype).eps * size
        if done or len(alphas) >= min(max_products, like.numel()):
            return ExtremeEigenvalues(
                float(values[0]), float(values[-1]), float(residuals.max()), len(alphas)
            )
        betas.append(beta)
        basis.append(image / beta)


def _tridiagonal(alphas: list[float], betas: list[float]) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, ascending, and eigenvectors of the matrix with this diagonal and off-diagonal."""
    matrix = torch.diag(torch.tensor(alphas, dtype=torch.float64))
    if betas:
        beside = torch.tensor(betas, dtype=torch.float64)
        matrix = matrix + torch.diag(beside, 1) + torch.diag(beside, -1)
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


_KINKS = (
    "Relu", "LeakyRelu", "PreluKernel", "Rrelu", "Hardtanh", "Threshold", "MaxPool", "AdaptiveMaxPool",
    "FractionalMaxPool", "Hardswish", "Hardsigmoid", "Hardshrink", "Softshrink", "Abs", "Clamp", "Maximum",
    "Minimum", "Amax", "Amin", "Max", "Min",
)  # fmt: skip


def kinks(model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Tensor) -> list[str]:
    """Return the names of operations between parameters and loss that have no second derivative somewhere.

    Reads the graph that autograd records, so it sees functions as well as modules. Second-order values of
    such a model hold almost everywhere, and miss the curvature in the kinks.

    Args:
        model, loss: as in training.
        inputs, targets: a few examples, [batch, ...].
    """
    with torch.enable_grad():
        start = loss(call_model(model, inputs), targets).sum().grad_fn
    found, seen, waiting = set(), set(), [start]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = re.sub(r"(1D|2D|3D)?(With|Backward).*$", "", node.name(), flags=re.IGNORECASE)
        if name in _KINKS:
            found.add(name)
        waiting += [following for following, _ in node.next_functions]
    return sorted(found)
