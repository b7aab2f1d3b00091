"""DPSGD-F: a clipping bound for each group, by how many are clipped (Xu, Du, Wu, KDD 2021, Algorithm 2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from equidp.kernel.policy import Setting
from equidp.policies.ranges import OneOf
from equidp.policies.setting import STATISTICS_RATIO, Bounded, setting


class GroupBounds(NamedTuple):
    """State of DPSGD-F.

    Attributes:
        bounds: C^k, [K].
        counts: averages of norms up to C_0 (row 0) and above it (row 1), [2, K], or NaN before a release.
        expected_batch_size: b.
    """

    bounds: Tensor
    counts: Tensor
    expected_batch_size: Tensor


@dataclass(frozen=True)
class _GroupBoundsPolicy(Bounded, ABC):
    """Base of both readings of DPSGD-F: noisy counts by group in, clipping bounds by group out.

    Statistics: one-hot over 2K cells, (group, norm above C_0 or not). Sensitivity: the largest bound of ALL K
    groups; published code takes it over the groups in the batch, which leaks who is there.
    """

    statistics_ratio: float = setting(10.0, STATISTICS_RATIO)
    smoothing: float = setting(
        0.0,
        "Weight in [0, 1) of earlier counts in a moving average of released counts; 0: as published.",
        "[0, 1)",
        ", 0 for none",
        tune=OneOf((0.0, 0.9)),
    )
    max_ratio: float = setting(
        10.0, "A group's bound is at most (1 + max_ratio) C_0, however large the noise."
    )
    needs_groups: ClassVar[bool] = True

    def init(self, setting: Setting) -> GroupBounds:
        return GroupBounds(
            torch.full((setting.num_groups,), 2 * float(self.clipping_bound)),
            torch.full((2, setting.num_groups), torch.nan),
            torch.tensor(setting.expected_batch_size, dtype=torch.float64),
        )

    def statistics(self, state: GroupBounds, norm: Tensor, group: Tensor) -> Tensor:
        clipped = (norm > self.clipping_bound).long()
        return one_hot(group + len(state.bounds) * clipped, 2 * len(state.bounds))

    def update(self, state: GroupBounds, released: Tensor) -> GroupBounds:
        counts = released.reshape(2, -1)
        earlier = torch.where(state.counts.to(counts).isnan(), counts, state.counts.to(counts))
        counts = self.smoothing * earlier + (1 - self.smoothing) * counts
        below, above = counts
        ratios = self._ratios(below, above, float(state.expected_batch_size))
        bounds = self.clipping_bound * (1 + ratios.clamp(0.0, self.max_ratio))
        return GroupBounds(bounds, counts, state.expected_batch_size)

    @abstractmethod
    def _ratios(self, below: Tensor, above: Tensor, expected_batch_size: float) -> Tensor:
        """Ratios of clipping in each group to the average, [K], from noisy counts o^k and m^k, [K] each."""

    def bound(self, state: GroupBounds, group: Tensor) -> Tensor:
        return state.bounds[group]


@dataclass(frozen=True)
class DPSGDF(_GroupBoundsPolicy):
    """DPSGD-F as printed: C^k = C_0 (1 + (m^k / b^k) / (m / b)), counts clamped at 0 and denominators at 1.

    Example:
        >>> import equidp
        >>> equidp.DPSGDF(clipping_bound=1.0, smoothing=0.9).needs_groups
        True
    """

    def _ratios(self, below: Tensor, above: Tensor, expected_batch_size: float) -> Tensor:
        below, above = below.clamp_min(0.0), above.clamp_min(0.0)
        share_clipped = above / (below + above).clamp_min(1.0)
        return share_clipped / (above.sum().clamp_min(1.0) / expected_batch_size)


@dataclass(frozen=True)
class DPSGDFCode(_GroupBoundsPolicy):
    """DPSGD-F as its authors ran it: C^k = C_0 (1 + rho_k / mean_j rho_j).

    rho_k = m^k / b^k from counts floored to whole numbers >= 0, and 1 for a group without a count
    (Esipova et al., ICLR 2023, Algorithm 3).

    Example:
        >>> import equidp
        >>> equidp.DPSGDFCode(clipping_bound=0.5).clipping_bound
        0.5
    """

    def _ratios(self, below: Tensor, above: Tensor, expected_batch_size: float) -> Tensor:
        below, above = below.clamp_min(0.0).floor(), above.clamp_min(0.0).floor()
        total = below + above
        share_clipped = torch.where(total > 0, above / total.clamp_min(1.0), 1.0)
        mean = share_clipped.mean()
        # Where nobody is clipped, every group is as far clipped as the average.
        return torch.where(mean > 0, share_clipped / mean.clamp_min(torch.finfo(mean.dtype).tiny), 1.0)
