"""A CSV or Parquet file as grouped data: numbers scaled, categories one-hot, groups crossed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from equidp.data.dataset import DataSplit
from equidp.data.people import rows_by_person
from equidp.data.unencoded import Unencoded, split_and_encode
from equidp.errors import DataWarning, SettingError
from equidp.tables.cache import key_of
from equidp.tables.checks import (
    label_columns,
    problems_of,
    refuse,
)
from equidp.tables.encode import TableEncoder
from equidp.tables.guesses import absences, doubts
from equidp.tables.labels import code_values, cross_columns
from equidp.tables.private_encode import private_encoder
from equidp.tables.read import plain_name
from equidp.tables.recipe import Recipe
from equidp.tables.release import Release
from equidp.tables.split import draw_rows, rows_by_content
from equidp.tables.stored import cached_array, read_table


@dataclass(frozen=True)
class TableSource:
    """A CSV or Parquet file. Target, group and dropped columns are not among the inputs.

    Attributes:
        path: the file.
        recipe: recipe to read it by, with target and group. Numbers without public bounds are standardised by
            the training split, which epsilon does not cover.
        private_noise: see `EncodedSource`.

    >>> TableSource("people.csv", Recipe(target="income", group=("sex",))).name
    'people'
    """

    path: str
    recipe: Recipe
    private_noise: float | None = None

    def __post_init__(self) -> None:
        if not self.recipe.target:
            raise SettingError("no target; name the column to predict.")
        if not self.recipe.group:
            raise SettingError("no group column; name the column (or columns) whose values are the groups.")

    @property
    def name(self) -> str:
        return Path(plain_name(self.path)).stem

    @property
    def highlighted_groups(self) -> tuple[str, str] | None:
        return None

    def split(self, seed: int) -> DataSplit:
        """Splits by the seed and by each row's content.

        Raises:
            DataError: columns that cannot be used, with a remedy for each.
        """
        return split_and_encode(self, seed)[0]

    def split_rows(self, seed: int) -> Unencoded:
        """Splits the rows without encoding them; warns of `doubts` about the columns."""
        table, key = self._table()
        targets, class_names = self._targets(table)
        groups, group_names = cross_columns(table, self.recipe.group)
        features = table.drop(columns=label_columns(self.recipe))
        people = person_of = None
        if self.recipe.person is None:
            drawn = _draws_of_rows(table, seed, key, self.name)
            train, test = rows_by_content(drawn, groups, group_names, self.recipe.test_share, seed)
        else:
            people, train, test, person_of = rows_by_person(table, self.recipe, groups, group_names, seed)
        names, weights = (group_names, class_names, self.name), self._weights(table)
        bounds = self.recipe.target_bounds
        return Unencoded(
            *(features, train, test, targets, groups, *names, weights),
            target_bounds=bounds,
            notes=() if people is None else (people.note,),
            people=people,
            person_of=person_of,
            key=key,
            textual=tuple(each for each in label_columns(self.recipe) if table[each].dtype != float),
        )

    def exact_encoder(self, rows: Unencoded) -> TableEncoder:
        fitted = TableEncoder.fit(rows.features, rows.train, self._bounds, self.recipe.missing)
        return rows.with_textual(fitted)

    def private_encoder(self, training: pd.DataFrame, release: Release) -> TableEncoder:
        return private_encoder(training, self._bounds, self.recipe.missing, release)

    def notes(self, encoder: TableEncoder) -> tuple[str, ...]:
        return encoder.notes()

    @property
    def _bounds(self) -> dict[str, tuple[float, float]]:
        return {name: (low, high) for name, low, high in self.recipe.bounds}

    def _targets(self, table: pd.DataFrame) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return targets, [n], and the names of their classes; no names for numbers to predict."""
        if self.recipe.target_bounds is None:
            return code_values(table[self.recipe.target])
        return table[self.recipe.target].to_numpy(dtype=np.float32), ()

    def _weights(self, table: pd.DataFrame) -> torch.Tensor | None:
        if self.recipe.weight is None:
            return None
        return torch.from_numpy(table[self.recipe.weight].to_numpy(dtype=np.float32))

    def _table(self) -> tuple[pd.DataFrame, str]:
        """Return the checked columns of the file without dropped ones, and the key of a table on disk."""
        read = read_table(Path(self.path), self.recipe)
        absent = {name: about.absent for name, about in read.facts.items()}
        said = [*doubts(read.table, self.recipe), *absences(absent, read.table, self.recipe)]
        for sentence in (*read.notes, *said):
            warnings.warn(sentence, DataWarning, stacklevel=5)
        refuse(self.path, problems_of(read, self.recipe))
        return read.table, read.key


def _draws_of_rows(table: pd.DataFrame, seed: int, key: str, name: str) -> npt.NDArray[np.float64]:
    """Return the draws of all rows; for a table on disk, they are cached there."""
    if not key:
        return draw_rows(table, seed)
    return cached_array(
        f"the split of {name!r} by seed {seed}", key_of("draws", key, seed), lambda: draw_rows(table, seed)
    )
