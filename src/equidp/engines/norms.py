"""Gradient norms of a whole dataset."""

from __future__ import annotations

import torch
from torch import Tensor

from equidp.kernel.engine import Engine


def dataset_norms(engine: Engine, inputs: Tensor, targets: Tensor, chunk_size: int = 256) -> Tensor:
    """Per-example gradient norms of a whole dataset at the model's present parameters, [n]. They are private: never release them.

    Costs less than training on as many examples: no sum is taken.

    Args:
        engine: of the model; asked for norms alone.
        inputs, targets: [n, ...], n >= 1.
        chunk_size: examples at a time; bounds memory.
    """
    parts = zip(inputs.split(chunk_size), targets.split(chunk_size), strict=True)
    return torch.cat([engine(*part).norms.detach() for part in parts])
