"""Naive reweighting: groups weigh inversely to their size (Xu, Du, Wu, KDD 2021, Algorithm 3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from equidp._validate import check_number, check_whole
from equidp.errors import SettingError
from equidp.kernel.policy import Policy


class Naive(Policy):
    """Weight theta^a min(1, C / norm) with theta^k = (b / K) / b^k, b^k the released count of group k.

    Args:
        clipping_bound: C_0.
        num_groups: K, public.
        statistics_ratio: sigma_s / sigma; 10 in the paper.
        min_count: released counts below this are raised to it; it caps theta, and with it the noise.
    """

    num_groups: int
    state_names = ("theta",)

    def __init__(
        self,
        clipping_bound: float,
        num_groups: int,
        *,
        statistics_ratio: float = 10.0,
        min_count: float = 1.0,
    ) -> None:
        check_number(
            "(0, inf)", clipping_bound=clipping_bound, statistics_ratio=statistics_ratio, min_count=min_count
        )
        self.clipping_bound = float(clipping_bound)
        check_whole(1, num_groups=num_groups)
        self.num_groups = num_groups
        self.statistics_ratio = float(statistics_ratio)
        self.min_count = float(min_count)
        self.theta = torch.ones(num_groups)

    def statistics(self, norms: Tensor, groups: Tensor) -> Tensor:
        return one_hot(groups, self.num_groups)

    def observe(self, released: Tensor) -> None:
        if self.expected_batch_size is None:
            raise SettingError("Naive has no expected batch size yet; call prepare() first, as Trainer does.")
        self.theta = self.expected_batch_size / self.num_groups / released.clamp_min(self.min_count)

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return self.theta.to(norms)[groups] * (self.clipping_bound / norms).clamp(max=1.0)

    @property
    def sensitivity(self) -> float:
        return self.clipping_bound * float(self.theta.max())

    def released_state(self) -> dict[str, Tensor | float]:
        return {"clipping_bound": self.clipping_bound * self.theta, "theta": self.theta}
