"""Any table as grouped data: numbers scaled, categories one-hot, groups from one or several columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from equidp.data.base import DataSplit, GroupedDataset
from equidp.data.labels import as_text, coded, crossed, stratified_rows
from equidp.data.tables import check_columns, check_features, read_table, refuse_missing
from equidp.errors import DataError, SettingError
from equidp.names import unknown_name

MISSING_RULES = ("refuse", "category")
_MOST_CLASSES = 100
_MOST_GROUPS = 100
TEST_SHARE = 0.2


@dataclass(frozen=True)
class TableSource:
    """A CSV or Parquet file. Target, group and dropped columns are not among the inputs.

    Attributes:
        path: the file.
        target: column to predict; each of its values is a class.
        group: columns whose combinations of values are the groups.
        drop: columns to leave out.
        missing: "refuse", or "category": a category (or indicator) of its own; a missing target is always refused.
        bounds: (column, low, high): public ranges that numbers are clipped to and scaled by, to [0, 1]. Numbers without one are
            standardised by the training split, which epsilon does not cover.
        test_share: of the rows, by the seed, stratified by class and group.
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
        if not 0 < self.test_share < 1:
            raise SettingError(f"test_share={self.test_share}; expected a share in (0, 1).")
        if not self.group:
            raise SettingError("no group column; name the column (or columns) whose values are the groups.")
        bounded = [name for name, *_ in self.bounds]
        roles = [self.target, *self.group, *self.drop, *bounded]
        twice = sorted({name for name in roles if roles.count(name) > 1})
        if twice:
            raise SettingError(
                f"column {twice[0]!r} is named twice among target, group, drop and bounds; each needs its own."
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
        """A split of its own for each seed.

        Raises:
            DataError: says what in the file cannot be used, and what to do.
        """
        table = self._table()
        targets, class_names = coded(table[self.target])
        groups, group_names = crossed(table, self.group)
        self._check_labels(class_names, groups, group_names)
        features = table.drop(columns=[self.target, *self.group])
        check_features(features)
        train, test = stratified_rows(targets, groups, group_names, self.test_share, seed)
        inputs, notes = self._inputs(features, train)
        whole = GroupedDataset(
            inputs, torch.from_numpy(targets), torch.from_numpy(groups), group_names, class_names
        )
        return DataSplit(whole.subset(torch.from_numpy(train)), whole.subset(torch.from_numpy(test)), notes)

    def _table(self) -> pd.DataFrame:
        table = read_table(Path(self.path), self.drop)
        check_columns(table, [self.target], "target")
        check_columns(table, self.group, "group")
        check_columns(table, [name for name, *_ in self.bounds], "bounds")
        for name, *_ in self.bounds:
            if table[name].dtype != float:
                raise DataError(
                    f"column {name!r} has bounds but holds texts, such as {table[name].dropna().iloc[0]!r}; "
                    "bounds are for numbers."
                )
        absent = int(table[self.target].isna().sum())
        if absent:
            raise DataError(
                f"target {self.target!r} is missing in {absent} of {len(table)} rows; remove those rows."
            )
        if self.missing == "refuse":
            refuse_missing(table)
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
                f"target {self.target!r} has {len(class_names)} distinct values; expected at most {_MOST_CLASSES} classes. "
                "Regression is not supported yet: bin numbers into classes first."
            )
        columns = ", ".join(self.group)
        if len(group_names) > _MOST_GROUPS:
            raise DataError(
                f"{columns} gives {len(group_names)} groups; bin or merge values, to at most {_MOST_GROUPS}."
            )
        if len(group_names) < 2:
            raise DataError(
                f"{columns} gives one group only, {group_names[0]!r}; expected at least two to compare."
            )
        for name, size in zip(group_names, np.bincount(groups).tolist(), strict=True):
            if size < 2:
                raise DataError(
                    f"group {name!r} has {size} example; it needs one to train and one to test on. Merge it with another."
                )

    def _inputs(self, features: pd.DataFrame, train: np.ndarray) -> tuple[torch.Tensor, tuple[str, ...]]:
        """[n, columns] float32, and what epsilon does not cover."""
        bounds = {name: (low, high) for name, low, high in self.bounds}
        blocks, scaled, listed, flagged = [], [], [], []
        for name in features.columns:
            column = features[name]
            if column.dtype != float:
                text = as_text(column).to_numpy(dtype=object).reshape(-1, 1)
                encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(text[train])
                blocks.append(encoder.transform(text))
                listed.append(name)
                continue
            values = column.to_numpy(dtype=float).reshape(-1, 1)
            if column.isna().any():
                blocks.append(np.isnan(values).astype(float))
                flagged.append(name)
            if name in bounds:
                low, high = bounds[name]
                blocks.append(np.nan_to_num((np.clip(values, low, high) - low) / (high - low), nan=0.5))
            else:
                known = values[train][~np.isnan(values[train])].reshape(-1, 1)
                scaler = StandardScaler().fit(known if len(known) else np.zeros((1, 1)))
                blocks.append(np.nan_to_num(scaler.transform(values), nan=0.0))
                scaled.append(name)
        notes = []
        if scaled:
            notes.append(
                f"Means and deviations of {', '.join(scaled)} come from the training split; epsilon does not cover them. "
                "Public bounds would avoid that."
            )
        if listed:
            notes.append(
                f"The lists of categories of {', '.join(listed)} come from the training split; epsilon does not cover them."
            )
        if flagged:
            notes.append(
                f"That values are missing in {', '.join(flagged)} was read off the data, to add a column that marks them; epsilon "
                "does not cover it."
            )
        return torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32)), tuple(notes)
