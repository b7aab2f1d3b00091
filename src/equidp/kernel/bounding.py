"""Enforce each example's bound: rows of norm at most 1, capped weights, one example at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import threshold

from equidp.errors import PolicyError, SettingError, shape_text
from equidp.kernel.engine import Context, Measured
from equidp.kernel.noise import to_double
from equidp.kernel.policy import Policy, copy_state

SMALLEST_NORM = 1e-10
"""Norms below this may have underflowed (their squares vanish in float32), so bounds treat them as this
large."""
ROUNDING = 2.0**-12
"""The most that rounding may add to one example's effect on a computed sum, as a share of the sensitivity S.

Noise is scaled to S (1 + ROUNDING). For gradients, this share is used up as follows. Let n examples, at most
2^25, be added in float64, in k parts of at most m = 2^13 examples each:

| what is rounded | adds at most |
| --- | --- |
| the norm that caps a weight (`engine.Measured`) | 2^-13 S |
| weight and cap, in float32 or wider | 2^-20 S |
| the additions, in the sums with and without the example | 2 (m + k) 2^-53 n S |

The last row is 2^-32 S for 1,000 examples at once, and 2^-19 S for 10^6. If the label of an example may use
only a share c of S, the first two rows have c S, and the last row has S. This is why c must be at least 1/16,
which gives 2^-15 c S for those 10^6. Individual limits are multiples of a grid, 0.01 by default.

The last row holds for any values in any order. A sum of m numbers is off by at most (m - 1) u / (1 - (m - 1)
u) times the sum of their absolute values, with u = 2^-53 (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 4.2). This holds in each coordinate, and therefore in L2 norm (Minkowski's
inequality).
"""
SMALLEST_SENSITIVITY, LARGEST_SENSITIVITY = 1e-30, 1e30
"""Range of sensitivities that can cap a weight in float32. Nearer to the ends of float32's range, rounding
changes a cap by far more than `ROUNDING` allows, or makes it infinite."""
_ROWS_AT_A_TIME = 4096
_FEWEST_UNITS = 2.0**20
"""Smallest cap on a weight, in units of the smallest positive number. A cap is a multiple of that number."""


def capped_weights(weights: Tensor, norms: Tensor, sensitivity: float | Tensor) -> Tensor:
    """Return weights [batch] clamped to [0, sensitivity / norm]. The batch may be empty.

    Formal guarantee: weight * norm <= sensitivity for each example whose true norm is at most max(norm,
    1e-10). The sensitivity is one number, or one per example, [batch]. It is at least 1/16 of
    `SMALLEST_SENSITIVITY`. If it is infinite, there is no cap.

    | weight | norm | result |
    | --- | --- | --- |
    | <= sensitivity / norm | any | unchanged |
    | above it | > 0 | sensitivity / norm |
    | any | 0 or below 1e-10 | at most sensitivity / 1e-10 |
    | any | so large that rounding changes sensitivity / norm by more than 2^-20 of it | 0 |
    | negative, NaN or infinite | any | 0 |
    | any | NaN or infinite | 0 |

    Raises:
        SettingError: norms are in float16 or bfloat16, which round by more than `ROUNDING` allows.
    """
    if norms.dtype not in (torch.float32, torch.float64):
        message = f"the engine gives norms in {norms.dtype}; expected float32 or float64."
        raise SettingError(message, field="engine")
    caps = sensitivity / norms.clamp_min(SMALLEST_NORM)
    kind = torch.finfo(caps.dtype)
    caps = threshold(caps, _FEWEST_UNITS * kind.tiny * kind.eps, 0.0)
    weights = weights.to(norms.dtype).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    capped = torch.minimum(weights.clamp_min_(0.0), caps)
    return capped.nan_to_num_(nan=0.0)


def bounded_shares(shares: Tensor, norms: Tensor) -> Tensor:
    """Return shares of the sensitivity, [batch], clamped to [0, 1]; NaN becomes 0."""
    shares = _check_shape(shares, norms, "share limits").to(norms.dtype)
    return shares.nan_to_num(nan=0.0).clamp(0.0, 1.0)


def bounded_rows(rows: Tensor, bound: float | Tensor) -> Tensor:
    """Return rows [batch, d] in float64, scaled to norm <= bound: one bound, or one per row, [batch].

    Formal guarantee: adding or removing one row moves the exact sum of the result by at most that row's
    `bound` in L2 norm. It moves the computed sum (`summed_rows`) by at most bound * (1 + ROUNDING), if bounds
    differ by a factor of at most 16. A row with an infinite or NaN entry becomes zero. An empty batch sums to
    zero.
    """
    rows = to_double(rows)
    rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0)
    norms = torch.linalg.vector_norm(rows, dim=1)
    bound = bound.to(rows) if isinstance(bound, Tensor) else bound
    return rows * torch.clamp(bound / norms.clamp_min(SMALLEST_NORM), max=1.0).unsqueeze(1)


def summed_rows(rows: Tensor) -> Tensor:
    """Return the sum [d] of float64 rows [batch, d], added in blocks of 4,096 rows and then over blocks.

    Formal guarantee: for n rows of norm at most `bound` each, in any order, the result is off by at most
    (4096 + n / 4096) 2^-53 n `bound` in L2 norm. This is 2^-17 `bound` for n = 10^7.
    """
    while len(rows) > _ROWS_AT_A_TIME:
        rows = torch.stack([block.sum(dim=0) for block in rows.split(_ROWS_AT_A_TIME)])
    return rows.sum(dim=0)


def group_bounds(policy: Policy, state: Any, num_groups: int) -> Tensor:
    """Return the policy's bounds of all groups, [num_groups], float64, whether present in a batch or not."""
    if type(policy).bound is Policy.bound:
        bound = float(policy.sensitivity(copy_state(state)))
        return torch.full((num_groups,), bound, dtype=torch.float64)

    @wraps(policy.bound)
    def bound_of(own: Any, group: Tensor) -> Tensor:
        return torch.as_tensor(policy.bound(own, group), dtype=torch.float64).expand(group.shape)

    bounds: Tensor = each_alone(bound_of, state, torch.arange(num_groups), at_once=_is_own(policy))
    return bounds


def checked_sensitivity(policy: Policy, state: Any, noise_multiplier: float, num_groups: int = 1) -> float:
    """Return the sensitivity S under this state, the largest bound of a group; infinite only without noise.

    A sensitivity below `SMALLEST_SENSITIVITY` is raised to it before it caps weights and scales noise. Bounds
    that adapt to gradients of 0 can become that small.

    Raises:
        PolicyError: noise cannot be scaled to it.
    """
    sensitivity = float(group_bounds(policy, state, num_groups).max())
    if sensitivity == math.inf and noise_multiplier == 0:
        return sensitivity
    if not 0 < sensitivity <= LARGEST_SENSITIVITY:
        raise PolicyError(
            f"{type(policy).__name__} has sensitivity {sensitivity}; expected a number in "
            f"(0, {LARGEST_SENSITIVITY:g}] for noise multiplier {noise_multiplier}.",
            field="sensitivity",
        )
    return max(sensitivity, SMALLEST_SENSITIVITY)


def example_weights(policy: Policy, state: Any, norms: Tensor, groups: Tensor) -> Tensor:
    """Return the policy's weights, [batch], before they are capped.

    Formal guarantee: an example's weight is a function of the state and its own norm and group
    (`each_alone`). The rules of equidp's own methods are elementwise, so they are computed on the whole batch
    to save time. `tests/conformance/test_policies.py` compares both ways.
    """
    weights = each_alone(policy.weight, state, norms, groups, at_once=_is_own(policy))
    return _check_shape(weights, norms, "weight")


def example_rows(
    policy: Policy, state: Any, norms: Tensor, groups: Tensor, terms: Tensor | None = None
) -> Tensor:
    """Return the policy's rows of statistics, [batch, cells], before they are bounded, as `example_weights`.

    Terms, [batch, terms], come from `measured_terms`. None: zeros.
    """
    terms = norms.new_zeros(len(norms), policy.loss_terms) if terms is None else terms
    examples = norms, groups, *terms.unbind(dim=1)
    rows = each_alone(policy.statistics, state, *examples, at_once=_is_own(policy))
    return _check_shape(rows, norms, "statistics", dimensions=2)


def example_context(policy: Policy, state: Any, groups: Tensor) -> Context:
    """Return the context of each example's loss, [batch, ...] each, or () if there is none or no example.

    Formal guarantee: an example's context is a function of the state and its own group. Its gradient is
    therefore a function of the example, the parameters and releases, so a cap on the gradient bounds what the
    example moves.
    """
    return each_alone(policy.context, state, groups) if policy.loss_terms and len(groups) else ()


def measured_terms(policy: Policy, measured: Measured) -> tuple[Tensor, Tensor | None]:
    """Return the norms, [batch], and loss terms, [batch, terms] or None, of measured examples.

    Formal guarantee: both are functions of the example (`engine.Measured`). If a term is not finite, the norm
    is infinite. Terms affect only the example's own row of statistics, which is bounded.
    """
    norms = measured.norms.detach()
    if not policy.loss_terms or measured.terms is None:
        return norms, None
    terms = measured.terms.detach().to(norms)
    return torch.where(torch.isfinite(terms).all(dim=1), norms, torch.inf), terms


def each_alone(rule: Callable[..., Any], state: Any, *examples: Tensor, at_once: bool = False) -> Any:
    """Return `rule(state, *example)` of each example, by `torch.vmap`, or `at_once` for elementwise rules.

    Formal guarantee: the result for an example is a function of the state and the example's own numbers, such
    as its norm and group. The rule receives copies, so it can overwrite neither the state nor the numbers
    that cap weights.

    Raises:
        PolicyError: the rule uses a group that the state does not have, branches on a value in Python, or
            mixes examples.
    """
    name = getattr(rule, "__qualname__", repr(rule))
    apply = partial(rule, copy_state(state, examples[0].device))
    try:
        return (apply if at_once else torch.vmap(apply))(*(each.clone() for each in examples))
    except IndexError as error:
        raise PolicyError(
            f"{name} failed on some group ({error}); the state must be made for as many groups as the data "
            "has.",
            field="state",
        ) from error
    except Exception as error:
        raise PolicyError(
            f"{name} cannot be applied to one example at a time ({error}). Use torch operations without "
            "Python branches on the values (torch.where instead of if), and return one row or number per "
            "example.",
            field=name,
        ) from error


def _is_own(policy: Policy) -> bool:
    """Return whether a policy's rules are equidp's, which are elementwise."""
    return type(policy).__module__.startswith("equidp.policies.")


def _check_shape(values: Tensor, norms: Tensor, rule: str, dimensions: int = 1) -> Tensor:
    if values.dim() != dimensions or len(values) != len(norms):
        shape = shape_text(values, "batch" if values.shape[:1] == norms.shape else "?")
        expected = "[batch]" if dimensions == 1 else "[batch, cells]"
        raise PolicyError(f"{rule} has shape {shape}; expected one per example, {expected}.", field=rule)
    return values
