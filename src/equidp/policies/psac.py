"""Per-sample adaptive clipping: normalises without blowing up small gradients (Xia et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equidp._validate import check_number
from equidp.kernel.policy import Policy
from equidp.policies.setting import CLIPPING_BOUND, setting


@dataclass(frozen=True)
class PSAC(Policy):
    """Weight C / (norm + r / (norm + r)), sensitivity C.

    Example:
        >>> import equidp
        >>> equidp.PSAC(clipping_bound=2.0).sensitivity(equidp.NoState())
        2.0
    """

    clipping_bound: float = setting(1.0, CLIPPING_BOUND)
    stability: float = setting(
        0.1, "r > 0: towards norm 0 the weight goes to C, and for norms well above r to C / norm."
    )

    def __post_init__(self) -> None:
        check_number("(0, inf)", clipping_bound=self.clipping_bound, stability=self.stability)

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return self.clipping_bound / (norm + self.stability / (norm + self.stability))

    def sensitivity(self, state: Any) -> float:
        return float(self.clipping_bound)
