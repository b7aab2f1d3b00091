"""Automatic clipping: every gradient normalised (Bu et al., 2022, AUTO-S)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equidp.policies.ranges import Log
from equidp.policies.setting import Bounded, setting


@dataclass(frozen=True)
class Automatic(Bounded):
    """Weight R / (norm + gamma), sensitivity R, which only rescales the learning rate: no bound to tune.

    Example:
        >>> import equidp
        >>> equidp.Automatic(clipping_bound=1.0).stability
        0.01
    """

    clipping_bound: float = setting(1.0, "R, the length that long gradients are scaled to.")
    stability: float = setting(
        0.01, "gamma > 0 keeps small gradients small; 0.01 in the paper.", tune=Log(0.001, 1)
    )

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return self.clipping_bound / (norm + self.stability)
