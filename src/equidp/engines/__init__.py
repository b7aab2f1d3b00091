"""Engines, by name: per-example norms and weighted sums of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from equidp._validate import unknown_name
from equidp.engines.check import check_model
from equidp.engines.check_gradients import check_engine
from equidp.engines.check_penalties import check_penalties
from equidp.engines.compatible import make_compatible
from equidp.engines.functional import FunctionalEngine
from equidp.engines.ghost import GhostEngine
from equidp.engines.made_up import made_up_examples
from equidp.engines.measured import MeasuredBatch, MeasuringEngine
from equidp.engines.norms import dataset_norms
from equidp.engines.units import UnitLoss, as_units, reading
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs
from equidp.kernel.policy import Policy

__all__ = [
    "ENGINES",
    "MeasuredBatch",
    "MeasuringEngine",
    "check_engine",
    "check_model",
    "check_penalties",
    "checked_engine",
    "dataset_norms",
    "engine_for",
    "made_up_examples",
    "make_compatible",
    "make_engine",
]

ENGINES: dict[str, Callable[[nn.Module, LossFunction], MeasuringEngine]] = {
    "ghost": GhostEngine,
    "functional": FunctionalEngine,
}


def make_engine(name: str, model: nn.Module, loss: LossFunction) -> MeasuringEngine:
    """Returns the engine of that name for a model and a per-example loss.

    Raises:
        SettingError: an unknown name.

    >>> import torch
    >>> model = nn.Linear(2, 2)
    >>> engine = make_engine("ghost", model, nn.CrossEntropyLoss(reduction="none"))
    >>> measured = engine(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> measured.norms.shape
    torch.Size([3])
    >>> measured.weighted_sum(torch.ones(3))
    >>> model.bias.grad.shape
    torch.Size([2])
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    return ENGINES[name](model, loss)


def engine_for(policy: Policy, name: str) -> str:
    """Returns the name of the engine that a policy takes: functional, whatever the name, if it penalises.

    >>> from equidp.policies import DPSGD, FairLens
    >>> engine_for(DPSGD(), "ghost"), engine_for(FairLens(), "ghost")
    ('ghost', 'functional')
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    return "functional" if policy.penalises else name


def checked_engine(
    name: str,
    model: nn.Module,
    loss: LossFunction,
    row: tuple[Inputs, Tensor],
    class_names: Sequence[str] = (),
) -> MeasuringEngine:
    """Returns the engine of that name, after model, loss and engine were tried on made-up examples.

    Args:
        model: reads rows, [batch, ...]; is left as it was.
        loss: of examples of one row, or a `UnitLoss`.
        row: inputs and targets of one row at least, whose shapes and types are read and no value: what is
            accepted tells nothing about data.
        class_names: one per class, where targets are classes.

    Raises:
        SettingError: an unknown name.
        ModelError: says what is wrong with the model, the loss or the engine.

    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> import torch
    >>> checked_engine("ghost", nn.Linear(2, 2), loss, (torch.zeros(1, 2), torch.tensor([1])), ("no", "yes"))
    <equidp.engines.ghost.GhostEngine object at ...>
    """
    several = isinstance(loss, UnitLoss)
    of_row = loss.loss if isinstance(loss, UnitLoss) else loss
    inputs, targets = made_up_examples(model, of_row, *row, len(class_names) or None)
    check_model(model, of_row, inputs, targets, class_names)
    examples = as_units(inputs, targets, rows=2) if several else (inputs, targets)
    engine = make_engine(name, reading(model, loss), loss)
    check_engine(engine, reading(model, loss), loss, *examples)
    return engine
