"""DPSGD-Global-Adapt: one scale, learned privately (Esipova et al., ICLR 2023, Algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equidp.errors import SettingError
from equidp.kernel.policy import Setting
from equidp.policies.ranges import Log, OneOf
from equidp.policies.setting import BOUND_LEARNING_RATE, STATISTICS_RATIO, Bounded, setting


class AdaptiveBound(NamedTuple):
    """State of a method with one adaptive bound: the bound (Z, or C of quantile clipping) and b, float64."""

    bound: Tensor
    expected_batch_size: Tensor

    @classmethod
    def start(cls, bound: float, setting: Setting) -> AdaptiveBound:
        """The state before the first release."""
        b = setting.expected_batch_size
        return cls(torch.tensor(bound, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))

    def with_bound(self, bound: float) -> AdaptiveBound:
        """Return the state with another bound."""
        return self._replace(bound=torch.tensor(bound, dtype=torch.float64))


@dataclass(frozen=True)
class GlobalAdapt(Bounded):
    """Weight C / Z if norm <= Z, else C / norm; Z follows the released count of norms above tau Z.

    Z <- max(C, Z exp(-eta + d / b)), with tau the `tolerance` and d the count. Published code divides d by
    the realised batch size, which is private.

    Example:
        >>> import equidp
        >>> equidp.GlobalAdapt(clipping_bound=1.0, initial_bound=50.0, tolerance=0.7).tolerance
        0.7
    """

    initial_bound: float = setting(
        50.0,
        "Z before the first release, at least the clipping bound; 50 in the paper.",
        tune=Log(1, 20, times="clipping_bound"),
    )
    bound_learning_rate: float = setting(0.1, BOUND_LEARNING_RATE)
    tolerance: float = setting(
        1.0,
        "Norms above this times Z count as about to be clipped; 0.7 in the paper for MNIST.",
        tune=OneOf((0.7, 1.0)),
    )
    statistics_ratio: float = setting(10.0, STATISTICS_RATIO)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_bound < self.clipping_bound:
            raise SettingError(
                f"initial_bound={self.initial_bound} is below clipping_bound={self.clipping_bound}; expected "
                "Z >= C."
            )

    def init(self, setting: Setting) -> AdaptiveBound:
        return AdaptiveBound.start(self.initial_bound, setting)

    def statistics(self, state: AdaptiveBound, norm: Tensor, group: Tensor) -> Tensor:
        return (norm > (self.tolerance * state.bound).to(norm.dtype)).unsqueeze(-1)

    def update(self, state: AdaptiveBound, released: Tensor) -> AdaptiveBound:
        # A count lies in [0, n]; noise that says more than the whole expected batch says nothing.
        share = min(float(released[0]) / float(state.expected_batch_size), 1.0)
        grown = float(state.bound) * math.exp(share - self.bound_learning_rate)
        return state.with_bound(max(float(self.clipping_bound), grown))

    def weight(self, state: AdaptiveBound, norm: Tensor, group: Tensor) -> Tensor:
        return self.clipping_bound / norm.clamp_min(state.bound.to(norm.dtype))

    def released(self, state: AdaptiveBound) -> dict[str, Tensor]:
        return {"Z": state.bound}
