"""Validation sets for the choice of settings: parts of training sets, never of test sets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from equidp import DataSource, DataSplit


@dataclass(frozen=True)
class Validated:
    """Source whose test set is a fifth of the training set of another source."""

    source: DataSource

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def highlighted_groups(self) -> tuple[str, str] | None:
        return self.source.highlighted_groups

    def split(self, seed: int) -> DataSplit:
        train = self.source.split(seed).train
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        held = len(train) // 5
        return DataSplit(train.subset(order[held:]), train.subset(order[:held]))
