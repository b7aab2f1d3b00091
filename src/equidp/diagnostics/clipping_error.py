"""Bias and variance of a group's private gradient, and the bound that balances them (Xu et al. 2021, 4.2).

Their noise is Laplace of scale C / epsilon in one step, whose mean absolute value is its scale. Gaussian
noise of scale sigma C takes its place at epsilon = 1 / sigma.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from equidp._validate import check_number
from equidp.kernel.noise import to_double


@dataclass(frozen=True)
class ClippingError:
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
    """Returns the bounds for one group.

    Args:
        norms: v_i, [n], of the group's examples.
        weights: w_i that the policy gives them, [n].
        sensitivity: C.
        epsilon: of Laplace noise in one step; 1 / sigma for Gaussian noise.
        expected_count: b^k, the expected number of the group's examples in a batch.
    """
    check_number("(0, inf]", ", such as 1 / noise multiplier", epsilon=epsilon)
    lengths = to_double(norms)
    bias = float(((to_double(weights) - 1).abs() * lengths).mean())
    return ClippingError(bias, sensitivity / epsilon / expected_count)


def best_clipping_bound(norms: Tensor, *, epsilon: float, expected_count: float) -> float:
    """Returns the C that minimises (C / epsilon) / b^k + mean_i max(0, v_i - C).

    It is the (1 - 1 / (b^k epsilon)) quantile of the norms.

    Args:
        norms: [n] of a group, or of all examples with b for b^k.
        epsilon, expected_count: see `clipping_error`.

    Returns:
        0 where b^k epsilon <= 1, where noise outweighs every gradient.
    """
    check_number("(0, inf]", ", such as 1 / noise multiplier", epsilon=epsilon)
    level = 1 - 1 / (expected_count * epsilon)
    if level <= 0:
        return 0.0
    return float(np.quantile(norms.cpu().double().numpy(), level, method="inverted_cdf"))
