"""Checks of a policy: its settings, and whether it keeps its contract.

The kernel enforces the guarantee in any case. A broken contract costs accuracy, and this finds it early.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from equidp.errors import EquidpError, PolicyError
from equidp.kernel.bounding import example_rows, example_weights, group_bounds
from equidp.kernel.policy import Policy, Setting, checked_state, copy_state
from equidp.policies.by_group import values_in

_TRIALS = 50
_BATCH = 12
_SLACK = 1 + 1e-5  # float32 rounding


def check_policy(policy: Policy, num_groups: int = 2, *, noise_multiplier: float = 1.0) -> None:
    """Test a policy on random and extreme norms, groups and releases.

    Settings must be frozen and plain, and the state must be a NamedTuple of tensors. Rules must apply to one
    example at a time and must not change the state. Rows must have norm at most 1, and weight * norm must be
    at most the bound of the example's group.

    Args:
        policy: policy to test.
        num_groups: number of groups K.
        noise_multiplier: noise multiplier sigma, or 0 for a policy without privacy.

    Raises:
        PolicyError: a requirement is violated. The message names it, with an example.

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
            _check_rules(policy, state, norms, groups, num_groups)
            if policy.statistics_ratio is not None:
                state = _next_state(policy, state, norms[:1], groups[:1], generator)
    except EquidpError:
        raise
    except Exception as error:
        raise PolicyError(f"{name} failed with {type(error).__name__}: {error}", field="policy") from error


def check_settings(policy: object) -> None:
    """Raise unless it is a frozen dataclass of public values: state is explicit or absent.

    Raises:
        PolicyError: the message names the field, or what else is wrong.
    """
    name = type(policy).__name__
    if not isinstance(policy, Policy):
        raise PolicyError(f"policy={policy!r}; expected a policy, such as equidp.DPSGD(clipping_bound=1.0).")
    if not (is_dataclass(policy) and type(policy).__dataclass_params__.frozen):
        message = f"{name} is not a frozen dataclass; write @dataclass(frozen=True) above the class."
        raise PolicyError(message, field="policy")
    for field in (each.name for each in fields(policy)):
        if callable(getattr(Policy, field, None)):
            raise PolicyError(f"{name} has a field {field!r}, the name of a rule; rename it.", field=field)
        value = getattr(policy, field)
        if not all(isinstance(each, int | float | str | None) for each in values_in(value)):
            raise PolicyError(
                f"{name}.{field} is a {type(value).__name__}; expected a number, a text, None, or numbers by "
                "name of a group. Keep tensors in the state.",
                field=field,
            )
    if type(policy).bound is not Policy.bound and type(policy).sensitivity is not Policy.sensitivity:
        message = (
            f"{name} has a bound and a sensitivity, which is the largest bound; leave sensitivity() out."
        )
        raise PolicyError(message, field="sensitivity")


def _batch(generator: torch.Generator, num_groups: int) -> tuple[Tensor, Tensor]:
    """Norms from 1e-12 to 1e12 with 0 and ties among them; groups at random, so that some are absent."""
    norms = 10 ** (24 * torch.rand(_BATCH, generator=generator) - 12)
    norms[:3] = torch.tensor([0.0, 1.0, 1.0])
    norms[3:8] = 10 ** (4 * torch.rand(5, generator=generator) - 2)
    return norms, torch.randint(0, num_groups, (_BATCH,), generator=generator)


def _check_rules(policy: Policy, state: Any, norms: Tensor, groups: Tensor, num_groups: int) -> None:
    name, before = type(policy).__name__, copy_state(state)
    bounds = group_bounds(policy, state, num_groups)
    if not (bounds >= 0).all() or not bounds.max() > 0:
        raise PolicyError(f"{name} has bounds {bounds.tolist()}; expected numbers > 0.", field="sensitivity")
    weights = example_weights(policy, state, norms, groups)
    # Called as they stand too: the kernel hands over copies, so a change in place would go unnoticed above.
    policy.bound(state, groups[0])
    policy.weight(state, norms[0].clone(), groups[0])
    if policy.statistics_ratio is not None:
        lengths = torch.linalg.vector_norm(example_rows(policy, state, norms, groups).double(), dim=1)
        policy.statistics(state, norms[0].clone(), groups[0], *norms.new_zeros(policy.loss_terms))
        if not (lengths <= _SLACK).all():
            raise PolicyError(
                f"{name}.statistics gives a row of norm {float(lengths.max())}; expected at most 1.",
                field="statistics",
            )
    if not _are_equal(before, state):
        raise PolicyError(
            f"{name} changes its state in a rule; only update() may, from noisy sums.", field="state"
        )
    if not (torch.isfinite(weights).all() and (weights >= 0).all()):
        raise PolicyError(
            f"{name}.weight gives {weights}; expected one finite weight >= 0 per example.", field="weight"
        )
    excess = weights.double() * norms.double() - bounds[groups] * _SLACK
    if (excess > 0).any():
        worst = int(excess.argmax())
        raise PolicyError(
            f"{name} gives weight {float(weights[worst])} to norm {float(norms[worst])} in group "
            f"{int(groups[worst])}, above that group's bound {float(bounds[groups[worst]])}.",
            field="weight",
        )


def _next_state(policy: Policy, state: Any, norm: Tensor, group: Tensor, generator: torch.Generator) -> Any:
    """Return the state after a random release of any size. A second update must give the same state."""
    cells = example_rows(policy, state, norm, group).shape[1]
    spread = 10 ** float(4 * torch.rand((), generator=generator) - 1)
    released = spread * torch.randn(cells, generator=generator)
    new, again = (policy.update(copy_state(state), released.clone()) for _ in range(2))
    if not _are_equal(checked_state(policy, new), again):
        raise PolicyError(
            f"{type(policy).__name__}.update gives another state for the same state and release.",
            field="update",
        )
    return policy.update(new, _BATCH * torch.rand(cells, generator=generator))


def _are_equal(first: Any, second: Any) -> bool:
    return all(
        torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in zip(first, second, strict=True)
    )
