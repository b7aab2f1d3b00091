"""DPSGD-Global: one scale for all gradients, those beyond a strict bound dropped (Bu et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from equidp._validate import check_number
from equidp.errors import SettingError
from equidp.kernel.policy import Policy


class Global(Policy):
    """Weight C / Z where norm <= Z, else 0: directions stay as they are, at the price of losing the longest gradients.

    Args:
        clipping_bound: C_0, what the longest kept gradient is scaled to.
        strict_bound: Z >= C_0, beyond which gradients are dropped.
    """

    def __init__(self, clipping_bound: float, strict_bound: float) -> None:
        check_number("(0, inf)", clipping_bound=clipping_bound, strict_bound=strict_bound)
        if strict_bound < clipping_bound:
            raise SettingError(
                f"strict_bound={strict_bound} is below clipping_bound={clipping_bound}; expected Z >= C_0."
            )
        self.clipping_bound = float(clipping_bound)
        self.strict_bound = float(strict_bound)

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return torch.where(norms <= self.strict_bound, self.clipping_bound / self.strict_bound, 0.0)

    @property
    def sensitivity(self) -> float:
        return self.clipping_bound

    def released_state(self) -> dict[str, Tensor | float]:
        return {"clipping_bound": self.clipping_bound, "Z": self.strict_bound}
