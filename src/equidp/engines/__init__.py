"""Engines, by name: per-example norms and weighted sums of gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from equidp.engines.check import (
    Checked,
    check_engine,
    check_model,
    check_padding,
    check_rows,
    checked_engine,
)
from equidp.engines.compatible import make_compatible
from equidp.engines.table import ENGINES, NAMES, make_engine
from equidp.kernel.engine import Context, Engine
from equidp.kernel.inputs import Inputs, in_parts, moved_to

__all__ = [
    "ENGINES",
    "NAMES",
    "Checked",
    "check_engine",
    "check_model",
    "check_padding",
    "check_rows",
    "checked_engine",
    "dataset_norms",
    "make_compatible",
    "make_engine",
]


def dataset_norms(
    engine: Engine,
    inputs: Inputs,
    targets: Inputs,
    chunk_size: int = 256,
    device: torch.device | None = None,
    context: Context = (),
) -> Tensor:
    """Return the gradient norm of each example at the model's present parameters, [n].

    They are private: never release them. Costs less than training on as many examples: no sum is taken.

    Args:
        engine: engine of the model.
        inputs, targets: [n, ...], n >= 1.
        chunk_size: examples at a time; bounds memory.
        device: device of the model, to which each chunk is moved. None: the examples are already there.
        context: context of a policy that changes losses, [n, ...] each.

    >>> from equidp.engines import make_engine
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> weight = torch.nn.init.zeros_(model.weight)  # each class has probability 1/2
    >>> engine = make_engine("ghost", model, torch.nn.CrossEntropyLoss(reduction="none"))
    >>> dataset_norms(engine, torch.ones(5, 2), torch.zeros(5, dtype=torch.int64))
    tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
    """
    parts = iter(in_parts((inputs, targets, context), chunk_size))
    if device is not None:
        parts = (moved_to(part, device) for part in parts)
    return torch.cat([engine(x, y, *own).norms.detach() for x, y, own in parts])
