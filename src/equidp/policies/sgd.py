"""Plain SGD: no clipping, no noise, no privacy. The reference that the price of privacy is measured against."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equidp.kernel.policy import Policy


class SGD(Policy):
    """Every gradient as it is. Its sensitivity is infinite, so it takes no noise and its epsilon is infinite."""

    def weights(self, norms: Tensor, groups: Tensor) -> Tensor:
        return torch.ones_like(norms)

    @property
    def sensitivity(self) -> float:
        return math.inf
