"""Automatic clipping: every gradient normalised (Bu et al., 2022, AUTO-S)."""

from __future__ import annotations

from torch import Tensor

from equidp._validate import check_number
from equidp.kernel.policy import Policy


class Automatic(Policy):
    """Weight R / (norm + gamma), sensitivity R: no clipping bound to tune, since R only rescales the learning rate.

    Args:
        clipping_bound: R.
        stability: gamma > 0, keeps small gradients small; 0.01 in the paper.
    """

    def __init__(self, clipping_bound: float, *, stability: float = 0.01) -> None:
        check_number("(0, inf)", clipping_bound=clipping_bound, stability=stability)
        self.clipping_bound = float(clipping_bound)
        self.stability = float(stability)

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return self.clipping_bound / (norms + self.stability)

    @property
    def sensitivity(self) -> float:
        return self.clipping_bound
