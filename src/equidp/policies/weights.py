"""Weights that a private step gives to examples, for values about a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equidp.kernel.bounding import capped_weights, example_weights
from equidp.kernel.noise import to_double
from equidp.kernel.policy import Policy, copy_state


def step_weights(policy: Policy, state: Any, norms: Tensor, groups: Tensor) -> Tensor:
    """Return the capped weights that a step under this state gives these examples, [batch]."""
    sensitivity = float(policy.sensitivity(copy_state(state)))
    return capped_weights(example_weights(policy, state, norms, groups), norms, sensitivity)


def share_clipped(policy: Policy, state: Any, weights: Tensor, groups: Tensor) -> float:
    """Return the share of examples whose weight from `step_weights` is below that of a vanishing gradient.

    The gradient that it is compared with is of the same group.
    """
    unclipped = step_weights(policy, state, torch.zeros_like(weights), groups)
    return float(to_double(weights < unclipped).mean())
