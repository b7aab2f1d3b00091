"""CelebA: faces of celebrities with forty attributes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import torch

from equidp import DataError, DataSplit, GroupedDataset
from equidp.data.dataset import Labels, crossed_labels
from equidp.data.images import UNIT, kept_pixels
from equidp.data.origins import Origin, data_folder
from equidp.extend import unknown_name
from papers.images import image_paths, images_in, images_key, is_image

ORIGIN = Origin(
    "celeba",
    "CelebA",
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    "1.4 GB for the aligned and cropped images",
    "non-commercial research only",
    "celeba/img_align_celeba (a folder, or a .zip), and beside it list_attr_celeba and "
    "list_eval_partition (.txt or .csv)",
)
PUBLISHED: Mapping[str, Any] = {
    "model": "tanh-cnn", "epochs": 30, "noise_multiplier": 0.8, "learning_rate": 0.01, "delta": 1e-6,
    "by_method": {
        "global-adapt": {"learning_rate": 0.1, "tolerance": 0.7, "statistics_ratio": 12.5},
        "global": {"learning_rate": 0.1, "strict_bound": 100.0},
    },
}  # fmt: skip
"""30 epochs by the paper; settings of the global methods by experiment_scripts/celeba_script.sh of its code.

Their sigma_s is 10, not 10 sigma.
"""
SIDE = 64
_PARTS = {"train": 0, "validation": 1, "test": 2}
_OPPOSITES = {"Male": "Female", "Young": "Old"}
_FOLDERS = (".", "Anno", "Eval", "Img", "img_align_celeba")
"""Folders below celeba/ that may hold a file: one place, as on Google Drive, or two levels, as on Kaggle."""


@dataclass(frozen=True)
class CelebA:
    """CelebA (Liu et al. 2015) as Esipova et al. prepared it: aligned faces of 64x64 pixels in [0, 1].

    The split is the one that comes with it: 162,770 images to train on and 19,962 to test on; the 19,867 of
    its validation part are left out, as in their code. The seed chooses nothing. The files are for
    non-commercial research only, and are not downloaded; those of the official page (.txt) and of Kaggle
    (.csv) are read.

    Attributes:
        target: the attribute to predict.
        group: attributes whose combinations are the groups.
    """

    name: str = "celeba"
    target: str = "Male"
    group: tuple[str, ...] = ("Eyeglasses",)
    pixel_range: ClassVar[tuple[float, float]] = UNIT.range

    @property
    def published(self) -> Mapping[str, Any]:
        """Settings of Esipova et al."""
        return PUBLISHED

    @property
    def highlighted_groups(self) -> tuple[str, str] | None:
        """Groups without and with the attribute, where there is one."""
        return _names(self.group[0]) if len(self.group) == 1 else None

    def with_roles(self, target: str | None, group: tuple[str, ...]) -> CelebA:
        """Return this source with another target, or other groups; None and (): as they are."""
        return replace(self, target=target or self.target, group=group or self.group)

    def split(self, seed: int) -> DataSplit:
        """Return the public split."""
        return self.choose_examples(seed, *self.everything())

    def everything(self) -> tuple[GroupedDataset, GroupedDataset]:
        """Return the public training and test set.

        Raises:
            DataError: files that are missing, cut, or not CelebA's.
            SettingError: no such attribute; names the nearest.
        """
        files = _find_files()
        rows = _rows(files, (self.target, *self.group))
        paths = {PurePosixPath(path).name: path for path in image_paths(files.images)}
        train, test = (
            self._part(part, rows[rows["part"] == _PARTS[part]], paths, files.images)
            for part in ("train", "test")
        )
        return train, test

    def choose_examples(self, seed: int, *parts: GroupedDataset) -> DataSplit:
        """Return the training and the test set as a split."""
        train, test = parts
        return DataSplit(train, test, ("The validation part of CelebA is left out.",))

    def _part(self, part: str, rows: pd.DataFrame, paths: dict[str, str], place: Path) -> GroupedDataset:
        if rows.empty:
            raise DataError(f"the lists of CelebA name no images of its {part} part; bring the files back.")
        if missing := [name for name in rows.index if name not in paths]:
            raise DataError(
                f"{place} lacks {len(missing):,} of the {len(rows):,} images of CelebA's {part} part, such "
                f"as {missing[0]}; unpack the whole archive again."
            )
        found = [paths[name] for name in rows.index]
        images = images_in(place, found, SIDE)
        pixels = kept_pixels(f"CelebA, {part}", images_key(place, found), len(found), SIDE, images, UNIT)
        target, groups = (
            crossed_labels([Labels(torch.tensor(rows[each].tolist()), _names(each)) for each in columns])
            for columns in ((self.target,), self.group)
        )
        return GroupedDataset(pixels, target.codes, groups.codes, groups.names, target.names, "celeba")


class _Files(NamedTuple):
    attributes: Path
    parts: Path
    images: Path


def _names(attribute: str) -> tuple[str, str]:
    """Names of the groups without and with an attribute."""
    return _OPPOSITES.get(attribute, f"no {attribute}"), attribute


def _find_files() -> _Files:
    given = data_folder()
    place = None if given is None else given / "celeba"
    if place is None or not place.is_dir():
        raise ORIGIN.missing()
    wanted = {
        "list_attr_celeba": ("list_attr_celeba.csv", "list_attr_celeba.txt"),
        "list_eval_partition": ("list_eval_partition.csv", "list_eval_partition.txt"),
        "img_align_celeba": ("img_align_celeba", "img_align_celeba.zip"),
    }
    found = {what: _first(place, names) for what, names in wanted.items()}
    if lacking := [" or ".join(wanted[what]) for what, path in found.items() if path is None]:
        raise DataError(f"{place} lacks {', and '.join(lacking)}: {ORIGIN.by_hand}")
    return _Files(*(path for path in found.values() if path is not None))


def _first(place: Path, names: Sequence[str]) -> Path | None:
    """The first file of one of these names, or folder with images."""
    for path in (place / folder / name for name in names for folder in _FOLDERS):
        if path.is_file() or (path.is_dir() and any(is_image(each.name) for each in path.iterdir())):
            return path
    return None


def _rows(files: _Files, attributes: Sequence[str]) -> pd.DataFrame:
    """Table by name of image: its attributes, 0 or 1 each, and its part."""
    table, parts = _attributes(files.attributes), _parts(files.parts)
    for each in attributes:
        if each not in table.columns:
            raise unknown_name("attribute of CelebA", each, table.columns)
    if len(alone := table.index.symmetric_difference(parts.index)) or table.index.has_duplicates:
        raise DataError(
            f"{files.attributes.name} lists {len(table):,} images and {files.parts.name} {len(parts):,}, and "
            f"{f'{alone[0]} is in one of them only' if len(alone) else 'some come twice'}; bring both files "
            "back."
        )
    parts = parts[table.index]
    rows = table[list(dict.fromkeys(attributes))]
    for column, known, path in (
        *((rows[each], (-1, 1), files.attributes) for each in rows),
        (parts, tuple(_PARTS.values()), files.parts),
    ):
        if (strange := column[~column.isin(known)]).size:
            raise DataError(
                f"{path} has {strange.iloc[0]} for {strange.index[0]}, in {column.name}; expected one of "
                f"{', '.join(map(str, known))}. Bring the file back."
            )
    return (rows == 1).astype("int64").assign(part=parts.astype("int64"))


def _attributes(path: Path) -> pd.DataFrame:
    """A table of one row an image: CSV; or a count, a line of names, and lines between blanks."""
    try:
        if path.suffix == ".csv":
            return pd.read_csv(path, index_col=0)
        table = pd.read_csv(path, sep=r"\s+", skiprows=1)
        with path.open() as file:
            count = int(file.readline())
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if len(table) != count:
        raise DataError(f"{path} announces {count:,} images and lists {len(table):,}; bring the file back.")
    return table


def _parts(path: Path) -> pd.Series:
    """Part of each image, from a CSV file with a header, or lines of a name and a number."""
    try:
        if path.suffix == ".csv":
            return pd.read_csv(path, index_col=0)["partition"]
        return pd.read_csv(path, sep=r"\s+", header=None, index_col=0)[1].rename("partition")
    except (OSError, ValueError, KeyError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read as a list of CelebA ({error}); bring the file back.")
