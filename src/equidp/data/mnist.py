"""MNIST with eights made rare in training."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.data.digits import RARE, grouped_by_digit
from equidp.data.origins import ORIGINS, RemoteFile
from equidp.errors import DataError

_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MEAN, _DEVIATION = 0.1307, 0.3081


def _file(name: str, sha256: str, md5: str) -> RemoteFile:
    return RemoteFile(ORIGINS["mnist"], f"{name}.gz", f"{_URL}{name}.gz", sha256, f"md5:{md5}")


_FILES = {
    "train images": _file(
        "train-images-idx3-ubyte",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    "train labels": _file(
        "train-labels-idx1-ubyte",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "d53e105ee54ea40749a09fcbcd1e9432",
    ),
    "test images": _file(
        "t10k-images-idx3-ubyte",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "9fb629c4189551a2d022fa330f9573f3",
    ),
    "test labels": _file(
        "t10k-labels-idx1-ubyte",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
}


@dataclass(frozen=True)
class MNIST:
    """MNIST with few eights in training and the whole test set. Groups are the classes.

    Attributes:
        kept_eights: number of eights to keep, chosen by the seed (Xu et al.: 500). None: use
            `keep_probability`.
        keep_probability: chance of each eight to be kept (Esipova et al.: 0.09; Yu et al.: 1).
        standardised: scale pixels to mean 0 and deviation 1, by MNIST's public constants; otherwise to
            [0, 1].
    """

    name: str
    kept_eights: int | None = 500
    keep_probability: float = 0.09
    standardised: bool = True
    highlighted_groups: tuple[str, str] | None = ("2", "8")

    @property
    def pixel_range(self) -> tuple[float, float]:
        """Lowest and highest value of pixels."""
        return (-_MEAN / _DEVIATION, (1.0 - _MEAN) / _DEVIATION) if self.standardised else (0.0, 1.0)

    def split(self, seed: int) -> DataSplit:
        """Return the public split, with eights chosen by the seed."""
        return self.choose_examples(seed, *self.everything())

    def everything(self) -> tuple[GroupedDataset, GroupedDataset]:
        """Return the public training and test set, with all eights."""
        train, test = (
            grouped_by_digit(
                self._pixels(_idx(_FILES[f"{part} images"])), _idx(_FILES[f"{part} labels"]).long(), "mnist"
            )
            for part in ("train", "test")
        )
        return train, test

    def choose_examples(self, seed: int, *parts: GroupedDataset) -> DataSplit:
        """Return the training and test set, the former without the eights that the seed leaves out."""
        train, test = parts
        kept = self._draw_kept_rows(train.targets, torch.Generator().manual_seed(seed))
        count = int((train.targets[kept] == RARE).sum())
        eights = int((train.targets == RARE).sum())
        note = f"Eights are rare by choice: {count / eights:.2g} of them are kept in training."
        return DataSplit(train.subset(kept), test, (note,) if count < eights else ())

    def _pixels(self, images: Tensor) -> Tensor:
        pixels = images.float().div_(255.0).unsqueeze(1)
        return pixels.sub_(_MEAN).div_(_DEVIATION) if self.standardised else pixels

    def _draw_kept_rows(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        eights = torch.nonzero(labels == RARE).flatten()
        if self.kept_eights is None:
            chosen = eights[torch.rand(len(eights), generator=generator) < self.keep_probability]
        else:
            chosen = eights[torch.randperm(len(eights), generator=generator)[: self.kept_eights]]
        return torch.cat([torch.nonzero(labels != RARE).flatten(), chosen]).sort().values


def _idx(file: RemoteFile) -> Tensor:
    """Read an idx file: 0, 0, 8 (unsigned bytes), number of dimensions, sizes, and values."""
    content = file.content()
    dimensions = content[3] if content[:3] == b"\x00\x00\x08" and len(content) > 3 else 0
    header = 4 + 4 * dimensions
    if not dimensions or len(content) < header:
        raise DataError(
            f"{file.name} is not an idx file of unsigned bytes; remove it and download it again.",
            field=file.name,
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    values = np.frombuffer(content, dtype=np.uint8, offset=header)
    if len(values) != np.prod(shape):
        raise DataError(
            f"{file.name} holds {len(values)} values, but its header says {list(shape)}; it is truncated.",
            field=file.name,
        )
    return torch.from_numpy(values.reshape(shape).copy())
