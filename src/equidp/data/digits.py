"""scikit-learn's images of digits, with eights made rare in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from equidp._extras import require_extra
from equidp.data.dataset import DataSplit, GroupedDataset

with require_extra("tables"):
    from sklearn.model_selection import train_test_split

RARE = 8
_NAMES = tuple(str(digit) for digit in range(10))


@dataclass(frozen=True)
class Digits:
    """scikit-learn's 1,797 digits of 8x8 pixels, with few eights in training. Groups are the classes.

    Attributes:
        keep: share of the training part's eights that is kept.
        test_share: share of the images to test on.
    """

    name: str = "digits"
    highlighted_groups: tuple[str, str] | None = ("2", "8")
    keep: float = 0.1
    test_share: float = 0.25
    pixel_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def split(self, seed: int) -> DataSplit:
        """Split by the seed, stratified by class."""
        return self.choose_examples(seed, *self.everything())

    def everything(self) -> tuple[GroupedDataset]:
        """Return all digits."""
        with require_extra("tables"):  # slow to import, and no other source needs it
            from sklearn.datasets import load_digits

        bunch = load_digits()
        images = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16.0
        return (grouped_by_digit(images, torch.from_numpy(bunch.target).long(), "digits"),)

    def choose_examples(self, seed: int, *parts: GroupedDataset) -> DataSplit:
        """Return the seed's split of all digits."""
        (whole,) = parts
        labels = whole.targets
        train, test = train_test_split(
            np.arange(len(labels)), test_size=self.test_share, stratify=labels.numpy(), random_state=seed
        )
        train = torch.from_numpy(train)
        eights = train[labels[train] == RARE]
        kept = eights[: round(self.keep * len(eights))]
        train = torch.cat([train[labels[train] != RARE], kept]).sort().values
        note = (
            f"Eights are rare by choice: {self.keep:.3g} of them are kept in training, all in the test set."
        )
        return DataSplit(whole.subset(train), whole.subset(torch.from_numpy(test)), (note,))


def grouped_by_digit(images: Tensor, labels: Tensor, source: str) -> GroupedDataset:
    """Return images whose groups are their classes."""
    return GroupedDataset(images, labels, labels.clone(), _NAMES, _NAMES, source)
