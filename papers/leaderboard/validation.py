"""What settings are chosen by: a part of the training set, never the test set."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from equidp import DataSource, DataSplit


@dataclass(frozen=True)
class Validated:
    """A source whose test set is a fifth of another's training set: what settings are chosen by."""

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
