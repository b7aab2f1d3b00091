"""Origins of the public datasets' files: address, size and licence."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import final

from equidp.errors import DataError

DATA_VARIABLE = "EQUIDP_DATA"
_NOT_STATED = "not stated by the source"


def data_folder() -> Path | None:
    """Returns the folder that `EQUIDP_DATA` names, if it is set.

    Raises:
        DataError: the folder does not exist.
    """
    given = os.environ.get(DATA_VARIABLE)
    if given and not Path(given).is_dir():
        raise DataError(f"{DATA_VARIABLE} names {given!r}, which is no folder; correct it, or unset it.")
    return Path(given) if given else None


@final
@dataclass(frozen=True)
class Origin:
    """Origin of a dataset's files.

    Attributes:
        folder: folder of the dataset, below a data folder.
        dataset: its name in words.
        page: address of the page that offers it.
        size: of its files, in words.
        licence: in words.
        layout: its files in the folder that `EQUIDP_DATA` names, in words.
    """

    folder: str
    dataset: str
    page: str
    size: str
    licence: str
    layout: str

    @property
    def by_hand(self) -> str:
        """Instructions to get the files without a download by equidp: the end of a sentence."""
        return (
            f"get {self.dataset} from {self.page} ({self.size}; licence: {self.licence}) and set "
            f"{DATA_VARIABLE} to a folder that holds {self.layout}."
        )

    def missing(self) -> DataError:
        """Returns an error for a missing dataset that equidp does not download."""
        folder = data_folder()
        where = f"{DATA_VARIABLE} is not set" if folder is None else f"it is not in {folder}"
        return DataError(f"{self.dataset} is not downloaded, and {where}: {self.by_hand}")


ORIGINS: dict[str, Origin] = {
    origin.folder: origin
    for origin in (
        Origin(
            "mnist",
            "MNIST",
            "https://yann.lecun.com/exdb/mnist",
            "12 MB",
            "CC BY-SA 3.0, as Keras states it",
            "mnist/ with its four files as they are offered",
        ),
        Origin(
            "adult",
            "Adult",
            "https://archive.ics.uci.edu/dataset/2/adult",
            "6 MB",
            "CC BY 4.0",
            "adult/adult.data and adult/adult.test",
        ),
        Origin(
            "dutch",
            "the Dutch census of 2001",
            "https://github.com/tailequy/fairness_dataset",
            "2.2 MB",
            _NOT_STATED,
            "dutch/dutch_census_2001.arff",
        ),
        Origin(
            "cifar10",
            "CIFAR-10",
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            "163 MB",
            _NOT_STATED,
            "cifar10/cifar-10-python.tar.gz",
        ),
    )
}
"""Folder of a dataset below `EQUIDP_DATA` -> its origin.

>>> ORIGINS["adult"].licence
'CC BY 4.0'
"""
