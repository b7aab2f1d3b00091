"""A census as grouped data: the code that Adult and Dutch share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from equidp.data.dataset import DataSplit
from equidp.data.fetch import RemoteFile
from equidp.data.origins import ORIGINS
from equidp.data.unencoded import Unencoded, split_and_encode
from equidp.tables.encode import PRIVATE, Categories, Numbers, TableEncoder
from equidp.tables.private_encode import private_numbers
from equidp.tables.release import Release

SEXES = ("Male", "Female")


def census_file(folder: str, name: str, url: str, sha256: str) -> RemoteFile:
    """Returns a file that is read as it is downloaded."""
    return RemoteFile(ORIGINS[folder], name, url, sha256, f"sha256:{sha256}")


@dataclass(frozen=True)
class Preparation:
    """Rules that turn rows of texts into grouped data: public, plain values. Sex is the group.

    Lists of codes are part of the preparation, so the number of inputs does not depend on the split.

    Attributes:
        numbers: columns of numbers, scaled by the training split.
        categories: codes of each other column, one 0/1 input for each code. Other codes are all zeros.
        target: a column, and its code for class 1.
        female: a column, and its code for group 1.
        class_names: of classes 0 and 1.
        source: a name for the people, the same for every preparation of their rows.
        standardised: scale numbers to mean 0 and deviation 1; otherwise to [0, 1].
    """

    numbers: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    target: tuple[str, str]
    female: tuple[str, str]
    class_names: tuple[str, str]
    source: str
    standardised: bool = False

    def split_rows(self, table: pd.DataFrame, seed: int, test_share: float) -> Unencoded:
        """Splits a table of texts by the seed, stratified by class and group."""
        table = table.astype(dict.fromkeys(self.numbers, float)).reset_index(drop=True)
        targets, groups = (
            (table[name] == code).to_numpy(np.int64) for name, code in (self.target, self.female)
        )
        train, test = train_test_split(
            np.arange(len(table)), test_size=test_share, stratify=2 * targets + groups, random_state=seed
        )
        return Unencoded(table, train, test, targets, groups, SEXES, self.class_names, self.source)

    def encoder(self, numbers: Iterable[Numbers], *, private: bool = False) -> TableEncoder:
        """Returns an encoder of these columns of numbers and of the public codes."""
        categories = (Categories(name, codes) for name, codes in self.categories.items())
        return TableEncoder((*numbers, *categories), "refuse", private)


@dataclass(frozen=True)
class Census:
    """A census, prepared in one way.

    Attributes:
        name: name of the source.
        preparation: preparation of its rows.
        rows: function that reads all rows, as texts.
        per_group: sample each sex down to about this number of rows: a row is kept with probability
            `per_group` over its sex's count. None: keep all.
        test_share: share of the rows to test on.
        private_noise: see `EncodedSource`.
    """

    name: str
    preparation: Preparation = field(hash=False)
    rows: Callable[[], pd.DataFrame]
    per_group: int | None = None
    test_share: float = 0.2
    highlighted_groups: tuple[str, str] | None = SEXES
    private_noise: float | None = None

    def split(self, seed: int) -> DataSplit:
        """Splits by the seed, stratified by class and group; samples rows before if `per_group` is set."""
        return split_and_encode(self, seed)[0]

    def split_rows(self, seed: int) -> Unencoded:
        """Splits the rows without encoding them."""
        table = self.rows()
        if self.per_group is None:
            return self.preparation.split_rows(table, seed, self.test_share)
        sex = self.preparation.female[0]
        sizes = table.groupby(sex)[sex].transform("size").to_numpy()
        kept = np.random.default_rng(seed).random(len(table)) < self.per_group / sizes
        rows = self.preparation.split_rows(table[kept], seed, self.test_share)
        note = (
            f"Each sex is sampled down to about {self.per_group:,} rows by its count in the data; epsilon "
            "does not cover that count."
        )
        return replace(rows, notes=(note,))

    def exact_encoder(self, rows: Unencoded) -> TableEncoder:
        fitted = Numbers.scaled_by_deviation if self.preparation.standardised else Numbers.scaled_by_range
        training = rows.training
        return self.preparation.encoder(
            fitted(name, training[name].to_numpy()) for name in self.preparation.numbers
        )

    def private_encoder(self, training: pd.DataFrame, release: Release) -> TableEncoder:
        numbers = private_numbers(
            training[list(self.preparation.numbers)],
            release,
            share=1.0,
            standardised=self.preparation.standardised,
        )
        return self.preparation.encoder(numbers.values(), private=True)

    def notes(self, encoder: TableEncoder) -> tuple[str, ...]:
        if encoder.private:
            return (PRIVATE,)
        names = ", ".join(self.preparation.numbers)
        scale = "means and deviations" if self.preparation.standardised else "ranges"
        note = f"The {scale} that {names} are scaled by come from the training split; epsilon does not cover "
        return (f"{note}them.",) if names else ()
