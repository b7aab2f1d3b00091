"""Adaptive clipping: the bound follows a quantile of the norms, and may have a lowest value.

`Quantile` after Andrew et al. (NeurIPS 2021, Algorithm 1), `QuantileBounded` after Zhao et al. (2506.01396).
"""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass

from torch import Tensor

from equidp.kernel.policy import Setting
from equidp.policies.global_adapt import AdaptiveBound
from equidp.policies.ranges import Log, Uniform
from equidp.policies.setting import BOUND_LEARNING_RATE, STATISTICS_RATIO, Bounded, setting


@dataclass(frozen=True)
class QuantileBound(Bounded, ABC):
    """A method whose bound C follows a quantile; row 1[norm <= C] - 1/2.

    Andrew et al., NeurIPS 2021, Algorithm 1: C <- C exp(-eta (s / b + 1/2 - gamma)) with s the released sum.
    """

    clipping_bound: float = setting(1.0, "Clipping bound C before the first release.")
    target_quantile: float = setting(
        0.5,
        "Share gamma in (0, 1) of norms that the bound leaves as they are.",
        "(0, 1)",
        tune=Uniform(0.3, 0.95),
    )
    bound_learning_rate: float = setting(0.2, BOUND_LEARNING_RATE)
    statistics_ratio: float = setting(10.0, STATISTICS_RATIO)

    def statistics(self, state: AdaptiveBound, norm: Tensor, group: Tensor) -> Tensor:
        return ((norm <= state.bound.to(norm.dtype)).to(norm.dtype) - 0.5).unsqueeze(-1)

    def bound(self, state: AdaptiveBound, group: Tensor) -> float:
        return float(state.bound)

    def next_bound(self, state: AdaptiveBound, released: Tensor) -> float:
        """Return the bound after a release of the noisy sum of rows."""
        # The share of norms within the bound lies in [0, 1], whatever the noise says.
        share = min(max(float(released[0]) / float(state.expected_batch_size) + 0.5, 0.0), 1.0)
        return float(state.bound) * math.exp(-self.bound_learning_rate * (share - self.target_quantile))


@dataclass(frozen=True)
class Quantile(QuantileBound):
    """DP-SGD whose clipping bound C moves towards the target quantile of the gradient norms.

    Row 1[norm <= C] - 1/2; C <- C exp(-eta (s / b + 1/2 - gamma)) with s the released sum.

    Example:
        >>> import equidp
        >>> equidp.Quantile(clipping_bound=1.0, target_quantile=0.8).bound_learning_rate
        0.2
    """

    def init(self, setting: Setting) -> AdaptiveBound:
        return AdaptiveBound.start(self.clipping_bound, setting)

    def update(self, state: AdaptiveBound, released: Tensor) -> AdaptiveBound:
        return state.with_bound(self.next_bound(state, released))


@dataclass(frozen=True)
class QuantileBounded(QuantileBound):
    """`Quantile` with a lower limit C_min on the clipping bound C.

    C <- max(C_min, C exp(-eta (s / b + 1/2 - gamma))) with s the released sum of rows 1[norm <= C] - 1/2.
    Once most examples are learned, their quantile shrinks towards zero, and so do the clipped gradients of
    the others. With the lower limit, the others can still be learned. If C_min is larger than the initial C,
    C starts at C_min.

    Example:
        >>> import equidp
        >>> policy = equidp.QuantileBounded(clipping_bound=1.0, lowest_bound=0.5)
        >>> policy.bound(policy.init(equidp.policies.Setting(2, 64.0, 1.0)), group=0)
        1.0
    """

    lowest_bound: float = setting(
        0.1,
        "Clipping bound C_min that C never falls below.",
        tune=Log(0.1, 1, times="clipping_bound"),
    )

    def init(self, setting: Setting) -> AdaptiveBound:
        return AdaptiveBound.start(max(self.lowest_bound, self.clipping_bound), setting)

    def update(self, state: AdaptiveBound, released: Tensor) -> AdaptiveBound:
        return state.with_bound(max(self.lowest_bound, self.next_bound(state, released)))
