"""RunRecord: an append-only table of a run's figures, which metrics, reports and plots read."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from equidp._files import write_whole
from equidp.errors import DataError


class RunRecord:
    """Rows of figures in the order they were appended, and the settings of the run.

    By default rows hold released values and figures of test data: nothing about the training data that
    epsilon does not cover.

    Args:
        settings: plain values (numbers, strings, lists) that describe the run.
        rows: rows of an earlier part of the run.

    Example:
        >>> import equidp
        >>> record = equidp.RunRecord({"method": "dpsgd"})
        >>> record.append({"epoch": 1, "group": "a", "accuracy": 0.5})
        >>> record.table()["accuracy"].tolist()
        [0.5]
    """

    def __init__(
        self, settings: Mapping[str, Any] | None = None, rows: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.settings: dict[str, Any] = dict(settings or {})
        self._rows: list[dict[str, Any]] = [dict(row) for row in rows]

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds one row."""
        self._rows.append(dict(row))

    def table(self) -> pd.DataFrame:
        """One row per epoch and group, in order."""
        return pd.DataFrame(self._rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table as Parquet with the settings in its metadata; all or nothing."""
        table = self.table()
        table.attrs = {"settings": json.dumps(self.settings)}
        buffer = io.BytesIO()
        table.to_parquet(buffer)
        write_whole(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RunRecord:
        """The record in a file that `save` wrote.

        Raises:
            DataError: the file is missing, damaged or of another kind.
        """
        try:
            table = pd.read_parquet(path)
            settings = json.loads(table.attrs["settings"])
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path} is not a run's record ({error}); expected a file that RunRecord.save wrote."
            ) from error
        return cls(settings, table.to_dict("records"))
