"""Penalties: public factors times further terms, added to the loss of each example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equidp.errors import PolicyError
from equidp.kernel.engine import Engine, Measured, PenalisingEngine, Penalty
from equidp.kernel.inputs import Inputs
from equidp.kernel.policy import Policy, checked_state, copy_state


def penalty_of(policy: Policy, state: Any) -> Penalty | None:
    """Penalty that the policy adds to losses under this state; None without one."""
    return policy.penalty(copy_state(state)) if policy.penalises else None


def measure(
    engine: Any, penalty: Penalty | None, inputs: Inputs, targets: Tensor, groups: Tensor
) -> Measured:
    """Measure examples with the engine; a penalty, where there is one, is part of their losses.

    Formal guarantee: an example's gradient follows from the example, its group, the parameters and the
    penalty. The penalty follows from earlier releases, so it is the same whether or not an example is there:
    clipping the gradient bounds its part in the sum as it does without a penalty.

    | case | result |
    | --- | --- |
    | no penalty | what the engine measures by itself |
    | a term or its gradient is infinite or NaN | the example's norm is too; the step leaves the example out |
    | a factor is infinite or NaN | the same, for all of its group |
    | a group that is absent from the batch | its factors are not used |
    | an engine without penalties, factors for another number of groups | PolicyError |

    Args:
        engine: an `Engine`, and a `PenalisingEngine` where there is a penalty.
        penalty: of `penalty_of`, from before any of the batch was measured.
        inputs, targets, groups: [batch, ...], batch >= 1.
    """
    if penalty is None:
        plain: Engine = engine
        return plain(inputs, targets)
    if not hasattr(engine, "penalised"):
        raise PolicyError(
            f"{type(engine).__name__} cannot add penalties to losses; make the engine by "
            "make_engine('functional', model, loss)."
        )
    _check_groups(penalty, groups)
    penalising: PenalisingEngine = engine
    factors = penalty.factors.to(groups.device)[groups]
    return penalising.penalised(inputs, targets, factors, penalty.direction)


def rehearse_penalty(
    policy: Policy, state: Any, groups: Tensor, parameters: Sequence[Tensor]
) -> Tensor | None:
    """Refuses a policy whose penalties cannot be added to losses, before anything is spent.

    Returns:
        the terms of made-up examples of these groups, [groups, 2]; None where the policy adds nothing.

    Raises:
        PolicyError: says what is wrong.
    """
    if not policy.penalises:
        return None
    name, size = type(policy).__name__, sum(parameter.numel() for parameter in parameters)
    try:
        penalty = penalty_of(policy, state)
        after = state_after(policy, state, [torch.zeros_like(each) for each in parameters])
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"penalty or after_gradient of {name} fails: {error!r}.") from error
    if not isinstance(penalty, Penalty):
        raise PolicyError(f"penalty of {name} is {penalty!r}; expected a Penalty.")
    shapes = tuple(penalty.factors.shape[1:]), tuple(penalty.direction.shape)
    if shapes != ((2,), (size,)):
        raise PolicyError(
            f"{name} gives penalties with factors {list(penalty.factors.shape)} and a direction "
            f"{list(penalty.direction.shape)}; expected two factors for each group, [groups, 2], and a "
            f"number for each parameter, [{size}]."
        )
    _check_groups(penalty, groups)
    if [part.shape for part in after] != [part.shape for part in state]:
        raise PolicyError(f"after_gradient of {name} changes the shapes of its state; keep them.")
    return torch.zeros(len(groups), 2, device=groups.device)


def _check_groups(penalty: Penalty, groups: Tensor) -> None:
    if len(penalty.factors) <= int(groups.max()):
        raise PolicyError(
            f"there are penalties for {len(penalty.factors)} groups, and an example of group "
            f"{int(groups.max())}; the state must be made for as many groups as the data has."
        )


def state_after(policy: Policy, state: Any, totals: Sequence[Tensor]) -> Any:
    """The state after a step whose private gradient is this, parameter by parameter.

    Formal guarantee: it follows from the state and from releases, so it costs nothing.
    """
    if not policy.penalises:
        return state
    gradient = torch.cat([total.flatten() for total in totals]).to("cpu", torch.float32)
    return copy_state(checked_state(policy, policy.after_gradient(copy_state(state), gradient)))
