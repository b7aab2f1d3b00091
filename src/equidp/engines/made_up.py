"""Examples made up from shapes and types, to try models on: no row of the data decides what is accepted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from equidp.engines.called import called
from equidp.engines.made_up_rows import MadeUpInputs
from equidp.engines.trying import check_parameters, tried
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, joined, taken


def made_up_examples(
    model: nn.Module,
    loss: LossFunction,
    inputs: Inputs,
    targets: Tensor,
    num_classes: int | None = None,
    count: int = 16,
) -> tuple[Any, Tensor]:
    """Returns `count` inputs and targets of the same shapes and types as these; no value of them is read.

    Numbers are normal, or in [0, 1) where the model or the loss cannot take those. Classes are below
    `num_classes`; where that is None, below the model's smallest output dimension that is larger than 1.

    Args:
        model: is left as it was.
        loss: (outputs, targets) -> losses [batch].
        inputs, targets: at least one example each, [batch, ...].
        num_classes: how many there are, which is public; None: not known.
        count: how many to make up, >= 2.

    Raises:
        ModelError: parameters that cannot be trained.

    >>> model, loss = nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none")
    >>> x, y = made_up_examples(model, loss, torch.zeros(1, 3), torch.tensor([1]), num_classes=2)
    >>> x.shape, y.unique()
    (torch.Size([16, 3]), tensor([0, 1]))
    """
    check_parameters(model)
    first = _examples(model, inputs, targets, num_classes, count, centred=True)
    if _finite(model, loss, *first):
        return first
    second = _examples(model, inputs, targets, num_classes, count, centred=False)
    return second if _finite(model, loss, *second) else first


def _examples(
    model: nn.Module, inputs: Inputs, targets: Tensor, num_classes: int | None, count: int, *, centred: bool
) -> tuple[Any, Tensor]:
    rows = MadeUpInputs.like(inputs, model, centred=centred)
    half = count // 2
    made = joined(rows.full(count - half, seed=1), rows.short(half, seed=2))
    generator = torch.Generator().manual_seed(3)
    size = (count, *targets.shape[1:])
    if targets.dtype.is_floating_point and num_classes is None:
        drawn = torch.randn(size, generator=generator) if centred else torch.rand(size, generator=generator)
    else:
        classes = _classes(model, taken(made, slice(2))) if num_classes is None else num_classes
        classes = 2 if targets.dtype == torch.bool else classes
        drawn = torch.arange(count).reshape(-1, *[1] * (len(size) - 1)).expand(size) % classes
        drawn = drawn[torch.randperm(count, generator=generator)]
    return made, drawn.to(targets.dtype).to(targets.device)


def _classes(model: nn.Module, inputs: Inputs) -> int:
    """As many classes as the outputs have for certain."""
    try:
        with tried(model):
            outputs = called(model, inputs)
        return min((size for size in outputs.shape[1:] if size > 1), default=2)
    except Exception:
        return 2  # check_model will say what is wrong


def _finite(model: nn.Module, loss: LossFunction, inputs: Inputs, targets: Tensor) -> bool:
    """Returns whether model and loss take such examples, and the loss of some is a number."""
    few = [0, 1, -2, -1]
    try:
        with tried(model, loss):
            losses = loss(called(model, taken(inputs, few)), targets[few])
        return bool(torch.isfinite(losses).any())
    except Exception:
        return False
