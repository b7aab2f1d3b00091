"""Weights and bounds of a private step, for values about it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equidp.kernel.bounding import capped_weights, example_weights, group_bounds
from equidp.kernel.noise import to_double
from equidp.kernel.policy import Policy


def sensitivity_of(policy: Policy, state: Any, num_groups: int) -> float:
    """Return the sensitivity S of a step under this state, the largest bound of all groups.

    >>> import equidp
    >>> sensitivity_of(equidp.DPSGD(2.0), equidp.NoState(), 1)
    2.0
    """
    return float(group_bounds(policy, state, num_groups).max())


def released_values(policy: Policy, state: Any, num_groups: int) -> dict[str, Tensor]:
    """Return what follows from releases, by name: the clipping bound, one or [K] if groups differ, and
    `Policy.released`."""
    bounds = group_bounds(policy, state, num_groups)
    bound = bounds if policy.needs_groups or (bounds != bounds[0]).any() else bounds[0]
    return {"clipping_bound": bound, **policy.released(state)}


def step_weights(policy: Policy, state: Any, norms: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """Return the capped weights that a step under this state gives these examples, [batch]."""
    sensitivity = sensitivity_of(policy, state, num_groups)
    return capped_weights(example_weights(policy, state, norms, groups), norms, sensitivity)


def share_clipped(policy: Policy, state: Any, weights: Tensor, groups: Tensor, num_groups: int) -> float:
    """Return the share of examples with a weight from `step_weights` below a vanishing gradient's weight.

    It is compared with a gradient of the same group.
    """
    unclipped = step_weights(policy, state, torch.zeros_like(weights), groups, num_groups)
    return float(to_double(weights < unclipped).mean())
