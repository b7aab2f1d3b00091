"""Penalties: public factors times further terms, added to the loss of each example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equidp.errors import PolicyError
from equidp.kernel.engine import Engine, Measured, PenalisingEngine, Penalty
from equidp.kernel.inputs import Inputs
from equidp.kernel.policy import Policy, checked_state, copied


def penalty_of(policy: Policy, state: Any) -> Penalty | None:
    """What the policy adds to losses under this state; None where it adds nothing."""
    return policy.penalty(copied(state)) if policy.penalises else None


def measure(
    engine: Any, penalty: Penalty | None, inputs: Inputs, targets: Tensor, groups: Tensor
) -> Measured:
    """What an engine measures of examples, of their losses with a penalty where there is one.

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
    if len(penalty.factors) <= int(groups.max()):
        raise PolicyError(
            f"there are penalties for {len(penalty.factors)} groups, and an example of group "
            f"{int(groups.max())}; the state must be made for as many groups as the data has."
        )
    penalising: PenalisingEngine = engine
    factors = penalty.factors.to(groups.device)[groups]
    return penalising.penalised(inputs, targets, factors, penalty.direction)


def state_after(policy: Policy, state: Any, totals: Sequence[Tensor]) -> Any:
    """The state after a step whose private gradient is this, parameter by parameter.

    Formal guarantee: it follows from the state and from releases, so it costs nothing.
    """
    if not policy.penalises:
        return state
    gradient = torch.cat([total.flatten() for total in totals]).to("cpu", torch.float32)
    return copied(checked_state(policy, policy.after_gradient(copied(state), gradient)))
