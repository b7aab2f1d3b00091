"""A CSV or Parquet file as grouped data: numbers scaled, categories one-hot, groups crossed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from equidp.data.cache import key_of
from equidp.data.checks import (
    feature_problems,
    missing_problem,
    number_problem,
    refuse,
    weight_problem,
)
from equidp.data.dataset import DataSplit
from equidp.data.draws import draws
from equidp.data.encoding import TableEncoder
from equidp.data.guesses import absences, doubts
from equidp.data.labels import coded, crossed, rows_by_content
from equidp.data.people import rows_by_person
from equidp.data.plain import as_key, in_shell
from equidp.data.private_encoding import private_encoder
from equidp.data.read import plain_name
from equidp.data.recipe import Recipe
from equidp.data.release import Release
from equidp.data.stored import read_table, remembered
from equidp.data.understood import Columns
from equidp.data.unencoded import Unencoded, prepared
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
        """Splits by the seed and by what is in each row.

        Raises:
            DataError: says what in the file cannot be used, and what to do.
        """
        return prepared(self, seed)[0]

    def unencoded(self, seed: int) -> Unencoded:
        """Splits the rows, before any becomes an input; warns of `doubts` about the columns."""
        table, key = self._table()
        targets, class_names = self._targets(table)
        groups, group_names = crossed(table, self.recipe.group)
        features = table.drop(columns=_labels(self.recipe))
        people = person_of = None
        if self.recipe.person is None:
            drawn = _drawn(table, seed, key, self.name)
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
            textual=tuple(each for each in _labels(self.recipe) if table[each].dtype != float),
        )

    def exact_encoder(self, rows: Unencoded) -> TableEncoder:
        fitted = TableEncoder.fitted(rows.features, rows.train, self._bounds, self.recipe.missing)
        return rows.labelled(fitted)

    def private_encoder(self, training: pd.DataFrame, release: Release) -> TableEncoder:
        return private_encoder(training, self._bounds, self.recipe.missing, release)

    def notes(self, encoder: TableEncoder) -> tuple[str, ...]:
        return encoder.notes()

    @property
    def _bounds(self) -> dict[str, tuple[float, float]]:
        return {name: (low, high) for name, low, high in self.recipe.bounds}

    def _targets(self, table: pd.DataFrame) -> tuple[np.ndarray, tuple[str, ...]]:
        """Targets, [n], and the names of their classes; none where they are numbers to predict."""
        if self.recipe.target_bounds is None:
            return coded(table[self.recipe.target])
        return table[self.recipe.target].to_numpy(dtype=np.float32), ()

    def _weights(self, table: pd.DataFrame) -> torch.Tensor | None:
        if self.recipe.weight is None:
            return None
        return torch.from_numpy(table[self.recipe.weight].to_numpy(dtype=np.float32))

    def _table(self) -> tuple[pd.DataFrame, str]:
        """The columns of the file that are not dropped, after all checks, and the key of a table on disk."""
        read = read_table(Path(self.path), self.recipe)
        absent = {name: about.absent for name, about in read.facts.items()}
        said = [*doubts(read.table, self.recipe), *absences(absent, read.table, self.recipe)]
        for sentence in (*read.notes, *said):
            warnings.warn(sentence, DataWarning, stacklevel=5)
        refuse(self.path, problems_of(read, self.recipe))
        return read.table, read.key


def _drawn(table: pd.DataFrame, seed: int, key: str, name: str) -> npt.NDArray[np.float64]:
    """The draws of all rows; those of a table on disk are kept there."""
    if not key:
        return draws(table, seed)
    return remembered(
        f"the split of {name!r} by seed {seed}", key_of("draws", key, seed), lambda: draws(table, seed)
    )


def _labels(recipe: Recipe) -> list[str]:
    """Columns that are no inputs."""
    others = (each for each in (recipe.weight, recipe.person) if each is not None)
    return list(dict.fromkeys([str(recipe.target), *recipe.group, *others]))


def problems_of(read: Columns, recipe: Recipe) -> list[str]:
    """Returns a sentence for each reason why a table cannot be trained on by this recipe."""
    table, labels = read.table, _labels(recipe)
    problems = [*read.problems, *feature_problems(table.drop(columns=labels, errors="ignore"))]
    if len(table.columns) + len(read.problems) == len(labels):
        problems.append(
            "no column is left as an input; expected at least one beside target, groups and dropped columns."
        )
    for name, *_ in recipe.bounds:
        if name in table and table[name].dtype != float:
            problems.append(
                f"column {name!r} has bounds but holds texts, {read.first_text(name)}; bounds are for "
                "numbers."
            )
    if all(name in table for name in labels):
        problems += _label_problems(read, recipe)
    if recipe.missing == "refuse":
        words = (
            f" Where {word!r} is a value, say so (--not-na {in_shell(f'{as_key(name)}={word}')})."
            for name, about in read.facts.items()
            for word in about.absent
            if word and name in table and table[name].dtype != float
        )
        problems += missing_problem(
            table,
            "Drop those rows or columns, or treat missing as a category of its own (missing='category'; "
            f"--missing category).{next(words, '')}",
        )
    return problems


def _label_problems(read: Columns, recipe: Recipe) -> list[str]:
    """What is wrong with the target and the groups; groups are not judged where values are missing."""
    table = read.table
    target, columns = str(recipe.target), ", ".join(recipe.group)
    classes, found = table[target].nunique(), []
    absent = int(table[target].isna().sum())
    if absent:
        found.append(f"target {target!r} is missing in {absent} of {len(table)} rows; remove those rows.")
    if recipe.weight is not None:
        found += weight_problem(table[recipe.weight], read.first_text(recipe.weight))
    if recipe.person is not None and (unknown := int(table[recipe.person].isna().sum())):
        found.append(
            f"person {recipe.person!r} is missing in {unknown} of {len(table)} rows, and epsilon is promised "
            "to people. Fill that in, or remove those rows."
        )
    if recipe.target_bounds is not None:
        found += number_problem(table[target], recipe.group, read.first_text(target))
    elif classes == 1:
        found.append(f"target {target!r} has one class only; expected at least two.")
    elif classes > _MOST_CLASSES:
        found.append(
            f"target {target!r} has {classes} distinct values; expected at most {_MOST_CLASSES} classes. "
            "Predict it as a number (--task regression --target-bounds LOW:HIGH), or bin it into classes."
        )
    elif recipe.positive is not None and recipe.positive not in coded(table[target].dropna())[1]:
        found.append(f"positive class {recipe.positive!r} is none of the classes of target {target!r}.")
    if recipe.missing == "refuse" and table[list(recipe.group)].isna().any(axis=None):
        return found
    groups, names = crossed(table, recipe.group)
    if len(names) > MOST_GROUPS:
        found.append(f"{columns} gives {len(names)} groups; bin or merge values, to at most {MOST_GROUPS}.")
        return found
    if len(names) < 2:
        found.append(f"{columns} gives one group only; expected at least two to compare.")
    if lonely := int((np.bincount(groups) < 2).sum()):
        found.append(
            f"{lonely:,} of the {len(names):,} groups by {columns} {'has' if lonely == 1 else 'have'} "
            "1 example; a group needs one to train and one to test on. Merge them with others."
        )
    return found
