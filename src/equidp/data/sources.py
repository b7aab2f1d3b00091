"""The table of named datasets, and the function that makes a source of a name or a file."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from equidp._parts import is_import_path
from equidp._validate import unknown_name
from equidp.data.census import ADULT, ADULT_ESIPOVA, DUTCH, DUTCH_ESIPOVA
from equidp.data.cifar10 import CIFAR10
from equidp.data.dataset import DataSource
from equidp.data.digits import Digits
from equidp.data.features import Transform, WithFeatures, check_features
from equidp.data.mnist import MNIST
from equidp.data.own import OwnSource
from equidp.data.table import TableSource, with_binning
from equidp.errors import DataError, SettingError
from equidp.tables.read import is_file_name
from equidp.tables.recipe import Recipe

SOURCES: dict[str, DataSource] = {
    source.name: source
    for source in (
        Digits(),
        MNIST("mnist"),
        MNIST("mnist-unit", standardised=False),
        MNIST("mnist-esipova", kept_eights=None, standardised=False),
        MNIST("mnist-whole", kept_eights=None, keep_probability=1.0, highlighted_groups=None),
        ADULT,
        ADULT_ESIPOVA,
        DUTCH,
        DUTCH_ESIPOVA,
        CIFAR10(),
    )
}
"""Name -> source: -esipova as prepared by Esipova et al. (ICLR 2023).

MNIST, Adult and Dutch without an ending are as Xu et al. (KDD 2021) prepared them.
"""


def check_data_name(name_or_path: str) -> None:
    """Raise a SettingError unless a text names data: a name from SOURCES, an import path, or a path."""
    named = is_import_path(name_or_path) or name_or_path in SOURCES
    if not (named or is_file_name(name_or_path) or Path(name_or_path).exists()):
        raise unknown_name("data (a path would end in .csv or .parquet)", name_or_path, SOURCES)


def open_source(
    name_or_path: str,
    *,
    recipe: Recipe | str | os.PathLike[str] | None = None,
    features: str | Transform | None = None,
    binning: str | None = None,
    **options: Any,
) -> DataSource:
    """Return the source of a named dataset, of a CSV or Parquet file, or of a folder of Parquet files.

    Args:
        name_or_path: a name from SOURCES, an import path of a user-defined source, or a file.
        recipe: how to read a file: a `Recipe`, or a run.toml that holds one.
        features: for images and user-defined sources: name from `equidp.data.features.FEATURES`, or your own
            network or function; see `WithFeatures`. None: unchanged inputs.
        binning: for tables and censuses: "standard", "cut" or cut with its intervals, such as "cut:4,16"; see
            `equidp.data.table.ColumnSource`. None: advice may choose one.
        options: fields of the recipe that override it, such as target and group, which a `RoleSource` takes
            too. None: as the recipe says.

    Raises:
        SettingError: an unknown name, or settings that do not apply to it.
        DataError: the file does not exist.

    >>> open_source("digits").split(seed=0).train.group_sizes().tolist()
    [133, 136, 133, 137, 136, 136, 136, 134, 13, 135]
    """
    if isinstance(features, str):
        check_features(features)
    whole = Recipe.of(recipe, {name: value for name, value in options.items() if value is not None})
    named = OwnSource(name_or_path) if is_import_path(name_or_path) else SOURCES.get(name_or_path)
    path = Path(name_or_path)
    check_data_name(name_or_path)
    if named is not None and not is_file_name(name_or_path) and not path.is_file():
        return _named_source(named, name_or_path, whole, features, binning)
    if not path.exists():
        raise DataError(f"there is no file {name_or_path!r}; check the path.", field="path")
    if features is not None:
        raise SettingError(
            f"features {features!r} are for images and for sources of your own; {name_or_path!r} is a table. "
            "Leave them out."
        )
    needed = {"target": "the column to predict (target; --target COLUMN)"} if not whole.target else {}
    if not whole.group:
        itself = f"--group {shlex.quote(whole.target or 'TARGET')}"
        needed["group"] = (
            f"the column of the groups to compare (group; --group COLUMN; or {itself}: each class is a group)"
        )
    if needed:
        raise SettingError(
            f"{name_or_path!r} needs {' and '.join(needed.values())}. equidp inspect lists its columns.",
            field=next(iter(needed)),
        )
    # Worker processes may run in another folder, so the path is absolute.
    return TableSource(str(path.absolute()), whole, binning=binning)


def _named_source(
    source: DataSource, name: str, recipe: Recipe, features: str | Transform | None, binning: str | None
) -> DataSource:
    stated = set(recipe.to_plain()) - {"positive"}
    if isinstance(source, OwnSource) and hasattr(source.source, "with_roles"):
        source = replace(source, target=recipe.target, group=recipe.group)
        stated -= {"target", "group"}
    if stated:
        raise SettingError(
            f"{', '.join(sorted(stated))} and other settings of a recipe are for files; {name!r} comes with "
            "its own. Leave them out.",
            field=", ".join(sorted(stated)),
        )
    source = source if binning is None else with_binning(source, binning)
    return source if features is None else WithFeatures(source, features)
