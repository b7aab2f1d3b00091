"""DPSGD-F: a clipping bound for each group, higher where more gradients are clipped (Xu, Du, Wu, KDD 2021, Algorithm 2)."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from equidp._validate import check_number, check_whole
from equidp.errors import SettingError
from equidp.kernel.policy import Policy


class _GroupBounds(Policy):
    """What both readings of DPSGD-F share: noisy counts per group in, clipping bounds per group out.

    Statistics: one-hot over 2K cells, (group, norm above the base bound or not). Sensitivity: the largest bound of ALL K groups;
    published code takes it over the groups that happen to be in the batch, which leaks who is there.

    Args:
        base_bound: C_0.
        num_groups: K, public.
        statistics_ratio: sigma_s / sigma; 10 in the paper.
        smoothing: weight in [0, 1) of earlier counts in an exponential moving average of the released counts. 0, as published,
            uses each step's counts alone; with few examples of a group per batch those are mostly noise.
        max_ratio: a group's bound is at most (1 + max_ratio) C_0, whatever the noise does to the counts.
    """

    num_groups: int
    state_names = ("bounds", "counts")

    def __init__(
        self,
        base_bound: float,
        num_groups: int,
        *,
        statistics_ratio: float = 10.0,
        smoothing: float = 0.0,
        max_ratio: float = 10.0,
    ) -> None:
        check_number(
            "(0, inf)", base_bound=base_bound, statistics_ratio=statistics_ratio, max_ratio=max_ratio
        )
        check_number("[0, 1)", ", 0 for none", smoothing=smoothing)
        self.base_bound = float(base_bound)
        check_whole(1, num_groups=num_groups)
        self.num_groups = num_groups
        self.statistics_ratio = float(statistics_ratio)
        self.smoothing = float(smoothing)
        self.max_ratio = float(max_ratio)
        self.bounds = torch.full((num_groups,), 2 * self.base_bound)
        self.counts = torch.full((2, num_groups), torch.nan)

    def statistics(self, norms: Tensor, groups: Tensor) -> Tensor:
        above = (norms > self.base_bound).to(torch.int64)
        return one_hot(groups + self.num_groups * above, 2 * self.num_groups)

    def observe(self, released: Tensor) -> None:
        counts = released.reshape(2, self.num_groups)
        earlier = torch.where(self.counts.isnan(), counts, self.counts.to(counts))
        self.counts = self.smoothing * earlier + (1 - self.smoothing) * counts
        below, above = self.counts
        self.bounds = self.base_bound * (1 + self._ratios(below, above).clamp(0.0, self.max_ratio))

    @abstractmethod
    def _ratios(self, below: Tensor, above: Tensor) -> Tensor:
        """How much more a group is clipped than the average, [K], from noisy counts o^k and m^k, [K] each."""

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return (self.bounds.to(norms)[groups] / norms).clamp(max=1.0)

    @property
    def sensitivity(self) -> float:
        return float(self.bounds.max())

    def released_state(self) -> dict[str, Tensor | float]:
        return {"clipping_bound": self.bounds}


class DPSGDF(_GroupBounds):
    """C^k = C_0 (1 + (m^k / b^k) / (m / b)), as the paper prints it; counts clamped at 0 and denominators at 1."""

    def _ratios(self, below: Tensor, above: Tensor) -> Tensor:
        if self.expected_batch_size is None:
            raise SettingError(
                "DPSGDF has no expected batch size yet; call prepare() first, as Trainer does."
            )
        below, above = below.clamp_min(0.0), above.clamp_min(0.0)
        share_clipped = above / (below + above).clamp_min(1.0)
        return share_clipped / (above.sum().clamp_min(1.0) / self.expected_batch_size)


class DPSGDFCode(_GroupBounds):
    """C^k = C_0 (1 + rho_k / mean_j rho_j), as the authors ran it and Esipova et al. (ICLR 2023, Algorithm 3) printed it.

    rho_k = m^k / b^k from counts floored to whole numbers >= 0, and 1 for a group without a count.
    """

    def _ratios(self, below: Tensor, above: Tensor) -> Tensor:
        below, above = below.clamp_min(0.0).floor(), above.clamp_min(0.0).floor()
        total = below + above
        share_clipped = torch.where(total > 0, above / total.clamp_min(1.0), 1.0)
        mean = share_clipped.mean()
        # Where nobody is clipped all groups are alike, and like the average.
        return torch.where(mean > 0, share_clipped / mean.clamp_min(torch.finfo(mean.dtype).tiny), 1.0)
