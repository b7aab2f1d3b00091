"""Per-sample adaptive clipping: normalised, but small gradients are not blown up (Xia et al., 2022)."""

from __future__ import annotations

from torch import Tensor

from equidp._validate import check_number
from equidp.kernel.policy import Policy


class PSAC(Policy):
    """Weight C / (norm + r / (norm + r)), sensitivity C.

    Args:
        clipping_bound: C.
        stability: r > 0: towards norm 0 the weight goes to C, and for norms well above r to C / norm.
    """

    def __init__(self, clipping_bound: float, *, stability: float = 0.1) -> None:
        check_number("(0, inf)", clipping_bound=clipping_bound, stability=stability)
        self.clipping_bound = float(clipping_bound)
        self.stability = float(stability)

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return self.clipping_bound / (norms + self.stability / (norms + self.stability))

    @property
    def sensitivity(self) -> float:
        return self.clipping_bound
