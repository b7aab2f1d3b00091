"""UTKFace: faces with age, gender and ethnicity in the names of their files."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch

from equidp.data.cache import Array, key_of
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.data.fetch import DATA_VARIABLE
from equidp.data.images import decoded, kept_pixels, state_of
from equidp.errors import DataError

SIDE = 48
GENDERS = ("male", "female")
ETHNICITIES = ("White", "Black", "Asian", "Indian", "Others")
AGES = (0.0, 120.0)
_SUFFIXES = (".jpg", ".jpeg", ".png")
_NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_[^_]*")


@dataclass(frozen=True)
class UTKFace:
    """UTKFace (Zhang, Song and Qi 2017): aligned faces, brought to 48x48. Groups are ethnicities.

    The files are a zip or a folder, UTKFace.zip or UTKFace, in the folder utkface of the one that EQUIDP_DATA
    names. They are for research only, and are not downloaded.

    Attributes:
        age: whether to predict age, a number from 0 to 120; otherwise gender.
        test_share: share of the faces to test on, chosen by the seed.
    """

    name: str = "utkface"
    age: bool = False
    test_share: float = 0.2
    highlighted_groups: tuple[str, str] | None = None

    def split(self, seed: int) -> DataSplit:
        """Splits all faces by the seed."""
        return self.chosen(seed, *self.everything())

    def everything(self) -> tuple[GroupedDataset]:
        """Returns all faces whose names have every field."""
        place = _found()
        faces, _ = _faces(place)
        files = [place / face.path for face in faces] if place.is_dir() else [place]
        key = key_of(state_of(files), [face.path for face in faces])
        images = kept_pixels("UTKFace", key, len(faces), SIDE, _images(place, faces))
        genders, groups = torch.tensor([(face.gender, face.ethnicity) for face in faces]).unbind(1)
        if self.age:
            ages = torch.tensor([float(face.age) for face in faces])
            whole = GroupedDataset(images, ages, groups, ETHNICITIES, (), "utkface", target_bounds=AGES)
        else:
            whole = GroupedDataset(images, genders, groups, ETHNICITIES, GENDERS, "utkface")
        return (whole,)

    def chosen(self, seed: int, *parts: GroupedDataset) -> DataSplit:
        """Returns the split of a seed of all faces."""
        (whole,) = parts
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
        test, train = order.tensor_split([round(self.test_share * len(whole))])
        _, left_out = _faces(_found())
        note = f"{left_out} of {left_out + len(whole)} images were left out: their names lack a field."
        trained, tested = (whole.subset(rows.sort().values) for rows in (train, test))
        return DataSplit(trained, tested, (note,) if left_out else ())


class _Face(NamedTuple):
    """One image and what its name says."""

    path: str
    age: int
    gender: int
    ethnicity: int


def _found() -> Path:
    given = os.environ.get(DATA_VARIABLE)
    names = ("utkface/UTKFace.zip", "utkface/UTKFace", "UTKFace.zip", "UTKFace", "utkface")
    for place in (Path(given) / name for name in names) if given else ():
        if place.is_file() or (place.is_dir() and any(map(_is_image, os.listdir(place)))):
            return place
    raise DataError(
        "UTKFace is for research only and is not downloaded: get the aligned and cropped faces from "
        f"https://susanqq.github.io/UTKFace and set {DATA_VARIABLE} to a folder that holds "
        "utkface/UTKFace.zip, or the folder utkface/UTKFace."
    )


def _is_image(path: str) -> bool:
    return path.lower().endswith(_SUFFIXES) and not PurePosixPath(path).name.startswith(".")


def _faces(place: Path) -> tuple[list[_Face], int]:
    """Faces in order of their names, and how many images have a name that lacks a field."""
    if place.is_dir():
        paths = sorted(filter(_is_image, os.listdir(place)))
    else:
        with _opened(place) as archive:
            paths = sorted(path for path in archive.namelist() if _is_image(path) and "__MACOSX" not in path)
    read = [(path, _NAME.fullmatch(PurePosixPath(path).name)) for path in paths]
    faces = [_Face(path, *map(int, found.groups())) for path, found in read if found]
    if not faces:
        raise DataError(f"{place} has no images named [age]_[gender]_[race]_[date].jpg; it is not UTKFace.")
    return faces, len(paths) - len(faces)


def _images(place: Path, faces: Sequence[_Face]) -> Iterator[Array]:
    if place.is_dir():
        for face in faces:
            yield decoded((place / face.path).read_bytes(), face.path, SIDE)
        return
    with _opened(place) as archive:
        for face in faces:
            try:
                content = archive.read(face.path)
            except (zipfile.BadZipFile, OSError, EOFError) as error:
                message = f"{place}: {face.path} cannot be read ({error}); bring the file back."
                raise DataError(message) from error
            yield decoded(content, face.path, SIDE)


def _opened(place: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(place)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(
            f"{place} cannot be read as a zip file ({error}); bring the whole file back."
        ) from error
