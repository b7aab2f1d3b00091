"""Bounded adaptive clipping: a quantile's bound with a lowest value (Zhao et al., 2506.01396)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equidp.kernel.policy import Setting
from equidp.policies.global_adapt import AdaptiveBound
from equidp.policies.quantile_bound import QuantileBound, shortened
from equidp.policies.setting import setting


@dataclass(frozen=True)
class QuantileBounded(QuantileBound):
    """`Quantile` whose clipping bound C stays above a lowest one.

    C <- max(C_min, C exp(-eta (s / b + 1/2 - gamma))) with s the released sum of rows 1[norm <= C] - 1/2.
    Where most examples are learnt, their quantile shrinks towards zero, and the gradients of the others with
    it; the lowest bound leaves those something to learn by. C starts at C_min where that is larger.

    Example:
        >>> import equidp
        >>> policy = equidp.QuantileBounded(clipping_bound=1.0, lowest_bound=0.5)
        >>> policy.sensitivity(policy.init(equidp.policies.Setting(2, 64.0, 1.0)))
        1.0
    """

    lowest_bound: float = setting(0.1, "Clipping bound C_min that C never falls below.")

    def init(self, setting: Setting) -> AdaptiveBound:
        return AdaptiveBound.start(max(self.lowest_bound, self.clipping_bound), setting)

    def update(self, state: AdaptiveBound, released: Tensor) -> AdaptiveBound:
        return state.moved(max(self.lowest_bound, self.followed(state, released)))

    def weight(self, state: AdaptiveBound, norm: Tensor, group: Tensor) -> Tensor:
        return shortened(state, norm)
