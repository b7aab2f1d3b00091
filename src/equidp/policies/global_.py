"""DPSGD-Global: one scale for all gradients, those beyond a strict bound dropped (Bu et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equidp.errors import SettingError
from equidp.policies.ranges import Log
from equidp.policies.setting import Bounded, setting


@dataclass(frozen=True)
class Global(Bounded):
    """Weight C / Z if norm <= Z, else 0: keeps directions, but loses the longest gradients.

    Example:
        >>> import equidp
        >>> equidp.Global(clipping_bound=1.0, strict_bound=50.0).bound(equidp.NoState(), group=0)
        1.0
    """

    strict_bound: float = setting(
        50.0,
        "Z >= C, the norm beyond which gradients are dropped.",
        tune=Log(1, 20, times="clipping_bound"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strict_bound < self.clipping_bound:
            raise SettingError(
                f"strict_bound={self.strict_bound} is below clipping_bound={self.clipping_bound}; expected Z "
                ">= C."
            )

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return torch.where(norm <= self.strict_bound, self.clipping_bound / self.strict_bound, 0.0)

    def released(self, state: Any) -> dict[str, Tensor]:
        return {"Z": torch.tensor(self.strict_bound, dtype=torch.float64)}
