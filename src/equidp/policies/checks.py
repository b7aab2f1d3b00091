"""check_policy(): whether a policy keeps its contract.

The mechanism holds the guarantee either way; what a broken contract costs is accuracy, and this finds it before training does.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from equidp.errors import EquidpError, PolicyError
from equidp.kernel.policy import Policy

_TRIALS = 50
_BATCH = 12
_SLACK = 1 + 1e-5  # float32 rounding


def check_policy(policy: Policy, num_groups: int | None = None, *, noise_multiplier: float = 1.0) -> None:
    """Tries a policy on random and extreme norms, groups and releases.

    Checked: both rules can be applied to one example at a time, as the mechanism applies them; rows and weights are bounded for
    every group, present or not, and by each group's own bound where one is named; an example's row and weight do not depend on
    other examples; state changes by `observe` alone; saving and loading gives the same policy again. The policy itself is not
    changed.

    Args:
        policy: ours or a user's.
        num_groups: K; None: the policy's own `num_groups`, or 2 where it has none.
        noise_multiplier: what `prepare` is told; 0 for a policy without privacy.

    Raises:
        PolicyError: names the promise that was broken, with an example.
    """
    if not isinstance(policy, Policy):
        raise PolicyError(
            f"{policy!r} is no policy; expected an object such as equidp.DPSGD(clipping_bound=1.0)."
        )
    generator = torch.Generator().manual_seed(0)
    policy = copy.deepcopy(policy)
    groups: int = (policy.num_groups or 2) if num_groups is None else num_groups
    policy.prepare(noise_multiplier=noise_multiplier, expected_batch_size=float(_BATCH))
    for trial in range(_TRIALS):
        norms, members = _batch(generator, groups)
        try:
            _check_once(policy, norms, members)
            _check_observe(policy, norms[:1], members[:1], generator)
        except PolicyError:
            raise
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
            NotImplementedError,
            EquidpError,
        ) as error:
            raise PolicyError(
                f"{type(policy).__name__} failed in trial {trial} with {type(error).__name__}: {error}"
            ) from error


def _batch(generator: torch.Generator, num_groups: int) -> tuple[Tensor, Tensor]:
    """Norms from 1e-12 to 1e12 with 0 and ties among them; groups at random, so that some are missing."""
    norms = 10 ** (24 * torch.rand(_BATCH, generator=generator) - 12)
    norms[:3] = torch.tensor([0.0, 1.0, 1.0])
    norms[3:8] = 10 ** (4 * torch.rand(5, generator=generator) - 2)
    return norms, torch.randint(0, num_groups, (_BATCH,), generator=generator)


def _check_once(policy: Policy, norms: Tensor, groups: Tensor) -> None:
    from equidp.kernel.step import rowwise  # the mechanism knows policies, not the other way round

    name = type(policy).__name__
    before, sensitivity = policy.state_dict(), policy.sensitivity
    if not sensitivity > 0 or math.isnan(sensitivity):
        raise PolicyError(f"{name} has sensitivity {sensitivity}; expected a number > 0.")
    rules = {"weights": policy.weights}
    if policy.statistics_ratio is not None:
        rules["statistics"] = policy.statistics
    whole = {rule: compute(norms, groups) for rule, compute in rules.items()}
    if not _equal(before, policy.state_dict()) or policy.sensitivity != sensitivity:
        raise PolicyError(
            f"{name} changes its state in statistics() or weights(); only observe() may, from noisy sums."
        )
    if "statistics" in whole:
        _check_rows(name, whole["statistics"], norms)
    _check_weights(name, whole["weights"], norms, groups, sensitivity)
    _check_group_bounds(policy, whole["weights"], norms, groups)
    kept = torch.arange(2, len(norms), 3)
    for rule, compute in rules.items():
        rowwise(compute, norms, groups)
        alone, among_others = compute(norms[kept], groups[kept]), whole[rule][kept]
        if not torch.allclose(alone.to(torch.float64), among_others.to(torch.float64), rtol=1e-6):
            raise PolicyError(
                f"{name}.{rule} of an example changes with the other examples in the batch; it must depend on it alone."
            )


def _check_rows(name: str, rows: Tensor, norms: Tensor) -> None:
    if rows.dim() != 2 or len(rows) != len(norms):
        raise PolicyError(f"{name}.statistics has shape {tuple(rows.shape)}; expected [batch, cells].")
    lengths = torch.linalg.vector_norm(rows.to(torch.float64), dim=1)
    if not (lengths <= _SLACK).all():
        raise PolicyError(
            f"{name}.statistics gives a row of norm {float(lengths.max())}; expected at most 1."
        )


def _check_weights(name: str, weights: Tensor, norms: Tensor, groups: Tensor, sensitivity: float) -> None:
    if weights.shape != norms.shape or not (torch.isfinite(weights).all() and (weights >= 0).all()):
        raise PolicyError(f"{name}.weights gives {weights}; expected one finite weight >= 0 per example.")
    excess = weights.to(torch.float64) * norms.to(torch.float64) - sensitivity * _SLACK
    if (excess > 0).any():
        worst = int(excess.argmax())
        raise PolicyError(
            f"{name} gives weight {float(weights[worst])} to norm {float(norms[worst])} in group {int(groups[worst])}, "
            f"a contribution above its sensitivity {sensitivity}."
        )


def _check_group_bounds(policy: Policy, weights: Tensor, norms: Tensor, groups: Tensor) -> None:
    """Where a policy names a bound for each group, individual accounting tells its members that they gave no more."""
    bounds = policy.released_state().get("clipping_bound")
    if not isinstance(bounds, Tensor) or bounds.dim() != 1:
        return
    given, allowed = weights.double() * norms.double(), bounds.double().cpu()[groups] * _SLACK
    if (given > allowed).any():
        worst = int((given - allowed).argmax())
        raise PolicyError(
            f"{type(policy).__name__} says in released_state() that group {int(groups[worst])} has clipping_bound "
            f"{float(bounds[groups[worst]])}, and lets a contribution be {float(given[worst])}."
        )


def _check_observe(policy: Policy, norm: Tensor, group: Tensor, generator: torch.Generator) -> None:
    """A release, sometimes absurd as noise can be, then a reload of the state into a copy: both must go on alike."""
    if policy.statistics_ratio is None:
        return
    cells = policy.statistics(norm, group).shape[1]
    spread = 10 ** float(4 * torch.rand((), generator=generator) - 1)
    released = spread * torch.randn(cells, generator=generator)
    fresh = copy.deepcopy(policy)
    policy.observe(released)
    fresh.load_state_dict(policy.state_dict())
    release_again = _BATCH * torch.rand(cells, generator=generator)
    for each in (policy, fresh):
        each.observe(release_again)
    if not _equal(policy.state_dict(), fresh.state_dict()) or policy.sensitivity != fresh.sensitivity:
        raise PolicyError(f"{type(policy).__name__} goes on differently after load_state_dict(state_dict()).")


def _equal(first: dict[str, object], second: dict[str, object]) -> bool:
    return first.keys() == second.keys() and all(
        torch.allclose(
            torch.as_tensor(first[name]), torch.as_tensor(second[name]), rtol=0, atol=0, equal_nan=True
        )
        for name in first
    )
