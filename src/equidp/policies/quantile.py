"""Adaptive clipping: the bound follows a quantile of the norms (Andrew et al., NeurIPS 2021, Algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from equidp.kernel.policy import Setting
from equidp.policies.global_adapt import AdaptiveBound
from equidp.policies.setting import BOUND_LEARNING_RATE, STATISTICS_RATIO, Bounded, setting


@dataclass(frozen=True)
class Quantile(Bounded):
    """DP-SGD whose clipping bound C moves towards the target quantile of the gradient norms.

    Row 1[norm <= C] - 1/2; C <- C exp(-eta (s / b + 1/2 - gamma)) with s the released sum.

    Example:
        >>> import equidp
        >>> equidp.Quantile(clipping_bound=1.0, target_quantile=0.8).bound_learning_rate
        0.2
    """

    clipping_bound: float = setting(1.0, "Clipping bound C before the first release.")
    target_quantile: float = setting(
        0.5, "Share gamma in (0, 1) of norms that the bound leaves as they are.", "(0, 1)"
    )
    bound_learning_rate: float = setting(0.2, BOUND_LEARNING_RATE)
    statistics_ratio: float = setting(10.0, STATISTICS_RATIO)

    def init(self, setting: Setting) -> AdaptiveBound:
        return AdaptiveBound.start(self.clipping_bound, setting)

    def statistics(self, state: AdaptiveBound, norm: Tensor, group: Tensor) -> Tensor:
        return (norm <= state.bound.to(norm.dtype)).to(norm.dtype).unsqueeze(0) - 0.5

    def update(self, state: AdaptiveBound, released: Tensor) -> AdaptiveBound:
        # The share of norms within the bound lies in [0, 1], whatever the noise says.
        share = min(max(float(released[0]) / float(state.expected_batch_size) + 0.5, 0.0), 1.0)
        return state.moved(
            float(state.bound) * math.exp(-self.bound_learning_rate * (share - self.target_quantile))
        )

    def weight(self, state: AdaptiveBound, norm: Tensor, group: Tensor) -> Tensor:
        return (norm.reciprocal() * state.bound.to(norm.dtype)).clamp(max=1.0)

    def sensitivity(self, state: AdaptiveBound) -> float:
        return float(state.bound)
