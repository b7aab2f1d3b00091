"""Adaptive clipping: the bound follows a quantile of the norms (Andrew et al., NeurIPS 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equidp.kernel.policy import Setting
from equidp.policies.global_adapt import AdaptiveBound
from equidp.policies.quantile_bound import QuantileBound, shortened


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
        return state.moved(self.followed(state, released))

    def weight(self, state: AdaptiveBound, norm: Tensor, group: Tensor) -> Tensor:
        return shortened(state, norm)
