"""A Poisson sample is used once, complete, or is charged anyway."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """One Poisson sample. It may be empty.

    Attributes:
        inputs: [batch, ...].
        targets: [batch, ...].
        groups: [batch], int64.
        indices: [batch], int64, where the examples stand in the dataset.
    """

    inputs: Tensor
    targets: Tensor
    groups: Tensor
    indices: Tensor
