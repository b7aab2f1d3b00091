"""What the preparations of Adult and Dutch share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.data.fetch import RemoteFile

SEXES = ("Male", "Female")


def census_file(folder: str, name: str, url: str, sha256: str) -> RemoteFile:
    """A file that is downloaded as it is read."""
    return RemoteFile(folder, name, url, sha256, f"sha256:{sha256}")


@dataclass(frozen=True)
class Census:
    """What the four preparations share: sex is the group; 80/20 split by the seed, stratified by class and group.

    Category lists are public and part of the source, so the number of inputs does not depend on the split; the scaling of numbers
    comes from the training split.
    """

    name: str
    test_share: float = 0.2
    highlighted_groups: tuple[str, str] | None = SEXES
    numbers: ClassVar[tuple[str, ...]]
    categories: ClassVar[tuple[str, ...]]
    binary: ClassVar[tuple[str, ...]] = ()
    category_codes: ClassVar[Mapping[str, tuple[str, ...]]]
    class_names: ClassVar[tuple[str, str]]
    standardised: ClassVar[bool] = False
    first_category_is_reference: ClassVar[bool] = False

    def table(self) -> pd.DataFrame:
        """All rows, with 0/1 columns `target` and `group` beside the attributes."""
        raise NotImplementedError

    def rows(self, table: pd.DataFrame, seed: int) -> pd.DataFrame:
        """The rows that take part."""
        return table

    def split(self, seed: int) -> DataSplit:
        """See the class."""
        table = self.rows(self.table(), seed).reset_index(drop=True)
        strata = 2 * table["target"] + table["group"]
        train, test = train_test_split(
            np.arange(len(table)), test_size=self.test_share, stratify=strata, random_state=seed
        )
        encoder = self._encoder().fit(table.iloc[train])
        return DataSplit(
            self._dataset(encoder, table.iloc[train]), self._dataset(encoder, table.iloc[test]), self.notes()
        )

    def notes(self) -> tuple[str, ...]:
        """What epsilon does not cover."""
        if not self.numbers:
            return ()
        scale = "means and deviations" if self.standardised else "ranges"
        return (
            f"The {scale} that {', '.join(self.numbers)} are scaled by come from the training split, not covered by epsilon.",
        )

    def _encoder(self) -> ColumnTransformer:
        one_hot = OneHotEncoder(
            categories=[list(self.category_codes[column]) for column in self.categories],
            drop="first" if self.first_category_is_reference else None,
            sparse_output=False,
        )
        scaler = StandardScaler() if self.standardised else MinMaxScaler(clip=True)
        return ColumnTransformer(
            [
                ("numbers", scaler, list(self.numbers)),
                ("categories", one_hot, list(self.categories)),
                ("binary", "passthrough", list(self.binary)),
            ]
        )

    def _dataset(self, encoder: ColumnTransformer, table: pd.DataFrame) -> GroupedDataset:
        return GroupedDataset(
            torch.from_numpy(np.asarray(encoder.transform(table), dtype=np.float32)),
            torch.tensor(table["target"].to_numpy()),
            torch.tensor(table["group"].to_numpy()),
            group_names=SEXES,
            class_names=self.class_names,
        )
