"""SlaClip: a clipping bound that follows how far norms stay below it (Zou et al., ICML 2026)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equidp._validate import check_whole
from equidp.errors import SettingError
from equidp.kernel.policy import Setting
from equidp.policies.global_adapt import AdaptiveBound
from equidp.policies.quantile import AdaptiveClipping
from equidp.policies.ranges import Log, OneOf, Uniform
from equidp.policies.setting import BOUND_LEARNING_RATE, STATISTICS_RATIO, setting


@dataclass(frozen=True)
class SlaClip(AdaptiveClipping):
    """DP-SGD whose clipping bound C rises where few norms are below it, unless they are close to zero.

    The slack of an example, C - norm where that is positive, fills K slots of C / K one after the other; its
    row is the filled shares of the slots over sqrt(K), whose norm is at most sqrt(slack / C). The released
    sums over b / sqrt(K) are mean shares: s_1 of norms below the bound, s_K of norms close to zero. Then
    C <- C exp(eta (1 - beta (1 - s_K) - s_1)), between a lowest and a highest bound: the more norms are close
    to zero, the more of them the bound should leave as they are.

    The authors release slacks times C with the clipped gradients, under one noise: norm^2 + C (C - norm) is
    at most C^2, so that costs nothing more. Here a policy's row and gradient are each bounded alone and
    accounted together, so slacks have noise of their own (`statistics_ratio`). Published code divides s_K by
    C once more, which makes the rule depend on the unit of gradients, and does not hold shares within [0, 1].

    Example:
        >>> import torch, equidp
        >>> policy = equidp.SlaClip(clipping_bound=2.0, slots=4)
        >>> state = policy.init(equidp.policies.Setting(2, 64.0, 1.0))
        >>> 2 * policy.statistics(state, torch.tensor(0.75), torch.tensor(0))  # shares of the slots
        tensor([1.0000, 1.0000, 0.5000, 0.0000])
    """

    clipping_bound: float = setting(1.0, "Clipping bound C before the first release.")
    slots: int = setting(
        8, "Slots K that a slack fills: more of them are finer, and noisier.", tune=OneOf((4, 8, 16))
    )
    tolerance: float = setting(
        0.5,
        "beta in [0, 1]: share of norms that the bound may shorten where none is close to zero.",
        "[0, 1]",
        tune=Uniform(0.1, 0.7),
    )
    bound_learning_rate: float = setting(0.5, BOUND_LEARNING_RATE)
    lowest_bound: float = setting(
        0.1,
        "Clipping bound that C never falls below.",
        tune=Log(0.1, 1, times="clipping_bound"),
    )
    highest_bound: float = setting(50.0, "Clipping bound that C never rises above.")
    statistics_ratio: float = setting(10.0, STATISTICS_RATIO)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(1, slots=self.slots)
        if self.lowest_bound > self.highest_bound:
            raise SettingError(
                f"lowest_bound={self.lowest_bound:g} above highest_bound={self.highest_bound:g}; expected at "
                "most that.",
                field="lowest_bound",
            )

    def init(self, setting: Setting) -> AdaptiveBound:
        return AdaptiveBound.start(self._within_bounds(self.clipping_bound), setting)

    def statistics(self, state: AdaptiveBound, norm: Tensor, group: Tensor) -> Tensor:
        slack = (1 - norm / state.bound.to(norm.dtype)).clamp(min=0.0)
        places = torch.arange(self.slots, device=norm.device)
        return (slack * self.slots - places).clamp(0.0, 1.0) / math.sqrt(self.slots)

    def update(self, state: AdaptiveBound, released: Tensor) -> AdaptiveBound:
        shares = released.double() * math.sqrt(self.slots) / state.expected_batch_size
        below, near_zero = shares[0].clamp(0.0, 1.0), shares[-1].clamp(0.0, 1.0)
        target = 1 - self.tolerance * (1 - float(near_zero))
        moved = float(state.bound) * math.exp(self.bound_learning_rate * (target - float(below)))
        return state.with_bound(self._within_bounds(moved))

    def _within_bounds(self, bound: float) -> float:
        return min(max(bound, self.lowest_bound), self.highest_bound)
