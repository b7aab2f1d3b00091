"""A clipping bound that moves towards a quantile of the norms: what the methods with such a bound share."""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass

from torch import Tensor

from equidp.policies.global_adapt import AdaptiveBound
from equidp.policies.setting import BOUND_LEARNING_RATE, STATISTICS_RATIO, Bounded, setting


@dataclass(frozen=True)
class QuantileBound(Bounded, ABC):
    """A method whose bound C follows a quantile; row 1[norm <= C] - 1/2.

    Andrew et al., NeurIPS 2021, Algorithm 1: C <- C exp(-eta (s / b + 1/2 - gamma)) with s the released sum.
    """

    clipping_bound: float = setting(1.0, "Clipping bound C before the first release.")
    target_quantile: float = setting(
        0.5, "Share gamma in (0, 1) of norms that the bound leaves as they are.", "(0, 1)"
    )
    bound_learning_rate: float = setting(0.2, BOUND_LEARNING_RATE)
    statistics_ratio: float = setting(10.0, STATISTICS_RATIO)

    def statistics(self, state: AdaptiveBound, norm: Tensor, group: Tensor) -> Tensor:
        return (norm <= state.bound.to(norm.dtype)).to(norm.dtype).unsqueeze(0) - 0.5

    def followed(self, state: AdaptiveBound, released: Tensor) -> float:
        """The bound that follows from the noisy sum of rows."""
        # The share of norms within the bound lies in [0, 1], whatever the noise says.
        share = min(max(float(released[0]) / float(state.expected_batch_size) + 0.5, 0.0), 1.0)
        return float(state.bound) * math.exp(-self.bound_learning_rate * (share - self.target_quantile))

    def sensitivity(self, state: AdaptiveBound) -> float:
        return float(state.bound)


def shortened(state: AdaptiveBound, norm: Tensor) -> Tensor:
    """The weight min(1, C / norm) of one example."""
    return (norm.reciprocal() * state.bound.to(norm.dtype)).clamp(max=1.0)
