"""Plain SGD: no clipping, no noise, no privacy. The baseline that the cost of privacy is measured against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equidp.kernel.policy import Policy


@dataclass(frozen=True)
class SGD(Policy):
    """Leaves every gradient as it is: infinite sensitivity, no noise, infinite epsilon.

    Example:
        >>> import equidp
        >>> equidp.SGD().private
        False
    """

    private: ClassVar[bool] = False

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return torch.ones_like(norm)

    def bound(self, state: Any, group: Tensor) -> float:
        return math.inf
