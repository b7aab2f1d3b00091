"""Naive reweighting: groups weigh inversely to their size (Xu, Du, Wu, KDD 2021, Algorithm 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from equidp.kernel.policy import Setting
from equidp.policies.setting import STATISTICS_RATIO, Bounded, setting


class GroupWeights(NamedTuple):
    """State of naive reweighting: theta, [K], and b."""

    theta: Tensor
    expected_batch_size: Tensor


@dataclass(frozen=True)
class Naive(Bounded):
    """Weight theta^a min(1, C / norm) with theta^k = (b / K) / b^k, b^k the released count of group k.

    Example:
        >>> import equidp
        >>> equidp.Naive(min_count=2.0).statistics_ratio
        10.0
    """

    statistics_ratio: float = setting(10.0, STATISTICS_RATIO)
    min_count: float = setting(
        1.0, "Least released count of a group; it limits theta, and with it the noise."
    )
    needs_groups: ClassVar[bool] = True

    def init(self, setting: Setting) -> GroupWeights:
        b = torch.tensor(setting.expected_batch_size, dtype=torch.float64)
        return GroupWeights(torch.ones(setting.num_groups), b)

    def statistics(self, state: GroupWeights, norm: Tensor, group: Tensor) -> Tensor:
        return one_hot(group, len(state.theta))

    def update(self, state: GroupWeights, released: Tensor) -> GroupWeights:
        share = float(state.expected_batch_size) / len(state.theta)
        return state._replace(theta=share / released.clamp_min(self.min_count))

    def weight(self, state: GroupWeights, norm: Tensor, group: Tensor) -> Tensor:
        return state.theta.to(norm.dtype)[group] * (self.clipping_bound / norm).clamp(max=1.0)

    def bound(self, state: GroupWeights, group: Tensor) -> Tensor:
        return self.clipping_bound * state.theta.double()[group]

    def released(self, state: GroupWeights) -> dict[str, Tensor]:
        return {"theta": state.theta}
