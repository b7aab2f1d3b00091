"""One example cannot exceed its bound."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from equidp.errors import PolicyError
from equidp.kernel.policy import Policy


def step_weights(policy: Policy, norms: Tensor, groups: Tensor) -> Tensor:
    """The weights that the private step would give these examples now, [batch]: example by example, capped, by a dropped copy."""
    sensitivity = float(policy.sensitivity)
    return capped_weights(rowwise(copy.deepcopy(policy).weights, norms, groups), norms, sensitivity)


def share_clipped(policy: Policy, weights: Tensor, groups: Tensor) -> float:
    """Share of examples whose weight, as `step_weights` has it, is below that of a vanishing gradient of their group."""
    unclipped = step_weights(policy, torch.zeros_like(weights), groups)
    return float((weights < unclipped).double().mean())


_SMALLEST_NORM = 1e-10
"""Norms below this may have underflowed (their squares vanish in float32), so the cap treats them as this large."""


def capped_weights(weights: Tensor, norms: Tensor, sensitivity: float | Tensor) -> Tensor:
    """Weights brought into [0, sensitivity / norm]; 0 where the weight is not a number. Shapes [batch]."""
    caps = sensitivity / norms.clamp_min(_SMALLEST_NORM)
    weights = weights.to(norms.dtype).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return torch.minimum(weights.clamp_min_(0.0), caps)


def rowwise(rule: Callable[[Tensor, Tensor], Tensor], norms: Tensor, groups: Tensor) -> Tensor:
    """`rule(norms, groups)` applied to each example alone, so that no row can depend on another example.

    The rule gets copies: what it changes in place is not what the cap is computed from.

    Args:
        rule: maps norms [1] and groups [1] to a tensor [1, ...]; from torch operations without control flow on the values.
        norms, groups: [batch], not empty.

    Raises:
        PolicyError: the rule cannot be applied example by example.
    """

    try:
        return torch.vmap(rule)(norms.unsqueeze(1).clone(), groups.unsqueeze(1).clone()).squeeze(1)
    except IndexError as error:
        raise PolicyError(
            f"{getattr(rule, '__qualname__', rule)} failed on some group ({error}); make the policy for as many as the data has."
        ) from error
    except Exception as error:
        raise PolicyError(
            f"{getattr(rule, '__qualname__', rule)} cannot be applied to one example at a time ({error}). Use torch operations "
            "without Python branches on the values (torch.where instead of if), and return one row per example."
        ) from error
