"""check_policy(): whether a policy keeps its contract.

The kernel holds the guarantee either way; a broken contract costs accuracy, and this finds it first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from equidp.errors import PolicyError
from equidp.kernel.bounding import (
    example_rows,
    example_weights,
)
from equidp.kernel.policy import (
    Policy,
    Setting,
    check_settings,
    checked_state,
    copy_state,
)

_TRIALS = 50
_BATCH = 12
_SLACK = 1 + 1e-5  # float32 rounding


def check_policy(policy: Policy, num_groups: int = 2, *, noise_multiplier: float = 1.0) -> None:
    """Try a policy on random and extreme norms, groups and releases.

    Checked: settings are frozen and plain; the state is a NamedTuple of tensors; both rules can be applied to
    one example at a time; rows and weights are bounded for every group, present or not, and by each group's
    own bound where `released` names one; the rules do not change the state.

    Args:
        policy: ours or a user's.
        num_groups: K.
        noise_multiplier: sigma; 0 for a policy without privacy.

    Raises:
        PolicyError: names the promise that was broken, with an example.

    Example:
        >>> import equidp
        >>> equidp.check_policy(equidp.DPSGDF(clipping_bound=1.0), num_groups=3)
    """
    check_settings(policy)
    generator = torch.Generator().manual_seed(0)
    name = type(policy).__name__
    try:
        state: Any = policy.init(Setting(num_groups, float(_BATCH), noise_multiplier))
        checked_state(policy, state)
        for _ in range(_TRIALS):
            norms, groups = _batch(generator, num_groups)
            _check_rules(policy, state, norms, groups)
            state = _check_update(policy, state, norms[:1], groups[:1], generator)
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"{name} failed with {type(error).__name__}: {error}", field="policy") from error


def _batch(generator: torch.Generator, num_groups: int) -> tuple[Tensor, Tensor]:
    """Norms from 1e-12 to 1e12 with 0 and ties among them; groups at random, so that some are absent."""
    norms = 10 ** (24 * torch.rand(_BATCH, generator=generator) - 12)
    norms[:3] = torch.tensor([0.0, 1.0, 1.0])
    norms[3:8] = 10 ** (4 * torch.rand(5, generator=generator) - 2)
    return norms, torch.randint(0, num_groups, (_BATCH,), generator=generator)


def _check_rules(policy: Policy, state: Any, norms: Tensor, groups: Tensor) -> None:
    name, before = type(policy).__name__, copy_state(state)
    sensitivity = policy.sensitivity(state)
    if not sensitivity > 0 or math.isnan(sensitivity):
        raise PolicyError(
            f"{name} has sensitivity {sensitivity}; expected a number > 0.", field="sensitivity"
        )
    weights = example_weights(policy, state, norms, groups)
    # Called as it stands too: the kernel hands over a copy, so a change in place would go unnoticed above.
    policy.weight(state, norms[0].clone(), groups[0])
    if policy.statistics_ratio is not None:
        _check_rows(name, example_rows(policy, state, norms, groups))
        policy.statistics(state, norms[0].clone(), groups[0], *norms.new_zeros(policy.loss_terms))
    if not _equal(before, state) or policy.sensitivity(state) != sensitivity:
        raise PolicyError(
            f"{name} changes its state in statistics() or weight(); only update() may, from noisy sums.",
            field="state",
        )
    _check_weights(name, weights, norms, groups, sensitivity)
    _check_group_bounds(policy, state, weights, norms, groups)


def _check_rows(name: str, rows: Tensor) -> None:
    lengths = torch.linalg.vector_norm(rows.to(torch.float64), dim=1)
    if not (lengths <= _SLACK).all():
        raise PolicyError(
            f"{name}.statistics gives a row of norm {float(lengths.max())}; expected at most 1.",
            field="statistics",
        )


def _check_weights(name: str, weights: Tensor, norms: Tensor, groups: Tensor, sensitivity: float) -> None:
    if not (torch.isfinite(weights).all() and (weights >= 0).all()):
        raise PolicyError(
            f"{name}.weight gives {weights}; expected one finite weight >= 0 per example.", field="weight"
        )
    excess = weights.to(torch.float64) * norms.to(torch.float64) - sensitivity * _SLACK
    if (excess > 0).any():
        worst = int(excess.argmax())
        raise PolicyError(
            f"{name} gives weight {float(weights[worst])} to norm {float(norms[worst])} in group "
            f"{int(groups[worst])}, a contribution above its sensitivity {sensitivity}.",
            field="weight",
        )


def _check_group_bounds(policy: Policy, state: Any, weights: Tensor, norms: Tensor, groups: Tensor) -> None:
    """Where a policy names a bound for each group, individual accounting relies on it."""
    bounds = policy.released(state).get("clipping_bound")
    if bounds is None or bounds.dim() != 1:
        return
    given, allowed = weights.double() * norms.double(), bounds.double().cpu()[groups] * _SLACK
    if (given > allowed).any():
        worst = int((given - allowed).argmax())
        raise PolicyError(
            f"{type(policy).__name__} says in released() that group {int(groups[worst])} has clipping_bound "
            f"{float(bounds[groups[worst]])}, and lets a contribution be {float(given[worst])}.",
            field="released",
        )


def _check_update(policy: Policy, state: Any, norm: Tensor, group: Tensor, generator: torch.Generator) -> Any:
    """Return the state after a random release of any size; a second update must give the same state."""
    if policy.statistics_ratio is None:
        return state
    cells = example_rows(policy, state, norm, group).shape[1]
    spread = 10 ** float(4 * torch.rand((), generator=generator) - 1)
    released = spread * torch.randn(cells, generator=generator)
    new, again = (policy.update(copy_state(state), released.clone()) for _ in range(2))
    checked_state(policy, new)
    if not _equal(new, again):
        raise PolicyError(
            f"{type(policy).__name__}.update gives another state for the same state and release.",
            field="update",
        )
    return policy.update(new, _BATCH * torch.rand(cells, generator=generator))


def _equal(first: Any, second: Any) -> bool:
    return all(
        torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in zip(first, second, strict=True)
    )
