"""Excess risk of a group in one step: what clipping and noise add to its loss, to second order.

eta is the step size. g_a and H_a are gradient and Hessian of the group's mean loss. g_B and c_B are the
batch's gradient before and after clipping, and r = |c_B| / |g_B|. The terms are from Tran et al. 2021
(Proposition 1 of Esipova et al. 2023) and Esipova et al. 2023 (Propositions 2, 2* and 3). If a term is
positive, it makes the group's loss higher than after the step without privacy. Also included are bias and
variance of a group's private gradient, and the bound that balances them (Xu et al. 2021, 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from equidp.diagnostics.gradients import BatchGradients
from equidp.kernel.noise import to_double


@dataclass(frozen=True)
class BatchRisk:
    """Terms of one batch and one group; means over batches estimate the expectations of the papers.

    Attributes:
        direction: R_dir = eta <g_a, r g_B - c_B> + eta^2/2 (c_B' H_a c_B - r^2 g_B' H_a g_B).
        magnitude: R_mag = eta <g_a, g_B - r g_B> + eta^2/2 (r^2 - 1) g_B' H_a g_B.
        direction_alternative: R_dir* = eta <g_a, g_B - c_B/r> + eta^2/2 (c_B' H_a c_B/r^2 - g_B' H_a g_B).
        magnitude_alternative: R_mag* = eta <g_a, c_B / r - c_B> + eta^2/2 (1 - 1/r^2) c_B' H_a c_B.
        clipping_published: R_clip with <g_a, g_D> instead of <g_a, g_B>; equal in expectation.
        nonprivate: -eta <g_a, g_D> + eta^2/2 g_B' H_a g_B, the change of loss in a step without privacy.
        direction_first_order: eta <g_a, r g_B - c_B> = eta |g_a| |c_B| (cos t_a - cos c_a).
    """

    direction: float
    magnitude: float
    direction_alternative: float
    magnitude_alternative: float
    clipping_published: float
    nonprivate: float
    direction_first_order: float

    @property
    def clipping(self) -> float:
        """R_clip of this batch: what clipping adds."""
        return self.direction + self.magnitude


def batch_risk(
    gradients: BatchGradients,
    group_gradient: Tensor,
    data_gradient: Tensor,
    *,
    mean_curvature: float,
    clipped_curvature: float,
    learning_rate: float,
) -> BatchRisk:
    """Return the terms of one batch for one group.

    Args:
        gradients: g_B and c_B.
        group_gradient, data_gradient: g_a and g_D, [parameters].
        mean_curvature, clipped_curvature: g_B' H_a g_B and c_B' H_a c_B.
        learning_rate: eta.
    """
    ratio = float(gradients.ratio)
    vectors = {
        "mean": gradients.mean,
        "rescaled": gradients.rescaled_mean,
        "clipped": gradients.clipped,
        "stretched": gradients.rescaled_clipped,
        "data": data_gradient,
    }
    along = {name: float(to_double(group_gradient) @ to_double(each)) for name, each in vectors.items()}
    # c_B / r is zero where clipping leaves nothing.
    stretched = clipped_curvature / ratio**2 if ratio else 0.0

    def risk(first_order: float, curvature: float) -> float:
        return learning_rate * first_order + learning_rate**2 / 2 * curvature

    return BatchRisk(
        direction=risk(along["rescaled"] - along["clipped"], clipped_curvature - ratio**2 * mean_curvature),
        magnitude=risk(along["mean"] - along["rescaled"], (ratio**2 - 1) * mean_curvature),
        direction_alternative=risk(along["mean"] - along["stretched"], stretched - mean_curvature),
        magnitude_alternative=risk(along["stretched"] - along["clipped"], clipped_curvature - stretched),
        clipping_published=risk(along["data"] - along["clipped"], clipped_curvature - mean_curvature),
        nonprivate=risk(-along["data"], mean_curvature),
        direction_first_order=learning_rate * (along["rescaled"] - along["clipped"]),
    )


def noise_risk(trace: float, *, learning_rate: float, noise_scale: float) -> float:
    """Return R_noise = eta^2/2 tr(H_a) scale^2.

    Args:
        trace: tr(H_a).
        learning_rate: eta.
        noise_scale: scale of the noise in the gradient that the optimizer sees, sigma S / b. Esipova et al.'s
            code takes sigma S.
    """
    return learning_rate**2 / 2 * trace * noise_scale**2


def direction_gap_bound(
    first_order: float,
    other_first_order: float,
    *,
    largest_eigenvalue: float,
    other_largest_eigenvalue: float,
    squared_clipped_norm: float,
    learning_rate: float,
) -> float:
    """Return a lower bound on R_dir_a - R_dir_b (Esipova et al., proof of Proposition 3).

    It holds in every batch if both losses are convex. Arguments are numbers, or a pandas Series of batches:
    `BatchRisk.direction_first_order` of both groups, and |c_B|^2.
    """
    curvature = (largest_eigenvalue + other_largest_eigenvalue) * squared_clipped_norm
    return first_order - other_first_order - learning_rate**2 / 2 * curvature


class NormCondition(NamedTuple):
    """Tran et al.'s condition for clipping to hurt group a more than b, from only norms and shares.

    It follows from a lower bound on R_clip_a - R_clip_b. The assumptions are that the batch is the whole
    data, there are two groups, losses are convex with eta lambda <= 1, |c_B| <= C, and |g_a| is at least
    |g_b| and C. Deriving it gives |g_a| (p_a - p_a^2/2) on the left, which `gap_bound` has. The condition is
    also met, more rarely, by
    |g_a| p_a^2/2, as it is printed in some places.

    Attributes:
        gap_bound: lower bound on R_clip_a - R_clip_b.
        holds: |g_a| p_a^2/2 >= 5/2 C + |g_b| (1 + p_b + p_b^2/2).
        assumed: whether |g_a| >= max(|g_b|, C), without which the bound says nothing.
    """

    gap_bound: float
    holds: bool
    assumed: bool


def norm_condition(
    norm: float,
    other_norm: float,
    *,
    share: float,
    other_share: float,
    clipping_bound: float,
    learning_rate: float,
) -> NormCondition:
    """Tran et al. 2021, Theorem 3, for groups a and b: norms |g|, shares p of the training data, C (for other
    policies than DP-SGD the sensitivity) and eta."""
    demand = 2.5 * clipping_bound + other_norm * (1 + other_share + other_share**2 / 2)
    return NormCondition(
        gap_bound=learning_rate * norm * (norm * (share - share**2 / 2) - demand),
        holds=norm * share**2 / 2 >= demand,
        assumed=norm >= max(other_norm, clipping_bound),
    )


class ClippingError(NamedTuple):
    """Bounds on the expected error of a mean gradient with clipping and noise.

    Attributes:
        bias: mean_i |w_i - 1| v_i, the mean length that clipping removes; mean_i max(0, v_i - C) for DP-SGD.
        variance: (C / epsilon) / b^k, the mean absolute value of the noise.
    """

    bias: float
    variance: float

    @property
    def upper(self) -> float:
        return self.bias + self.variance

    @property
    def lower(self) -> float:
        """Half of `upper`; proved by Xu et al. for clipping at one bound."""
        return self.upper / 2


def clipping_error(
    norms: Tensor, weights: Tensor, *, sensitivity: float, epsilon: float, expected_count: float
) -> ClippingError:
    """Return the bounds for one group.

    Args:
        norms, weights, sensitivity: v_i and w_i, [n] each, and C.
        epsilon: epsilon of Laplace noise in one step; 1 / sigma for Gaussian noise.
        expected_count: b^k, the expected number of the group's examples in a batch.
    """
    bias = float(((to_double(weights) - 1).abs() * to_double(norms)).mean())
    return ClippingError(bias, sensitivity / epsilon / expected_count)


def best_clipping_bound(norms: Tensor, *, epsilon: float, expected_count: float) -> float:
    """Return the C that minimises (C / epsilon) / b^k + mean_i max(0, v_i - C).

    It is the (1 - 1 / (b^k epsilon)) quantile of the norms, or 0 if b^k epsilon <= 1, because noise then
    outweighs every gradient.

    Args:
        norms: [n] of a group, or of all examples with b for b^k.
        epsilon, expected_count: see `clipping_error`.
    """
    level = 1 - 1 / (expected_count * epsilon)
    return (
        float(np.quantile(norms.cpu().double().numpy(), level, method="inverted_cdf")) if level > 0 else 0.0
    )
