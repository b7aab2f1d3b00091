"""Group-DRO: groups weigh more, the larger their released mean losses are (Sagawa et al., ICLR 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from equidp.kernel.policy import Setting
from equidp.policies.ranges import Log, OneOf
from equidp.policies.setting import STATISTICS_RATIO, Bounded, setting

_ROW = math.sqrt(2)


class GroupLosses(NamedTuple):
    """State of group-DRO.

    Attributes:
        shares: q, [K], adding up to 1.
        sums: averages of released counts and of losses over the largest loss, by group, [2, K]; NaN before a
            release.
        expected_batch_size: b.
    """

    shares: Tensor
    sums: Tensor
    expected_batch_size: Tensor


@dataclass(frozen=True)
class GroupDRO(Bounded):
    """DP-SGD on the mean losses of groups, weighted by how large they are, as released.

    The objective is sum_a q_a L_a, where L_a is the mean loss of group a; each step sets q_a to
    q_a exp(eta L_a) over their sum (Sagawa et al., Algorithm 1). What the authors ran takes L_a from the
    batch, so that one example changes the weights of all others, by as much as its loss is large. Here L_a is
    a released sum of clipped losses over a released count, so that a weight follows from the example's norm
    and group and from releases: w_a min(1, C / norm), with w_a in proportion to q_a over the group's count,
    and 1 for the group with the largest.

    Statistics: (1, loss / B within [0, 1]) / sqrt(2) in the cells of the example's group. Sensitivity: C.

    Example:
        >>> import torch, equidp
        >>> policy = equidp.GroupDRO(clipping_bound=0.5, largest_loss=2.0)
        >>> state = policy.init(equidp.policies.Setting(2, 64.0, 1.0))
        >>> policy.statistics(state, torch.tensor(1.0), torch.tensor(1), torch.tensor(0.5)) * 2**0.5
        tensor([0.0000, 1.0000, 0.0000, 0.2500])
    """

    statistics_ratio: float = setting(10.0, STATISTICS_RATIO)
    group_learning_rate: float = setting(
        0.01,
        "Step size eta of the exponentiated gradient on groups, per unit of loss; 0.01 in the paper.",
        tune=Log(0.003, 0.3),
    )
    group_decay: float = setting(
        0.0,
        "Share in [0, 1) of the logarithms of q that a step forgets, towards equal groups; 0: as published.",
        "[0, 1)",
        ", 0 for none",
        tune=OneOf((0.0, 0.01, 0.1)),
    )
    largest_loss: float = setting(
        5.0, "Public bound B that statistics clip the loss of an example to, in the unit of the loss (nats)."
    )
    smoothing: float = setting(
        0.9,
        "Weight in [0, 1) of earlier statistics in a moving average of released ones; 0: the last alone.",
        "[0, 1)",
        ", 0 for none",
    )
    min_count: float = setting(
        8.0,
        "Least released count of a group, of the examples of a batch; it limits the weight of small groups.",
    )
    needs_groups: ClassVar[bool] = True
    loss_readers: ClassVar[tuple[str, ...]] = ("statistics",)

    def init(self, setting: Setting) -> GroupLosses:
        groups = setting.num_groups
        return GroupLosses(
            torch.full((groups,), 1 / groups),
            torch.full((2, groups), torch.nan),
            torch.tensor(setting.expected_batch_size, dtype=torch.float64),
        )

    def statistics(  # type: ignore[override]  # the loss comes by `loss_readers`
        self, state: GroupLosses, norm: Tensor, group: Tensor, loss: Tensor
    ) -> Tensor:
        row = torch.stack([torch.ones_like(norm), (loss.to(norm) / self.largest_loss).clamp(0.0, 1.0)]) / _ROW
        return (row.unsqueeze(1) * one_hot(group, len(state.shares))).flatten()

    def update(self, state: GroupLosses, released: Tensor) -> GroupLosses:
        sums = _ROW * released.reshape(2, -1)
        earlier = torch.where(state.sums.isnan(), sums, state.sums)
        sums = self.smoothing * earlier + (1 - self.smoothing) * sums
        counts, losses = sums
        means = self.largest_loss * (losses / counts.clamp_min(self.min_count)).clamp(0.0, 1.0)
        logarithms = (1 - self.group_decay) * state.shares.log() + self.group_learning_rate * means
        return state._replace(shares=logarithms.softmax(dim=0).clamp_min(_SMALLEST), sums=sums)

    def weight(self, state: GroupLosses, norm: Tensor, group: Tensor) -> Tensor:
        return self._weights(state).to(norm.dtype)[group] * (self.clipping_bound / norm).clamp(max=1.0)

    def released(self, state: GroupLosses) -> dict[str, Tensor]:
        weights = self._weights(state)
        return {"clipping_bound": self.clipping_bound * weights, "group_weight": weights}

    def _weights(self, state: GroupLosses) -> Tensor:
        """Weights of groups, [K], of which the largest is 1."""
        counts = torch.where(state.sums[0].isnan(), 1.0, state.sums[0].clamp_min(self.min_count))
        weights = state.shares / counts
        return weights / weights.max()


_SMALLEST = 1e-12
"""Least q of a group, which can grow again from it."""
