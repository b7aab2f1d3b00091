"""The table of engines, by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from equidp._validate import unknown_name
from equidp.engines.functional import FunctionalEngine
from equidp.engines.ghost import GhostEngine
from equidp.kernel.engine import LossFunction
from equidp.kernel.policy import Policy

ENGINES: dict[str, Callable[[nn.Module, LossFunction], GhostEngine | FunctionalEngine]] = {
    "ghost": GhostEngine,
    "functional": FunctionalEngine,
}
NAMES = ("auto", *ENGINES)
"""Names that `checked_engine` takes."""


def make_engine(
    name: str, model: nn.Module, loss: LossFunction, policy: Policy | None = None
) -> GhostEngine | FunctionalEngine:
    """Return the named engine for a model and a per-example loss.

    Args:
        policy: policy that the engine measures for. A policy that changes losses always has the functional
            engine.

    Raises:
        SettingError: an unknown name.

    >>> import torch
    >>> model = nn.Linear(2, 2)
    >>> engine = make_engine("ghost", model, nn.CrossEntropyLoss(reduction="none"))
    >>> measured = engine(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> measured.norms.shape
    torch.Size([3])
    >>> measured.sums(torch.ones(3))[model.bias].shape
    torch.Size([2])
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    if policy is not None and policy.loss_terms:
        return FunctionalEngine(model, loss, objective=policy.objective)
    return ENGINES[name](model, loss)
