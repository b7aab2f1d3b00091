"""DP-SGD: one clipping bound for everyone (Abadi et al., CCS 2016)."""

from __future__ import annotations

from torch import Tensor

from equidp._validate import check_number
from equidp.kernel.policy import Policy


class DPSGD(Policy):
    """Gradients longer than the clipping bound C are shortened to it: weight min(1, C / norm), sensitivity C."""

    def __init__(self, clipping_bound: float) -> None:
        check_number("(0, inf)", clipping_bound=clipping_bound)
        self.clipping_bound = float(clipping_bound)

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return (self.clipping_bound / norms).clamp(max=1.0)

    @property
    def sensitivity(self) -> float:
        return self.clipping_bound
