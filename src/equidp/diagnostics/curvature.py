"""The Hessian of a group's mean loss by products with vectors: its trace, and the ends of its spectrum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor
from torch.func import grad, jvp

from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.gradients import Subject
from equidp.engines.functional import second_derivatives
from equidp.engines.layers.decomposed import without_fused_layers
from equidp.engines.model import arguments, call_with, flat, outputs_in
from equidp.kernel.inputs import Inputs
from equidp.kernel.noise import to_double

Product = Callable[[Tensor], Tensor]
"""Maps a vector [parameters] to a matrix times it, [parameters]."""


def hessian_product(subject: Subject, data: GroupedDataset, members: Tensor, vector: Tensor) -> Tensor:
    """Return H v, [parameters], of the mean loss over these examples by forward over reverse derivatives.

    Takes about the memory of a gradient of `subject.chunk_size` examples, and of a few vectors.
    """
    model = subject.model
    values = {name: value.detach() for name, value in model.named_parameters()}
    trained = {name: values.pop(name) for name, each in model.named_parameters() if each.requires_grad}
    fixed = values | dict(model.named_buffers())
    parts = vector.split([value.numel() for value in trained.values()])
    pairs = zip(trained.items(), parts, strict=True)
    direction = {name: part.reshape(value.shape) for (name, value), part in pairs}

    def total_loss(inputs: Inputs, targets: Tensor, parameters: dict[str, Tensor]) -> Tensor:
        outputs = outputs_in(call_with(model, {**parameters, **fixed}, *arguments(inputs)))
        return subject.loss(outputs, targets).sum()

    total = torch.zeros_like(vector)
    # The other kernels of attention have no forward-mode derivative. Tangents double the memory of a chunk.
    with without_fused_layers(model), second_derivatives():
        for x, y, *_ in subject.chunks(data, members, max(1, subject.chunk_size // 2)):
            moved = jvp(grad(partial(total_loss, x, y)), (trained,), (direction,))[1]
            total += flat(list(moved.values()), list(trained.values()))
    return total / len(members)


def quadratic_form(product: Product, vector: Tensor) -> float:
    """Return v' H v."""
    return float(to_double(vector) @ to_double(product(vector)))


def estimate_trace(
    product: Product, like: Tensor, *, vectors: int, generator: torch.Generator
) -> tuple[float, float]:
    """Return a matrix's trace by products with random signs (Hutchinson 1990), and its standard error.

    Args:
        product: product with the matrix, exact or unbiased. Its spread is in the standard error.
        like: vector, [parameters], of the length, type and device of those to draw.
        vectors: vectors of random signs; with fewer than 30, the standard error itself is uncertain.
        generator: generator of the signs; on the CPU.
    """
    values = []
    for _ in range(vectors):
        signs = torch.randint(0, 2, like.shape, generator=generator).mul_(2).sub_(1).to(like)
        values.append(quadratic_form(product, signs))
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(vectors))


def extreme_eigenvalues(
    product: Product, like: Tensor, *, products: int, generator: torch.Generator
) -> tuple[float, float, float]:
    """Return a symmetric matrix's smallest and largest eigenvalue by Lanczos, and their residual.

    They are within the spectrum, and each has an eigenvalue within the residual. All three are NaN if a
    product is not finite. ARPACK (scipy's `eigsh`) returns no values when stopped at a number of products.

    Args:
        product: product with the matrix; deterministic.
        like: vector, [parameters], of the length, type and device of those to compute.
        products: the most that are computed.
        generator: generator of the first vector; on the CPU.
    """
    vector = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    basis = [vector / vector.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        image = product(basis[-1])
        diagonal.append(float(basis[-1] @ image))
        for _ in range(2):  # in floating point, one pass does not make them orthogonal
            for each in basis:
                image = image - (each @ image) * each
        length = float(image.norm())
        if not math.isfinite(length):  # the model diverged
            return math.nan, math.nan, math.nan
        values, vectors = eigh_tridiagonal(diagonal, beside)
        rounding = torch.finfo(like.dtype).eps * np.abs(values).max()
        if len(diagonal) == min(products, like.numel()) or length <= rounding:
            residual = np.abs(vectors[-1, [0, -1]]).max() * length
            return float(values[0]), float(values[-1]), float(residual)
        beside.append(length)
        basis.append(image / length)
