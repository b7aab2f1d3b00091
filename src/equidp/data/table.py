"""A CSV or Parquet file as grouped data: numbers scaled, categories one-hot, groups crossed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from equidp._validate import check_number, unknown_name
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.data.encoding import TableEncoder
from equidp.data.guesses import doubts
from equidp.data.labels import coded, crossed, rows_by_content
from equidp.data.read import check_columns, check_features, first_text, read_table, refuse_missing
from equidp.errors import DataError, DataWarning, SettingError

MISSING_RULES = ("refuse", "category")
_MOST_CLASSES = 100
MOST_GROUPS = 100
TEST_SHARE = 0.2


@dataclass(frozen=True)
class TableSource:
    """A CSV or Parquet file. Target, group and dropped columns are not among the inputs.

    Attributes:
        path: the file.
        target: column to predict; each of its values is a class.
        group: columns whose combinations of values are the groups; the target may be among them.
        drop: columns to leave out.
        missing: "refuse" missing values, or make them a "category" (numbers: an indicator) of their own. A
            missing target is always refused.
        bounds: (column, low, high): public range to clip numbers to and scale to [0, 1]. Columns without one
            are standardised by the training split, which epsilon does not cover.
        test_share: chance of each row to be in the test set, drawn from the seed and the row's content. Each
            group has at least one row there.

    >>> TableSource("people.csv", target="income", group=("sex",)).name
    'people'
    """

    path: str
    target: str
    group: tuple[str, ...]
    drop: tuple[str, ...] = ()
    missing: str = "refuse"
    bounds: tuple[tuple[str, float, float], ...] = ()
    test_share: float = TEST_SHARE

    def __post_init__(self) -> None:
        if self.missing not in MISSING_RULES:
            raise unknown_name("rule for missing values", self.missing, MISSING_RULES)
        check_number("(0, 1)", test_share=self.test_share)
        if not self.group:
            raise SettingError("no group column; name the column (or columns) whose values are the groups.")
        bounded = [name for name, *_ in self.bounds]
        groups = [name for name in self.group if name != self.target]  # classes may be groups
        roles = [self.target, *groups, *self.drop, *bounded]
        twice = sorted({name for name in roles if roles.count(name) > 1})
        if twice:
            raise SettingError(
                f"column {twice[0]!r} is named twice among target, group, drop and bounds; name each once."
            )
        for name, low, high in self.bounds:
            if not (low < high and np.isfinite([low, high]).all()):
                raise SettingError(
                    f"bounds of {name!r} are {low:g} to {high:g}; expected finite numbers, low < high."
                )

    @property
    def name(self) -> str:
        return Path(self.path).stem

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
        table = self._table()
        targets, class_names = coded(table[self.target])
        groups, group_names = crossed(table, self.group)
        self._check_labels(class_names, groups, group_names)
        features = table.drop(columns=[self.target, *self.group])
        check_features(features)
        train, test = rows_by_content(table, groups, group_names, self.test_share, seed)
        bounds = {name: (low, high) for name, low, high in self.bounds}
        encoder = TableEncoder.fitted(features, train, bounds, self.missing)
        labels = torch.from_numpy(targets), torch.from_numpy(groups)
        whole = GroupedDataset(encoder.encode(features), *labels, group_names, class_names, self.name)
        trained, tested = (whole.subset(torch.from_numpy(rows)) for rows in (train, test))
        return DataSplit(trained, tested, encoder.notes()), encoder

    def _table(self) -> pd.DataFrame:
        table = read_table(Path(self.path), self.drop)
        check_columns(table, [self.target], "target")
        check_columns(table, self.group, "group")
        for sentence in doubts(table, self.target, self.group):
            warnings.warn(sentence, DataWarning, stacklevel=4)
        check_columns(table, [name for name, *_ in self.bounds], "bounds")
        for name, *_ in self.bounds:
            if table[name].dtype != float:
                raise DataError(
                    f"column {name!r} has bounds but holds texts, {first_text(table[name])}; bounds are for "
                    "numbers."
                )
        absent = int(table[self.target].isna().sum())
        if absent:
            raise DataError(
                f"target {self.target!r} is missing in {absent} of {len(table)} rows; remove those rows."
            )
        if self.missing == "refuse":
            refuse_missing(
                table,
                "Drop those rows or columns, or treat missing as a category of its own (missing='category'; "
                "--missing category).",
            )
        return table

    def _check_labels(
        self, class_names: tuple[str, ...], groups: np.ndarray, group_names: tuple[str, ...]
    ) -> None:
        if len(class_names) < 2:
            raise DataError(
                f"target {self.target!r} has one class only, {class_names[0]!r}; expected at least two."
            )
        if len(class_names) > _MOST_CLASSES:
            raise DataError(
                f"target {self.target!r} has {len(class_names)} distinct values; expected at most "
                f"{_MOST_CLASSES} classes. Regression is not supported yet: bin numbers into classes first."
            )
        columns = ", ".join(self.group)
        if len(group_names) > MOST_GROUPS:
            raise DataError(
                f"{columns} gives {len(group_names)} groups; bin or merge values, to at most {MOST_GROUPS}."
            )
        if len(group_names) < 2:
            raise DataError(
                f"{columns} gives one group only, {group_names[0]!r}; expected at least two to compare."
            )
        for name, size in zip(group_names, np.bincount(groups).tolist(), strict=True):
            if size < 2:
                raise DataError(
                    f"group {name!r} has {size} example; it needs one to train and one to test on. Merge it "
                    "with another."
                )
