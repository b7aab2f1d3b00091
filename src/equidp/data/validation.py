"""Part of a training set that is held out, so that settings are chosen without the test set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from equidp.data.dataset import DataSource, DataSplit
from equidp.data.features import WithFeatures

HELD_OUT = 5
"""One of this many training examples is held out for choosing settings."""


@final
@dataclass(frozen=True)
class ValidationPart:
    """Source whose test set is a part of the training set of another source, and that trains on the rest.

    Attributes:
        source: source whose test sets are not read.
    """

    source: DataSource

    @property
    def name(self) -> str:
        """Name of the source."""
        return self.source.name

    @property
    def highlighted_groups(self) -> tuple[str, str] | None:
        """Highlighted groups of the source."""
        return self.source.highlighted_groups

    @property
    def private_noise(self) -> float | None:
        """Noise multiplier of the private preprocessing of the source, or None without it."""
        return getattr(self.source, "private_noise", None)

    def split(self, seed: int) -> DataSplit:
        """Return four fifths of the training set, and the fifth that is held out."""
        train = self.source.split(seed).train
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        held = len(train) // HELD_OUT
        return DataSplit(train.subset(order[held:]), train.subset(order[:held]))


def validation_part(source: DataSource) -> DataSource:
    """Return a source whose test set is a part of the training set; features stay outermost."""
    if isinstance(source, WithFeatures):
        return replace(source, source=validation_part(source.source))
    return ValidationPart(source)
