"""The table of named datasets, and how a name or a file becomes a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from equidp._validate import unknown_name
from equidp.data.adult import ADULT, ADULT_ESIPOVA
from equidp.data.dataset import DataSource
from equidp.data.digits import Digits
from equidp.data.dutch import DUTCH, DUTCH_ESIPOVA
from equidp.data.mnist import MNIST
from equidp.data.read import PARQUET
from equidp.data.table import TEST_SHARE, TableSource
from equidp.errors import DataError, SettingError

SOURCES: dict[str, DataSource] = {
    source.name: source
    for source in (
        Digits(),
        MNIST("mnist"),
        MNIST("mnist-unit", standardised=False),
        MNIST("mnist-esipova", kept_eights=None, standardised=False),
        ADULT,
        ADULT_ESIPOVA,
        DUTCH,
        DUTCH_ESIPOVA,
    )
}
"""Name -> source: -esipova as prepared by Esipova et al. (ICLR 2023), others as by Xu et al. (KDD 2021)."""


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
    """Returns a named dataset, or a CSV or Parquet file as one.

    Args:
        name_or_path: a name from SOURCES, or a file. All other arguments are for files.
        target: column to predict.
        group: column of the groups, or several, which are crossed.
        drop: columns to leave out.
        missing: "refuse" missing values, or make them a "category" of their own.
        bounds: public range of numeric columns; others are scaled by statistics of the training split.
        test_share: share of the rows to test on, in (0, 1).

    Raises:
        SettingError: an unknown name, or settings that do not go with it.
        DataError: no such file.

    >>> open_source("digits").split(seed=0).train.group_sizes().tolist()
    [133, 136, 133, 137, 136, 136, 136, 134, 13, 135]
    """
    path = Path(name_or_path)
    if path.suffix.lower() not in (".csv", *PARQUET) and not path.is_file():
        if name_or_path not in SOURCES:
            raise unknown_name("data (a path would end in .csv or .parquet)", name_or_path, SOURCES)
        if target or group or drop or bounds or missing != "refuse" or test_share != TEST_SHARE:
            raise SettingError(
                f"target, group, drop, missing, bounds and test_share are for files; {name_or_path!r} comes "
                "with its own. Leave them out."
            )
        return SOURCES[name_or_path]
    if not path.is_file():
        raise DataError(f"there is no file {name_or_path!r}; check the path.")
    if not target or not group:
        raise SettingError(
            f"{name_or_path!r} needs the column to predict (target) and the column of the groups (group)."
        )
    ranges = tuple((column, *span) for column, span in (bounds or {}).items())
    # Worker processes may run in another folder, so the path is absolute.
    return TableSource(str(path.absolute()), target, _names(group), _names(drop), missing, ranges, test_share)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
