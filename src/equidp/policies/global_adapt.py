"""DPSGD-Global-Adapt: one scale for nearly all gradients, learnt privately (Esipova et al., ICLR 2023, Algorithm 2)."""

from __future__ import annotations

import math

from torch import Tensor

from equidp._validate import check_number
from equidp.errors import SettingError
from equidp.kernel.policy import Policy


class GlobalAdapt(Policy):
    """Weight C / Z where norm <= Z, else C / norm; Z follows the released count of norms above tau Z.

    Z <- max(C, Z exp(-eta + d / b)). Published code divides d by the realised batch size, which is private.

    Args:
        clipping_bound: C_0, the sensitivity.
        initial_bound: Z before the first release, >= C_0; 50 in the paper.
        learning_rate: eta_Z; 0.1 in the paper.
        tolerance: tau in (0, ...): gradients longer than tau Z count as about to be clipped; 0.7 in the paper for MNIST.
        statistics_ratio: sigma_s / sigma; the paper's sigma_s is 10.
    """

    state_names = ("bound",)

    def __init__(
        self,
        clipping_bound: float,
        *,
        initial_bound: float = 50.0,
        learning_rate: float = 0.1,
        tolerance: float = 1.0,
        statistics_ratio: float = 10.0,
    ) -> None:
        check_number(
            "(0, inf)",
            clipping_bound=clipping_bound,
            initial_bound=initial_bound,
            learning_rate=learning_rate,
            tolerance=tolerance,
            statistics_ratio=statistics_ratio,
        )
        if initial_bound < clipping_bound:
            raise SettingError(
                f"initial_bound={initial_bound} is below clipping_bound={clipping_bound}; expected Z >= C_0."
            )
        self.clipping_bound = float(clipping_bound)
        self.learning_rate = float(learning_rate)
        self.tolerance = float(tolerance)
        self.statistics_ratio = float(statistics_ratio)
        self.bound = float(initial_bound)

    def statistics(self, norms: Tensor, groups: Tensor) -> Tensor:
        return (norms > self.tolerance * self.bound).unsqueeze(1)

    def observe(self, released: Tensor) -> None:
        if self.expected_batch_size is None:
            raise SettingError(
                "GlobalAdapt has no expected batch size yet; call prepare() first, as Trainer does."
            )
        # A count lies in [0, n]; noise that says more than the whole expected batch says nothing.
        share = min(float(released[0]) / self.expected_batch_size, 1.0)
        self.bound = max(self.clipping_bound, self.bound * math.exp(share - self.learning_rate))

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return self.clipping_bound / norms.clamp_min(self.bound)

    @property
    def sensitivity(self) -> float:
        return self.clipping_bound

    def released_state(self) -> dict[str, Tensor | float]:
        return {"clipping_bound": self.clipping_bound, "Z": self.bound}
