"""Adaptive clipping: the bound follows a quantile of the norms (Andrew et al., NeurIPS 2021, Algorithm 1)."""

from __future__ import annotations

import math

from torch import Tensor

from equidp._validate import check_number
from equidp.errors import SettingError
from equidp.kernel.policy import Policy


class Quantile(Policy):
    """DP-SGD whose clipping bound C moves towards the target quantile of the gradient norms.

    Row 1[norm <= C] - 1/2; C <- C exp(-eta (s / b + 1/2 - gamma)) with s the released sum.

    Args:
        initial_bound: C before the first release.
        target_quantile: gamma in (0, 1).
        learning_rate: eta; 0.2 in the paper.
        statistics_ratio: sigma_s / sigma.
    """

    state_names = ("clipping_bound",)

    def __init__(
        self,
        initial_bound: float,
        *,
        target_quantile: float = 0.5,
        learning_rate: float = 0.2,
        statistics_ratio: float = 10.0,
    ) -> None:
        check_number(
            "(0, inf)",
            initial_bound=initial_bound,
            learning_rate=learning_rate,
            statistics_ratio=statistics_ratio,
        )
        check_number("(0, 1)", target_quantile=target_quantile)
        self.clipping_bound = float(initial_bound)
        self.target_quantile = float(target_quantile)
        self.learning_rate = float(learning_rate)
        self.statistics_ratio = float(statistics_ratio)

    def statistics(self, norms: Tensor, groups: Tensor) -> Tensor:
        return (norms <= self.clipping_bound).to(norms.dtype).unsqueeze(1) - 0.5

    def observe(self, released: Tensor) -> None:
        if self.expected_batch_size is None:
            raise SettingError(
                "Quantile has no expected batch size yet; call prepare() first, as Trainer does."
            )
        # The share of norms within the bound lies in [0, 1], whatever the noise says.
        share = min(max(float(released[0]) / self.expected_batch_size + 0.5, 0.0), 1.0)
        self.clipping_bound *= math.exp(-self.learning_rate * (share - self.target_quantile))

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return (self.clipping_bound / norms).clamp(max=1.0)

    @property
    def sensitivity(self) -> float:
        return self.clipping_bound
