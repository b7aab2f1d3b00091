"""Origin of a run's first weights and of the state of its optimizer, as far as this process can see.

A run's epsilon covers its own steps. Weights that were trained before on the same people, or momentum of raw
gradients, contain what those steps learned. A process sees which weights `build_model` made, and the state of
optimizers. It does not see what trained other weights.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from equidp._provenance import weights_digest
from equidp.data.dataset import GroupedDataset
from equidp.data.shared_rows import RowDigests
from equidp.errors import ModelError, PrivacyWarning

FRESH, GIVEN = "fresh", "given"

_fresh: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # model -> digest of its weights
_rows: WeakKeyDictionary[nn.Module, RowDigests] = WeakKeyDictionary()  # model -> rows that trained it


@dataclass(frozen=True)
class Start:
    """Origin of a model's weights, as far as private steps did not set them.

    Attributes:
        weights: "fresh" from `build_model`, "given" by the caller. "": not known.
        optimizer_state: whether the optimizer came with state, such as momentum, of steps of another run.
        between_steps: whether other code than the private steps and callbacks changed the weights.
    """

    weights: str = ""
    optimizer_state: bool = False
    between_steps: bool = False


def mark_fresh(model: nn.Module) -> None:
    """Record that the current weights of a model come from no data."""
    if not any(is_lazy(each) for each in model.parameters()):
        _fresh[model] = weights_digest(model)


def mark_trained(model: nn.Module, train: object) -> None:
    """Record the rows that a run trained a model on, for `count_trained_on`."""
    if isinstance(train, GroupedDataset):
        _rows[model] = train.row_digests


def count_trained_on(model: nn.Module, rows: RowDigests) -> int:
    """Return how many of some rows are rows that a run of this process trained a model on."""
    trained = (_rows[module] for module in model.modules() if module in _rows)
    return max(map(rows.count_shared, trained), default=0)


def start_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    begun: bool,
    *,
    private: bool,
    known: Start = Start(),
) -> Start:
    """Origin of a run's weights before its first step; warns if the optimizer was used before.

    Args:
        model, optimizer: model and optimizer of the run.
        begun: whether steps of the run were taken before.
        private: True for a private run; without privacy there is no warning.
        known: start with a warning already given.
    """
    fresh = model in _fresh and _fresh[model] == weights_digest(model)
    used = known.optimizer_state or (not begun and _has_state(optimizer))
    if private and used and not known.optimizer_state:
        warnings.warn(
            "the optimizer comes with state of earlier steps, such as momentum. If raw gradients of this "
            "data are in it, epsilon does not hold. Make a new optimizer.",
            PrivacyWarning,
            stacklevel=4,
        )
    return Start(FRESH if fresh else GIVEN, used, known.between_steps)


def _has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimizer holds state of earlier steps. Adagrad's initial state has step 0."""
    return any(
        isinstance(value, torch.Tensor)
        for state in optimizer.state.values()
        if state.get("step", 1) != 0
        for value in state.values()
    )


def copy_model(model: nn.Module, what: str) -> nn.Module:
    """Copy a model with its weights. Activations that modules keep are copied without their graph.

    Args:
        model: model to copy.
        what: what needs the copy, for the message.

    Raises:
        ModelError: the model cannot be copied.
    """
    held = (
        value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)
    )
    memo: dict[int, Any] = {id(value): value.detach().clone() for value in held if not value.is_leaf}
    try:
        twin = copy.deepcopy(model, memo)
    except Exception as error:
        raise ModelError(
            f"the model cannot be copied ({error}), and {what} needs a copy; go without, or let "
            "copy.deepcopy copy the model.",
            field="model",
        ) from error
    if model in _rows:
        _rows[twin] = _rows[model]
    return twin
