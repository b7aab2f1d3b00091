"""ASC: hard groups are drawn more often and bounded lower, at one epsilon for all (arXiv 2602.10820)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equidp.policies.dpsgd import DPSGD


@dataclass(frozen=True)
class ASC(DPSGD):
    """DP-SGD for groups of several rates at one epsilon: the share of the bound of each group follows.

    Adaptively Sampled and Clipped worst-case group optimization (Cairney-Leeming, Sanyal and Lampert, arXiv
    2602.10820) raises the sampling rate q_k of hard groups and lowers their bound C_k, so that all groups
    keep one guarantee. A plan with this method does so: `rates` are multiples of the sample rate, and the
    method fixes `protect_by="scaling"`, by which each group's share of the bound is the largest at which its
    epsilon, by the account of its own rate and bound, is at most that of the run. Alone, as a policy, it is
    DP-SGD.

    The paper adapts rates and bounds during training. Here rates are public and fixed before the first step,
    so that the account of each group is exact, by privacy losses too; rates that follow from releases would
    need an account of each way that they can go. Without rates it is DP-SGD.

    Example:
        >>> import equidp
        >>> plan = equidp.Plan(batch_size=50, epochs=4, delta=1e-5, rates={"rare": 3.0})
        >>> found = plan.resolve("asc", 1000, equidp.Target(2.0, accountant="rdp"))
        >>> {name: round(share, 2) for name, share in found.bound_shares.items()}
        {'rare': 0.43, '*': 1.0}
    """

    needs_groups: ClassVar[bool] = True
