"""Cosines between a batch's gradients, before and after clipping, and a group's."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equidp.diagnostics.gradients import BatchGradients


@dataclass(frozen=True)
class Alignment:
    """Cosines of one batch's gradients with one group's gradient; NaN where a vector is zero.

    Attributes:
        before: of g_B and g_a (spec: cos t_a).
        after: of c_B and g_a (spec: cos c_a).
        turned: of g_B and c_B, which is the same for all groups.
    """

    before: float
    after: float
    turned: float


def alignment(gradients: BatchGradients, group_gradient: Tensor) -> Alignment:
    """Returns the cosines of a batch with a group; group_gradient: g_a, [parameters]."""
    return Alignment(
        cosine(gradients.mean, group_gradient),
        cosine(gradients.clipped, group_gradient),
        cosine(gradients.mean, gradients.clipped),
    )


def cosine(one: Tensor, other: Tensor) -> float:
    """Returns the cosine of two vectors, [parameters]; NaN where one is zero."""
    one, other = one.double(), other.double()
    return float((one @ other) / (one.norm() * other.norm()))
