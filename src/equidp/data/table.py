"""A CSV or Parquet file as grouped data: numbers scaled, categories one-hot, groups crossed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from equidp.data.checks import feature_problems, first_text, missing_problem, refuse, weight_problem
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.data.encoding import TableEncoder
from equidp.data.guesses import doubts
from equidp.data.labels import coded, crossed, rows_by_content
from equidp.data.read import plain_name, read_table
from equidp.data.recipe import Recipe
from equidp.errors import DataWarning, SettingError

_MOST_CLASSES = 100
MOST_GROUPS = 100


@dataclass(frozen=True)
class TableSource:
    """A CSV or Parquet file. Target, group and dropped columns are not among the inputs.

    Attributes:
        path: the file.
        recipe: how it is read, with target and group. Numbers without public bounds are standardised by the
            training split, which epsilon does not cover.

    >>> TableSource("people.csv", Recipe(target="income", group=("sex",))).name
    'people'
    """

    path: str
    recipe: Recipe

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
        """Splits by the seed and by what is in each row.

        Raises:
            DataError: says what in the file cannot be used, and what to do.
        """
        return self.prepared(seed)[0]

    def prepared(self, seed: int) -> tuple[DataSplit, TableEncoder]:
        """Returns the split, and the encoder that made its inputs; warns of `doubts` about the columns."""
        recipe = self.recipe
        table = self._table()
        targets, class_names = coded(table[recipe.target])
        groups, group_names = crossed(table, recipe.group)
        features = table.drop(columns=self._labels)
        train, test = rows_by_content(table, groups, group_names, recipe.test_share, seed)
        bounds = {name: (low, high) for name, low, high in recipe.bounds}
        encoder = TableEncoder.fitted(features, train, bounds, recipe.missing)
        labels = torch.from_numpy(targets), torch.from_numpy(groups)
        inputs, weights = encoder.encode(features), self._weights(table)
        whole = GroupedDataset(inputs, *labels, group_names, class_names, self.name, weights)
        trained, tested = (whole.subset(torch.from_numpy(rows)) for rows in (train, test))
        return DataSplit(trained, tested, encoder.notes()), encoder

    @property
    def _labels(self) -> list[str]:
        """Columns that are no inputs."""
        weight = () if self.recipe.weight is None else (self.recipe.weight,)
        return list(dict.fromkeys([str(self.recipe.target), *self.recipe.group, *weight]))

    def _weights(self, table: pd.DataFrame) -> torch.Tensor | None:
        if self.recipe.weight is None:
            return None
        return torch.from_numpy(table[self.recipe.weight].to_numpy(dtype=np.float32))

    def _table(self) -> pd.DataFrame:
        """The columns of the file that are not dropped, after all checks; problems are raised together."""
        read = read_table(Path(self.path), self.recipe)
        table, labels = read.table, self._labels
        said = doubts(table, str(self.recipe.target), self.recipe.group)
        for sentence in (*read.notes, *said):
            warnings.warn(sentence, DataWarning, stacklevel=4)
        problems = [*read.problems, *feature_problems(table.drop(columns=labels, errors="ignore"))]
        if len(table.columns) + len(read.problems) == len(labels):
            problems.append(
                "no column is left as an input; expected at least one beside target, groups and dropped "
                "columns."
            )
        for name, *_ in self.recipe.bounds:
            if name in table and table[name].dtype != float:
                problems.append(
                    f"column {name!r} has bounds but holds texts, {first_text(table[name])}; bounds are for "
                    "numbers."
                )
        if all(name in table for name in labels):
            problems += self._label_problems(table)
        if self.recipe.missing == "refuse":
            problems += missing_problem(
                table,
                "Drop those rows or columns, or treat missing as a category of its own (missing='category'; "
                "--missing category).",
            )
        refuse(self.path, problems)
        return table

    def _label_problems(self, table: pd.DataFrame) -> list[str]:
        """What is wrong with the target and the groups; groups are not judged where values are missing."""
        target, columns = self.recipe.target, ", ".join(self.recipe.group)
        classes, found = table[target].nunique(), []
        absent = int(table[target].isna().sum())
        if absent:
            found.append(f"target {target!r} is missing in {absent} of {len(table)} rows; remove those rows.")
        if self.recipe.weight is not None:
            found += weight_problem(table[self.recipe.weight])
        if classes == 1:
            only = coded(table[target])[1][0]
            found.append(f"target {target!r} has one class only, {only!r}; expected at least two.")
        if classes > _MOST_CLASSES:
            found.append(
                f"target {target!r} has {classes} distinct values; expected at most {_MOST_CLASSES} classes. "
                "Regression is not supported yet: bin numbers into classes first."
            )
        if self.recipe.missing == "refuse" and table[list(self.recipe.group)].isna().any(axis=None):
            return found
        groups, names = crossed(table, self.recipe.group)
        if len(names) > MOST_GROUPS:
            found.append(
                f"{columns} gives {len(names)} groups; bin or merge values, to at most {MOST_GROUPS}."
            )
            return found
        if len(names) < 2:
            found.append(f"{columns} gives one group only, {names[0]!r}; expected at least two to compare.")
        for name, size in zip(names, np.bincount(groups).tolist(), strict=True):
            if size < 2:
                found.append(
                    f"group {name!r} has {size} example; it needs one to train and one to test on. Merge it "
                    "with another."
                )
        return found
