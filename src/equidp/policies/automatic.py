"""Automatic clipping: every gradient normalised (Bu et al., 2022, AUTO-S)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equidp._validate import check_number
from equidp.kernel.policy import Policy
from equidp.policies.setting import setting


@dataclass(frozen=True)
class Automatic(Policy):
    """Weight R / (norm + gamma), sensitivity R: no clipping bound to tune, since R only rescales the learning
    rate.

    Example:
        >>> import equidp
        >>> equidp.Automatic(clipping_bound=1.0).stability
        0.01
    """

    clipping_bound: float = setting(1.0, "R, the length that long gradients are scaled to.")
    stability: float = setting(0.01, "gamma > 0 keeps small gradients small; 0.01 in the paper.")

    def __post_init__(self) -> None:
        check_number("(0, inf)", clipping_bound=self.clipping_bound, stability=self.stability)

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return self.clipping_bound / (norm + self.stability)

    def sensitivity(self, state: Any) -> float:
        return float(self.clipping_bound)
