"""DP-SGD: one clipping bound for everyone (Abadi et al., CCS 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equidp.policies.by_group import of_group
from equidp.policies.setting import Checked, setting


@dataclass(frozen=True)
class DPSGD(Checked):
    """Clips gradients to the clipping bound C: weight min(1, C / norm), sensitivity C.

    C may differ by public groups, and then epsilon differs too. A group with a share c of the largest bound
    pays the cost of noise sigma / c (`Run.epsilon_by_group`). Shares are at least 1/16.

    Example:
        >>> import torch, equidp
        >>> policy = equidp.DPSGD(clipping_bound=2.0)
        >>> policy.weight(equidp.NoState(), torch.tensor(4.0), torch.tensor(0))
        tensor(0.5000)
    """

    clipping_bound: float | Mapping[str, float] = setting(
        1.0, "Clipping bound C; in Python also by name of a group, as {'rare': 1.0, '*': 0.5}."
    )

    def bound(self, state: Any, group: Tensor) -> float | Tensor:
        return of_group(self.clipping_bound, group)
