"""Engines, by name: per-example norms and weighted sums of gradients."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from equidp._validate import unknown_name
from equidp.engines.check import check_model
from equidp.engines.check_gradients import check_engine
from equidp.engines.compatible import make_compatible
from equidp.engines.functional import FunctionalEngine
from equidp.engines.ghost import GhostEngine
from equidp.engines.made_up import made_up_examples
from equidp.engines.measured import MeasuredBatch, MeasuringEngine
from equidp.engines.norms import dataset_norms
from equidp.kernel.engine import LossFunction

__all__ = [
    "ENGINES",
    "MeasuredBatch",
    "MeasuringEngine",
    "check_engine",
    "check_model",
    "dataset_norms",
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
