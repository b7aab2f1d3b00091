"""Rows before they are inputs: what a source splits, and what an encoder is made from."""

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
"""What private preprocessing takes of epsilon, where nothing else is said."""
COUNTS_SHARE = 0.02
"""What counting the classes takes of it."""

SEEDED = (
    "Preprocessing was private: what it took from training rows was released with noise, from the seed. The "
    "epsilon of a comparison counts that; that of another training on this split does not."
)
_PART = 29  # of a seed's streams: apart from those of samples and training noise


@dataclass(frozen=True, eq=False)
class Unencoded:
    """A split whose columns are not inputs yet.

    Attributes:
        features: [n, columns], floats and texts.
        train, test: rows of either set, int64, in order.
        targets, groups: [n], int64 codes; with target_bounds, targets are numbers.
        group_names, class_names: of the codes.
        source: a name for the people.
        weights: public, [n]; None: all are 1.
        notes: on how the rows were chosen.
        target_bounds: of `GroupedDataset`.
        people: the training rows of each person, whose rows are one example; None: each row is one.
        person_of: whose row each is, [n]; None: each is of a person of its own.
        key: what the table is kept under on disk, so that its inputs are kept there too; "": all in memory.
        textual: target and groups that hold texts.
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

    def labelled(self, encoder: TableEncoder) -> TableEncoder:
        """Returns the encoder with what target and groups hold here, so that other tables are read alike."""
        return replace(encoder, textual=self.textual)

    @property
    def training(self) -> pd.DataFrame:
        """The features of one row for each training example: of a person, the first."""
        return self.features.iloc[self.train if self.people is None else self.people.first]

    def encoded(self, encoder: TableEncoder, notes: tuple[str, ...]) -> DataSplit:
        """Returns the split; `notes` are on the encoder."""
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
        """People as examples, in memory, from the training rows."""
        if self.people is None:
            return trained
        return self.people.within(self.train).gathered(trained)

    def _on_disk(self, encoder: TableEncoder, notes: tuple[str, ...]) -> DataSplit:
        """The same split with memory-mapped tensors, which read what is indexed."""
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
    """A source whose inputs an encoder makes, from figures of the training rows.

    Attributes:
        private_noise: noise multiplier of private preprocessing in `split`, whose noise follows from the
            seed: for comparisons. None: exact figures.
    """

    @property
    def private_noise(self) -> float | None: ...

    def unencoded(self, seed: int) -> Unencoded: ...

    def exact_encoder(self, rows: Unencoded) -> TableEncoder:
        """From the training rows as they are, which epsilon does not cover."""

    def private_encoder(self, training: pd.DataFrame, release: Release) -> TableEncoder:
        """From one release, paid for and not drawn from yet: a Gaussian mechanism."""

    def notes(self, encoder: TableEncoder) -> tuple[str, ...]:
        """Sentences on what epsilon does not cover of the encoder, or that it covers all of it."""


def prepared(source: EncodedSource, seed: int) -> tuple[DataSplit, TableEncoder]:
    """Returns the split of a seed, and the encoder that made its inputs."""
    rows = source.unencoded(seed)
    if source.private_noise is None:
        encoder = source.exact_encoder(rows)
    else:
        release = Release(source.private_noise, SeededRandomness(seed, _PART))
        encoder = rows.labelled(source.private_encoder(rows.training, release))
    notes = tuple(SEEDED if note == COUNTED else note for note in source.notes(encoder))
    return rows.encoded(encoder, notes), encoder


def can_be_private(source: DataSource) -> EncodedSource:
    """Returns the source, or raises a SettingError where its inputs need no encoder."""
    if not isinstance(source, EncodedSource):
        raise SettingError(
            f"private preprocessing is for tables, and for censuses such as adult; {source.name!r} takes "
            "nothing from its rows to preprocess by. Leave it out."
        )
    return source


def with_private_noise(source: DataSource, noise_multiplier: float) -> DataSource:
    """Returns the source with private preprocessing in its splits, which only `compare` charges.

    Raises:
        SettingError: a source that takes nothing from rows to preprocess by.

    >>> from equidp.data import open_source
    >>> with_private_noise(open_source("adult"), 20.0).private_noise
    20.0
    """
    return replace(can_be_private(source), private_noise=noise_multiplier)  # type: ignore[type-var]


def releases_of(source: DataSource) -> tuple[StepEvent, ...]:
    """Returns what one split of a source releases of its rows, to be charged."""
    noise = getattr(source, "private_noise", None)
    return () if noise is None else (StepEvent(1.0, noise),)
