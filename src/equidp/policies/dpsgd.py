"""DP-SGD: one clipping bound for everyone (Abadi et al., CCS 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equidp.policies.setting import Bounded


@dataclass(frozen=True)
class DPSGD(Bounded):
    """Shortens gradients longer than the clipping bound C to it: weight min(1, C / norm), sensitivity C.

    Example:
        >>> import torch, equidp
        >>> policy = equidp.DPSGD(clipping_bound=2.0)
        >>> policy.weight(equidp.NoState(), torch.tensor(4.0), torch.tensor(0))
        tensor(0.5000)
    """

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return (self.clipping_bound / norm).clamp(max=1.0)
