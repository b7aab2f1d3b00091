"""Tables as grouped data: CSV and Parquet files, and sources whose inputs an encoder makes of their rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from equidp._extras import require_extra
from equidp.data.dataset import DataSource, DataSplit, GroupedDataset, Grouping
from equidp.data.people import PeoplesRows, rows_by_person
from equidp.errors import DataWarning, SettingError
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.tables.checks import columns_beside_inputs, label_columns, problems_of, refuse
from equidp.tables.columns import read_table
from equidp.tables.copies import find_copies
from equidp.tables.encode import TableEncoder
from equidp.tables.findings import Level
from equidp.tables.fit import fit_encoder
from equidp.tables.intervals import Binning
from equidp.tables.labels import Crossed, code_values
from equidp.tables.read import plain_name
from equidp.tables.recipe import Recipe
from equidp.tables.release import Release
from equidp.tables.split import draw_rows, rows_by_content

with require_extra("tables"):
    import pandas as pd

Codes = npt.NDArray[np.int64]

EXACT, PRIVATE = "exact", "private"
PREPROCESSINGS = (EXACT, PRIVATE)
PREPROCESSING_SHARE = 0.1
"""Default share of epsilon for private preprocessing."""
COUNTS_SHARE = 0.02
"""Default share of epsilon for counts of the classes."""

GROUP_AS_INPUT = (
    "The groups are inputs too ({}): the model reads them, may predict differently by group for people who "
    "are alike otherwise, and needs them to predict."
)
_PART = 29  # of a seed's streams: apart from those of samples and training noise


@dataclass(frozen=True)
class TableSource:
    """A CSV or Parquet file. Target, group and dropped columns are not among the inputs.

    Attributes:
        path: path of the file.
        recipe: recipe to read it by, with target and group. Numbers without public bounds are standardised by
            the training split, which epsilon does not cover.
        private_noise: see `ColumnSource`.
        binning: see `ColumnSource`.

    >>> TableSource("people.csv", Recipe(target="income", group=("sex",))).name
    'people'
    """

    path: str
    recipe: Recipe
    private_noise: float | None = None
    binning: str | None = None
    published: ClassVar[None] = None
    """A file has no published settings, for any name."""

    def __post_init__(self) -> None:
        Binning.parse(self.binning)
        if not self.recipe.target:
            raise SettingError("no target; name the column to predict.", field="target")
        if not self.recipe.group:
            raise SettingError(
                "no group column; name the column (or columns) whose values are the groups.", field="group"
            )

    @property
    def name(self) -> str:
        return Path(plain_name(self.path)).stem

    @property
    def highlighted_groups(self) -> tuple[str, str] | None:
        return None

    def split(self, seed: int) -> DataSplit:
        """Split by the seed and by each row's content.

        Raises:
            DataError: columns that cannot be used, with a remedy for each.
        """
        return split_and_encode(self, seed)[0]

    def split_rows(self, seed: int) -> Unencoded:
        """Split the rows without encoding them; warns of doubts about the columns."""
        recipe, table = self.recipe, self._table()
        targets, class_names = code_values(table[str(recipe.target)])
        crossed = Crossed.of(table, recipe.group)
        people = person_of = None
        if recipe.person is None:
            train, test = rows_by_content(draw_rows(table, seed), crossed.codes, recipe.test_share)
        else:
            people, train, test, person_of = rows_by_person(table, recipe, crossed.codes, seed)
        examples = GroupedDataset(
            torch.zeros(len(table), 0),
            torch.from_numpy(targets),
            torch.from_numpy(crossed.codes),
            crossed.names,
            class_names,
            self.name,
            None if recipe.weight is None else torch.from_numpy(table[recipe.weight].to_numpy(np.float32)),
            None if person_of is None else torch.from_numpy(person_of),
            groupings=tuple(map(Grouping, recipe.group, crossed.values, crossed.places)),
            crossed=recipe.crossed,
        )
        notes = [] if people is None else [people.note]
        group_inputs = [name for name in recipe.group if name != recipe.target]
        if recipe.group_as_input and group_inputs:
            notes.append(GROUP_AS_INPUT.format(", ".join(group_inputs)))
        features = table.drop(columns=columns_beside_inputs(recipe))
        textual = tuple(each for each in label_columns(recipe) if table[each].dtype != float)
        return Unencoded(features, examples, train, test, people, tuple(notes), textual)

    def fit_encoder(self, rows: Unencoded, release: Release | None = None) -> TableEncoder:
        fitted = fit_encoder(
            rows.features,
            rows.train if release is None else rows.first,
            self.recipe.ranges,
            self.recipe.missing,
            Binning.parse(self.binning),
            examples=len(rows.first),
            release=release,
        )
        return replace(fitted, textual=rows.textual)

    def _table(self) -> pd.DataFrame:
        """Return the checked columns of the file without dropped ones."""
        read = read_table(Path(self.path), self.recipe)
        copies = [each.sentence() for each in find_copies(read.table, self.recipe.person)]
        for sentence in (*read.notes, *read.sentences(Level.DOUBT), *copies):
            warnings.warn(sentence, DataWarning, stacklevel=5)
        refuse(self.path, problems_of(read, self.recipe))
        return read.table


@dataclass(frozen=True, eq=False)
class Unencoded:
    """A split whose columns are not encoded yet.

    Attributes:
        features: [n, columns], floats and texts.
        examples: all data of each row except the inputs, which are [n, 0].
        train, test: row indices of either set, in order.
        people: training rows of each person, whose rows are one example. None: each row is one.
        notes: sentences on the choice of the rows.
        textual: names of the target and group columns that hold texts.
    """

    features: pd.DataFrame
    examples: GroupedDataset
    train: Codes
    test: Codes
    people: PeoplesRows | None = None
    notes: tuple[str, ...] = ()
    textual: tuple[str, ...] = ()

    @property
    def first(self) -> Codes:
        """Index of a row of each training example: its row, or the first of a person's."""
        return self.train if self.people is None else self.people.first

    def encode_split(self, encoder: TableEncoder, *, seeded: bool = False) -> DataSplit:
        """Return the encoded split; `seeded` as of `TableEncoder.notes`."""
        trained, tested = (
            replace(self.examples.subset(torch.from_numpy(rows)), inputs=encoder.encode(self.features, rows))
            for rows in (self.train, self.test)
        )
        if self.people is not None:
            places = np.searchsorted(self.train, self.people.places)  # within the training rows
            trained = replace(self.people, places=places).gather_examples(trained)
        return DataSplit(trained, tested, (*encoder.notes(seeded=seeded), *self.notes))


@runtime_checkable
class ColumnSource(DataSource, Protocol):
    """A source of columns, whose inputs come from an encoder fitted to the training rows.

    Attributes:
        private_noise: noise multiplier of private preprocessing in `split`, whose noise follows from the
            seed: for comparisons. None: exact statistics.
        binning: text of a `Binning`, such as "standard" or "cut:4,16". None: none was given, so advice may
            choose one. The columns are encoded by "standard" until then.
    """

    @property
    def private_noise(self) -> float | None: ...

    @property
    def binning(self) -> str | None: ...

    def split_rows(self, seed: int) -> Unencoded: ...

    def fit_encoder(self, rows: Unencoded, release: Release | None = None) -> TableEncoder:
        """Return an encoder fitted to the training rows: exactly, which epsilon does not cover; or only by a
        release, charged and not drawn from yet, as in `equidp.tables.fit.fit_encoder`."""


def add_binning(source: DataSource, binning: str | None) -> DataSource:
    """Return a source with this binning; the source itself if it has one, or if nothing changes.

    >>> from equidp.data import open_source
    >>> add_binning(open_source("adult"), "cut").binning
    'cut'
    """
    if not isinstance(source, ColumnSource) or source.binning is not None:
        return source
    same = Binning.parse(binning) == Binning.parse(None)
    return source if same else with_binning(source, binning)


def with_binning(source: DataSource, binning: str | None) -> DataSource:
    """Return a source with this binning instead of its own.

    Raises:
        SettingError: an unknown binning, or a source without columns to encode.
    """
    Binning.parse(binning)
    if not isinstance(source, ColumnSource):
        raise SettingError(
            f"binning {binning!r} is for tables, and for censuses such as adult; {source.name!r} has no "
            "columns to encode. Leave it out.",
            field="binning",
        )
    return replace(source, binning=binning)  # type: ignore[type-var]


def binning_of(source: DataSource) -> str | None:
    """Return the binning that a source was given, or None without one."""
    return source.binning if isinstance(source, ColumnSource) else None


def split_and_encode(source: ColumnSource, seed: int) -> tuple[DataSplit, TableEncoder]:
    """Return the split of a seed, and the encoder that made its inputs."""
    rows, noise = source.split_rows(seed), source.private_noise
    release = None if noise is None else Release(noise, SeededRandomness(seed, _PART))
    encoder = source.fit_encoder(rows, release)
    return rows.encode_split(encoder, seeded=True), encoder


def can_be_private(source: DataSource) -> ColumnSource:
    """Return the source, or raise a SettingError if its inputs need no encoder."""
    if not isinstance(source, ColumnSource):
        raise SettingError(
            f"private preprocessing is for tables, and for censuses such as adult; {source.name!r} takes "
            "nothing from its rows to preprocess by. Leave it out.",
            field="preprocessing_share",
        )
    return source


def with_private_noise(source: DataSource, noise_multiplier: float) -> DataSource:
    """Return the source with private preprocessing in its splits, which only `compare` charges.

    Raises:
        SettingError: a source whose preprocessing takes nothing from the rows.

    >>> from equidp.data import open_source
    >>> with_private_noise(open_source("adult"), 20.0).private_noise
    20.0
    """
    return replace(can_be_private(source), private_noise=noise_multiplier)  # type: ignore[type-var]


def releases_of(source: DataSource) -> tuple[Event, ...]:
    """Return the releases that one split of a source makes of its rows, to be charged."""
    noise = getattr(source, "private_noise", None)
    return () if noise is None else (Event(1.0, noise),)
