"""Per-sample adaptive clipping: normalises without blowing up small gradients (Xia et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equidp.policies.ranges import Log
from equidp.policies.setting import Bounded, setting


@dataclass(frozen=True)
class PSAC(Bounded):
    """Weight C / (norm + r / (norm + r)), sensitivity C.

    Example:
        >>> import equidp
        >>> equidp.PSAC(clipping_bound=2.0).bound(equidp.NoState(), group=0)
        2.0
    """

    stability: float = setting(
        0.1,
        "r > 0: towards norm 0 the weight goes to C, and for norms well above r to C / norm.",
        tune=Log(0.01, 1),
    )

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return self.clipping_bound / (norm + self.stability / (norm + self.stability))
