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
from equidp.tables.copies import copies_sentences, find_copies
from equidp.tables.encode import PRIVATE as COUNTED, TableEncoder
from equidp.tables.findings import Level
from equidp.tables.intervals import Binning
from equidp.tables.labels import Crossed, code_values
from equidp.tables.private_encode import private_encoder
from equidp.tables.read import plain_name
from equidp.tables.recipe import Recipe
from equidp.tables.release import Release
from equidp.tables.split import draw_rows, rows_by_content

with require_extra("tables"):
    import pandas as pd

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
GROUP_AS_INPUT = (
    "The groups are inputs too ({}): the model reads them, may predict differently by group for people who "
    "are alike otherwise, and needs them to predict."
)
_PART = 29  # of a seed's streams: apart from those of samples and training noise


@dataclass(frozen=True)
class TableSource:
    """A CSV or Parquet file. Target, group and dropped columns are not among the inputs.

    Attributes:
        path: the file.
        recipe: recipe to read it by, with target and group. Numbers without public bounds are standardised by
            the training split, which epsilon does not cover.
        private_noise: see `EncodedSource`.
        binning: see `ColumnSource`.

    >>> TableSource("people.csv", Recipe(target="income", group=("sex",))).name
    'people'
    """

    path: str
    recipe: Recipe
    private_noise: float | None = None
    binning: str | None = None
    published: ClassVar[None] = None
    """A file has no published settings, whatever its name."""

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
        table = self._table()
        targets, class_names = code_values(table[str(self.recipe.target)])
        crossed = Crossed.of(table, self.recipe.group)
        groups, group_names = crossed.codes, crossed.names
        features = table.drop(columns=columns_beside_inputs(self.recipe))
        people = person_of = None
        if self.recipe.person is None:
            drawn = draw_rows(table, seed)
            train, test = rows_by_content(drawn, groups, self.recipe.test_share)
        else:
            people, train, test, person_of = rows_by_person(table, self.recipe, groups, seed)
        names, weights = (group_names, class_names, self.name), self._weights(table)
        return Unencoded(
            *(features, train, test, targets, groups, *names, weights),
            notes=(*(() if people is None else (people.note,)), *self._group_notes),
            people=people,
            person_of=person_of,
            textual=tuple(each for each in label_columns(self.recipe) if table[each].dtype != float),
            groupings=tuple(map(Grouping, self.recipe.group, crossed.values, crossed.places)),
            crossed=self.recipe.crossed,
        )

    def exact_encoder(self, rows: Unencoded) -> TableEncoder:
        fitted = TableEncoder.fit(
            rows.features,
            rows.train,
            self.recipe.ranges,
            self.recipe.missing,
            Binning.parse(self.binning),
            examples=rows.num_training,
        )
        return replace(fitted, textual=rows.textual)

    def private_encoder(self, rows: Unencoded, release: Release) -> TableEncoder:
        binning = Binning.parse(self.binning)
        drawn = private_encoder(rows.training, self.recipe.ranges, self.recipe.missing, release, binning)
        return replace(drawn, textual=rows.textual)

    def notes(self, encoder: TableEncoder) -> tuple[str, ...]:
        return encoder.notes()

    @property
    def _group_notes(self) -> tuple[str, ...]:
        """Sentence on groups that are inputs too."""
        names = ", ".join(name for name in self.recipe.group if name != self.recipe.target)
        return (GROUP_AS_INPUT.format(names),) if self.recipe.group_as_input and names else ()

    def _weights(self, table: pd.DataFrame) -> torch.Tensor | None:
        if self.recipe.weight is None:
            return None
        return torch.from_numpy(table[self.recipe.weight].to_numpy(dtype=np.float32))

    def _table(self) -> pd.DataFrame:
        """Return the checked columns of the file without dropped ones."""
        read = read_table(Path(self.path), self.recipe)
        copies = copies_sentences(find_copies(read.table, self.recipe.person))
        for sentence in (*read.notes, *read.sentences(Level.DOUBT), *copies):
            warnings.warn(sentence, DataWarning, stacklevel=5)
        refuse(self.path, problems_of(read, self.recipe))
        return read.table


@dataclass(frozen=True, eq=False)
class Unencoded:
    """A split whose columns are not encoded yet.

    Attributes:
        features: [n, columns], floats and texts.
        train, test: row indices of either set, int64, in order.
        targets, groups: [n], int64 codes.
        group_names, class_names: names of the codes.
        source: a name for the people.
        weights: public, [n]; None: all are 1.
        notes: sentences on the choice of the rows.
        people: the training rows of each person, whose rows are one example; None: each row is one.
        person_of: person of each row, [n]; None: each row is another person's.
        textual: names of the target and group columns that hold texts.
        groupings, crossed: see `GroupedDataset`.
    """

    features: pd.DataFrame
    train: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    group_names: tuple[str, ...]
    class_names: tuple[str, ...]
    source: str
    weights: torch.Tensor | None = None
    notes: tuple[str, ...] = ()
    people: PeoplesRows | None = None
    person_of: npt.NDArray[np.int64] | None = None
    textual: tuple[str, ...] = ()
    groupings: tuple[Grouping, ...] = ()
    crossed: bool = False

    @property
    def num_training(self) -> int:
        """Number of training examples."""
        return len(self.train if self.people is None else self.people)

    @property
    def training(self) -> pd.DataFrame:
        """Features of one row for each training example, in memory; for a person, the first row."""
        return self.features.take(self.train if self.people is None else self.people.first)

    def encode_split(self, encoder: TableEncoder, notes: tuple[str, ...]) -> DataSplit:
        """Return the encoded split; `notes` are on the encoder."""
        parts = self.train, self.test
        trained, tested = (
            GroupedDataset(
                inputs,
                torch.from_numpy(self.targets[rows]),
                torch.from_numpy(self.groups[rows]),
                self.group_names,
                self.class_names,
                self.source,
                None if self.weights is None else self.weights[torch.from_numpy(rows)],
                None if self.person_of is None else torch.from_numpy(self.person_of[rows]),
                groupings=self.groupings,
                crossed=self.crossed,
            )
            for rows, inputs in zip(parts, encoder.encode_parts(self.features, parts), strict=True)
        )
        if self.people is not None:
            trained = self.people.within(self.train).gather_examples(trained)
        return DataSplit(trained, tested, (*notes, *self.notes))


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

    def private_encoder(self, rows: Unencoded, release: Release) -> TableEncoder:
        """Return an encoder from one release of the training rows, charged and not drawn from yet.

        Of `rows` it reads `training` through the release alone, which is a Gaussian mechanism, and n, names
        and types of columns, which are public.
        """

    def notes(self, encoder: TableEncoder) -> tuple[str, ...]:
        """Return sentences on the parts of the encoder that epsilon does not cover, or that it covers all."""


@runtime_checkable
class ColumnSource(EncodedSource, Protocol):
    """A source whose columns of numbers are encoded in one of several ways.

    Attributes:
        binning: text of a `Binning`, such as "standard" or "cut:4,16". None: none was given, so advice may
            choose one; the columns are encoded by "standard" until then.
    """

    @property
    def binning(self) -> str | None: ...


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
    """Return a source with this binning in place of its own.

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
    """Return the binning that a source was given; None without one."""
    return source.binning if isinstance(source, ColumnSource) else None


def split_and_encode(source: EncodedSource, seed: int) -> tuple[DataSplit, TableEncoder]:
    """Return the split of a seed, and the encoder that made its inputs."""
    rows = source.split_rows(seed)
    if source.private_noise is None:
        encoder = source.exact_encoder(rows)
    else:
        release = Release(source.private_noise, SeededRandomness(seed, _PART))
        encoder = source.private_encoder(rows, release)
    notes = tuple(SEEDED if note == COUNTED else note for note in source.notes(encoder))
    return rows.encode_split(encoder, notes), encoder


def can_be_private(source: DataSource) -> EncodedSource:
    """Return the source, or raise a SettingError if its inputs need no encoder."""
    if not isinstance(source, EncodedSource):
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
