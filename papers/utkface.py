"""UTKFace: faces with age, gender and ethnicity in the names of their files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import ClassVar

import torch
from torch import Tensor

from equidp import DataError, DataSplit, GroupedDataset
from equidp.data.dataset import Labels, crossed_labels
from equidp.data.images import PIXEL_RANGE, kept_pixels
from equidp.data.origins import Origin, data_folder
from equidp.extend import unknown_name
from papers.images import image_paths, images_in, images_key, is_image

ORIGIN = Origin(
    "utkface",
    "UTKFace",
    "https://susanqq.github.io/UTKFace",
    "116 MB for the aligned and cropped faces",
    "non-commercial research only",
    "utkface/UTKFace.zip, or the folder utkface/UTKFace",
)
SIDE = 48
GENDERS = ("male", "female")
ETHNICITIES = ("White", "Black", "Asian", "Indian", "Others")
FIELDS = ("gender", "ethnicity", "under-30")
_NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_[^_]*")


@dataclass(frozen=True)
class UTKFace:
    """UTKFace (Zhang, Song and Qi 2017): aligned faces, brought to 48x48.

    The files are a zip or a folder, UTKFace.zip or UTKFace, in the folder utkface of the one that EQUIDP_DATA
    names. They are for non-commercial research only, and are not downloaded.

    Attributes:
        target: what to predict: gender, ethnicity or under-30 (Yu et al.).
        group: whose costs to compare: ethnicity, gender or under-30; several are crossed.
        ethnicities: faces of others are left out.
        balanced: remove faces, chosen by the seed, until each group has as many of each class (Yu et al.).
        test_share: share of the faces to test on, chosen by the seed.

    Raises:
        SettingError: no such target, group or ethnicity; or a balance of numbers.
    """

    name: str = "utkface"
    target: str = "gender"
    group: tuple[str, ...] = ("ethnicity",)
    ethnicities: tuple[str, ...] = ETHNICITIES
    balanced: bool = False
    test_share: float = 0.2
    highlighted_groups: tuple[str, str] | None = None
    pixel_range: ClassVar[tuple[float, float]] = PIXEL_RANGE

    def __post_init__(self) -> None:
        for what, given, known in (
            ("target of UTKFace", (self.target,), FIELDS),
            ("group of UTKFace", self.group, FIELDS),
            ("ethnicity", self.ethnicities, ETHNICITIES),
        ):
            for each in given:
                if each not in known:
                    raise unknown_name(what, each, known)

    def with_roles(self, target: str | None, group: tuple[str, ...]) -> UTKFace:
        """Return this source with another target, or other groups; None and (): as they are."""
        return replace(self, target=target or self.target, group=group or self.group)

    def split(self, seed: int) -> DataSplit:
        """Split all faces by the seed."""
        return self.choose_examples(seed, *self.everything())

    def everything(self) -> tuple[GroupedDataset]:
        """Return all faces whose names have every field, of these ethnicities."""
        place = _find_images()
        paths, fields, _ = _faces(place)
        images = kept_pixels(
            "UTKFace", images_key(place, paths), len(paths), SIDE, images_in(place, paths, SIDE)
        )
        if self.ethnicities != ETHNICITIES:
            taken = torch.tensor([ETHNICITIES.index(each) for each in self.ethnicities])
            rows = torch.nonzero(torch.isin(fields[:, 2], taken)).flatten()
            images, fields = images[rows], fields[rows]
        groups = crossed_labels([self._labels(fields, each) for each in self.group])
        target = self._labels(fields, self.target)
        whole = GroupedDataset(images, target.codes, groups.codes, groups.names, target.names, "utkface")
        return (whole,)

    def choose_examples(self, seed: int, *parts: GroupedDataset) -> DataSplit:
        """Return a split of all faces by the seed."""
        (whole,) = parts
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
        paths, _, left_out = _faces(_find_images())
        notes = []
        if left_out:
            notes.append(
                f"{left_out} of {left_out + len(paths)} images were left out: their names lack a field."
            )
        if self.balanced:
            order = _balance_classes(whole, order)
            notes.append(
                "Faces were removed at random, so that each group has as many of each class; epsilon does "
                "not cover the counts that this goes by."
            )
        test, train = order.tensor_split([round(self.test_share * len(order))])
        trained, tested = (whole.subset(rows.sort().values) for rows in (train, test))
        return DataSplit(trained, tested, tuple(notes))

    def _labels(self, fields: Tensor, column: str) -> Labels:
        age, gender, ethnicity = fields.T.contiguous()
        if column == "gender":
            return Labels(gender, GENDERS)
        if column == "under-30":
            return Labels((age < 30).long(), ("30 and over", "under 30"))
        places = torch.tensor([ETHNICITIES.index(each) for each in self.ethnicities])
        return Labels((ethnicity[:, None] == places).long().argmax(1), self.ethnicities)


def _balance_classes(data: GroupedDataset, order: Tensor) -> Tensor:
    """Rows of `order` in which each group has as many examples of each class as of its rarest one."""
    cells = (data.groups * data.num_classes + data.targets)[order]
    counts = torch.bincount(cells, minlength=data.num_groups * data.num_classes)
    kept = counts.view(data.num_groups, data.num_classes).min(1).values.repeat_interleave(data.num_classes)
    rows = [torch.nonzero(cells == cell).flatten()[:count] for cell, count in enumerate(kept.tolist())]
    return order[torch.cat(rows).sort().values]


def _find_images() -> Path:
    given = data_folder()
    names = ("utkface/UTKFace.zip", "utkface/UTKFace", "UTKFace.zip", "UTKFace", "utkface")
    for place in (given / name for name in names) if given else ():
        if place.is_file() or (place.is_dir() and any(is_image(each.name) for each in place.iterdir())):
            return place
    raise ORIGIN.missing()


def _faces(place: Path) -> tuple[list[str], Tensor, int]:
    """Paths in order, [n, 3] ages, genders and ethnicities, and the number of images whose names lack one."""
    every = image_paths(place)
    read = [(path, _NAME.fullmatch(PurePosixPath(path).name)) for path in every]
    faces = [(path, tuple(map(int, found.groups()))) for path, found in read if found]
    if not faces:
        raise DataError(f"{place} has no images named [age]_[gender]_[race]_[date].jpg; it is not UTKFace.")
    paths, fields = zip(*faces, strict=True)
    return list(paths), torch.tensor(fields), len(every) - len(faces)


YU = UTKFace("utkface-yu", ethnicities=ETHNICITIES[:4], balanced=True)
"""Gender, as prepared by Yu et al. (TMLR 2023)."""
YOUNG = UTKFace("utkface-young", target="under-30", ethnicities=ETHNICITIES[:4], balanced=True)
"""Under 30 or not, as prepared by Yu et al."""
