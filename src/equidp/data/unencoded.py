"""Rows before encoding: a source splits them, and an encoder is fitted to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
from equidp.data.people import PeoplesRows
from equidp.errors import SettingError
from equidp.kernel.ledger import StepEvent
from equidp.kernel.noise import SeededRandomness
from equidp.tables.cache import key_of
from equidp.tables.encode import PRIVATE as COUNTED, TableEncoder
from equidp.tables.release import Release
from equidp.tables.stored import stored_parts

EXACT, PRIVATE = "exact", "private"
PREPROCESSINGS = (EXACT, PRIVATE)
PREPROCESSING_SHARE = 0.1
"""Default share of epsilon for private preprocessing."""
COUNTS_SHARE = 0.02
"""Default share of epsilon for counts of the classes."""

SEEDED = (
    "Preprocessing was private: what it took from training rows was released with noise, from the seed. The "
    "epsilon of a comparison counts that; that of another training on this split does not."
)
_PART = 29  # of a seed's streams: apart from those of samples and training noise


@dataclass(frozen=True, eq=False)
class Unencoded:
    """A split whose columns are not encoded yet.

    Attributes:
        features: [n, columns], floats and texts.
        train, test: row indices of either set, int64, in order.
        targets, groups: [n], int64 codes; with target_bounds, targets are numbers.
        group_names, class_names: names of the codes.
        source: a name for the people.
        weights: public, [n]; None: all are 1.
        notes: sentences on the choice of the rows.
        target_bounds: as in `GroupedDataset`.
        people: the training rows of each person, whose rows are one example; None: each row is one.
        person_of: person of each row, [n]; None: each row is another person's.
        key: cache key of the table on disk, so that its inputs are cached there too; "": all in memory.
        textual: names of the target and group columns that hold texts.
    """

    features: pd.DataFrame
    train: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    groups: npt.NDArray[np.int64]
    group_names: tuple[str, ...]
    class_names: tuple[str, ...]
    source: str
    weights: torch.Tensor | None = None
    notes: tuple[str, ...] = ()
    target_bounds: tuple[float, float] | None = None
    people: PeoplesRows | None = None
    person_of: npt.NDArray[np.int64] | None = None
    key: str = ""
    textual: tuple[str, ...] = ()

    def with_textual(self, encoder: TableEncoder) -> TableEncoder:
        """Returns the encoder with this table's `textual`, so that other tables are read in the same way."""
        return replace(encoder, textual=self.textual)

    @property
    def training(self) -> pd.DataFrame:
        """Features of one row for each training example; for a person, the first row."""
        return self.features.iloc[self.train if self.people is None else self.people.first]

    def encode_split(self, encoder: TableEncoder, notes: tuple[str, ...]) -> DataSplit:
        """Returns the encoded split; `notes` are on the encoder."""
        if self.key:
            return self._on_disk(encoder, notes)
        whole = GroupedDataset(
            encoder.encode(self.features),
            torch.from_numpy(self.targets),
            torch.from_numpy(self.groups),
            self.group_names,
            self.class_names,
            self.source,
            self.weights,
            self.target_bounds,
            None if self.person_of is None else torch.from_numpy(self.person_of),
        )
        trained, tested = (whole.subset(torch.from_numpy(rows)) for rows in (self.train, self.test))
        return DataSplit(self._by_person(trained), tested, (*notes, *self.notes))

    def _by_person(self, trained: GroupedDataset) -> GroupedDataset:
        """Return people as examples, in memory, from the training rows."""
        if self.people is None:
            return trained
        return self.people.within(self.train).gather_examples(trained)

    def _on_disk(self, encoder: TableEncoder, notes: tuple[str, ...]) -> DataSplit:
        """Return the same split with memory-mapped tensors, which read only indexed rows."""
        columns = {"targets": self.targets, "groups": self.groups}
        if self.weights is not None:
            columns["weights"] = self.weights.numpy()
        if self.person_of is not None:
            columns["people"] = self.person_of
        parts = stored_parts(
            f"the inputs of {self.source!r}",
            key_of("inputs", self.key, encoder.to_json()),
            {"train": self.train, "test": self.test},
            lambda rows: encoder.encode(self.features.iloc[rows]),
            columns,
        )
        names = self.group_names, self.class_names, self.source
        trained, tested = (
            GroupedDataset(
                part["inputs"],
                part["targets"],
                part["groups"],
                *names,
                part.get("weights"),
                self.target_bounds,
                part.get("people"),
            )
            for part in parts.values()
        )
        return DataSplit(self._by_person(trained), tested, (*notes, *self.notes))


@runtime_checkable
class EncodedSource(DataSource, Protocol):
    """A source whose inputs come from an encoder fitted to statistics of the training rows.

    Attributes:
        private_noise: noise multiplier of private preprocessing in `split`, whose noise follows from the
            seed: for comparisons. None: exact statistics.
    """

    @property
    def private_noise(self) -> float | None: ...

    def split_rows(self, seed: int) -> Unencoded: ...

    def exact_encoder(self, rows: Unencoded) -> TableEncoder:
        """Return an encoder fitted to the exact training rows, which epsilon does not cover."""

    def private_encoder(self, training: pd.DataFrame, release: Release) -> TableEncoder:
        """Return an encoder from one release, charged and not drawn from yet: a Gaussian mechanism."""

    def notes(self, encoder: TableEncoder) -> tuple[str, ...]:
        """Return sentences on the parts of the encoder that epsilon does not cover, or that it covers all."""


def split_and_encode(source: EncodedSource, seed: int) -> tuple[DataSplit, TableEncoder]:
    """Returns the split of a seed, and the encoder that made its inputs."""
    rows = source.split_rows(seed)
    if source.private_noise is None:
        encoder = source.exact_encoder(rows)
    else:
        release = Release(source.private_noise, SeededRandomness(seed, _PART))
        encoder = rows.with_textual(source.private_encoder(rows.training, release))
    notes = tuple(SEEDED if note == COUNTED else note for note in source.notes(encoder))
    return rows.encode_split(encoder, notes), encoder


def can_be_private(source: DataSource) -> EncodedSource:
    """Returns the source, or raises a SettingError if its inputs need no encoder."""
    if not isinstance(source, EncodedSource):
        raise SettingError(
            f"private preprocessing is for tables, and for censuses such as adult; {source.name!r} takes "
            "nothing from its rows to preprocess by. Leave it out."
        )
    return source


def with_private_noise(source: DataSource, noise_multiplier: float) -> DataSource:
    """Returns the source with private preprocessing in its splits, which only `compare` charges.

    Raises:
        SettingError: a source whose preprocessing takes nothing from the rows.

    >>> from equidp.data import open_source
    >>> with_private_noise(open_source("adult"), 20.0).private_noise
    20.0
    """
    return replace(can_be_private(source), private_noise=noise_multiplier)  # type: ignore[type-var]


def releases_of(source: DataSource) -> tuple[StepEvent, ...]:
    """Returns the releases that one split of a source makes of its rows, to be charged."""
    noise = getattr(source, "private_noise", None)
    return () if noise is None else (StepEvent(1.0, noise),)
