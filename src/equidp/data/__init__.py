"""Datasets with groups: the table of names, and any CSV or Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from equidp._validate import unknown_name
from equidp.data.adult import AdultEsipova, AdultXu
from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
from equidp.data.digits import MNIST, Digits
from equidp.data.dutch import DutchEsipova, DutchXu
from equidp.data.read import PARQUET, parse_bounds
from equidp.data.table import TEST_SHARE, TableSource
from equidp.errors import DataError, SettingError

__all__ = [
    "SOURCES",
    "DataSource",
    "DataSplit",
    "GroupedDataset",
    "TableSource",
    "open_source",
    "parse_bounds",
]

SOURCES: dict[str, Callable[[], DataSource]] = {
    "digits": Digits,
    "mnist": lambda: MNIST("mnist"),
    "mnist-unit": lambda: MNIST("mnist-unit", standardised=False),
    "mnist-esipova": lambda: MNIST("mnist-esipova", kept_eights=None, standardised=False),
    "adult": AdultXu,
    "adult-esipova": AdultEsipova,
    "dutch": DutchXu,
    "dutch-esipova": DutchEsipova,
}
"""Name -> source. Without a suffix: as Xu et al. (KDD 2021) prepared it; -esipova: as Esipova et al. (ICLR 2023) did."""


def open_source(
    name_or_path: str,
    *,
    target: str | None = None,
    group: str | Sequence[str] = (),
    drop: str | Sequence[str] = (),
    missing: str = "refuse",
    bounds: Mapping[str, tuple[float, float]] | None = None,
    test_share: float = TEST_SHARE,
) -> DataSource:
    """A named dataset, or a CSV or Parquet file, for which a target and group columns are needed.

    Args:
        name_or_path: one of SOURCES, or a file.
        target: column to predict.
        group: column of the groups, or several, which are crossed.
        drop: columns to leave out.
        missing: "refuse" or "category": what becomes of missing values.
        bounds: public range of each of some columns of numbers, to scale by instead of by the training split.
        test_share: of the file's rows, in (0, 1).

    Raises:
        SettingError: an unknown name, or settings that do not go with it.
        DataError: no such file.
    """
    path = Path(name_or_path)
    if path.suffix.lower() not in (".csv", *PARQUET) and not path.is_file():
        if name_or_path not in SOURCES:
            raise unknown_name("data (a path would end in .csv or .parquet)", name_or_path, SOURCES)
        if target or group or drop or bounds or missing != "refuse" or test_share != TEST_SHARE:
            raise SettingError(
                f"target, group, drop, missing, bounds and test_share are for files; {name_or_path!r} comes with its own. "
                "Leave them out."
            )
        return SOURCES[name_or_path]()
    if not path.is_file():
        raise DataError(f"there is no file {name_or_path!r}.")
    if not target or not group:
        raise SettingError(
            f"{name_or_path!r} needs the column to predict (target) and the column of the groups (group)."
        )
    ranges = tuple((column, *span) for column, span in (bounds or {}).items())
    # Absolute, for worker processes may be in another folder.
    return TableSource(
        str(path.absolute()), target, _names(group), _names(drop), missing, ranges, test_share=test_share
    )


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    """One name alone is a text; as a sequence it would be its letters."""
    return (given,) if isinstance(given, str) else tuple(given)
